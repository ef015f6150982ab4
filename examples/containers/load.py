"""Runs inside the image: publishes while the cluster is disturbed, then reads everything back.

    python load.py SERVERS SECONDS

Prints one line of JSON: how many messages were acknowledged, how many of those were not read back,
and the longest pause between two acknowledgements.
"""

from __future__ import annotations

import json
import sys
import time

from jetstream_client import Client, JetstreamError


def main(servers: str, seconds: float) -> None:
    acknowledged: dict[int, bytes] = {}
    longest, last = 0.0, time.monotonic()
    ends = last + seconds
    with Client(servers, timeout=20) as client:
        client.create_stream("containers", "containers", replicas=3)
        print("publishing", flush=True)
        number = 0
        while time.monotonic() < ends:
            value = b"%d" % number
            number += 1
            try:
                result = client.publish("containers", value, msg_id=f"{number}", timeout=15)
            except JetstreamError as error:
                print(f"not acknowledged: {error.message}", file=sys.stderr)
                continue
            acknowledged[result.offset or 0] = value
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            time.sleep(0.005)
        stored = {
            message.offset: message.value
            for message in client.consume("containers", stop="latest", patience=20)
        }
    lost = [offset for offset, value in acknowledged.items() if stored.get(offset) != value]
    found = {"acknowledged": len(acknowledged), "lost": len(lost), "pause_seconds": longest}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
