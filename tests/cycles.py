"""Create a stream, publish at once, see that nothing is missing: over and over.

    python -m tests.cycles --count 2000

Core NATS keeps nothing, so a message published before the server's subscription stands is lost:
`CreateStream` must not return earlier. Each cycle publishes one message without and one with an ack
the moment the stream is created; the ack must name the second record, and the log hold both. Every
other stream is deleted again. Exit code 0 when every cycle did.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.support.api import Api, RawNats
from tests.support.server import running_server

SAY_EVERY = 500


def cycle(api: Api, nats: RawNats, number: int) -> str:
    """One cycle; why it failed, "" when it did not."""
    name, subject = f"cycle-{number}", f"cycle.{number}"
    api.create(name, subject)
    nats.publish(subject, b"unasked")
    nats.publish(subject, b"asked", "_INBOX.cycles")
    answer = json.loads(nats.message(10)[1])
    if answer != {"stream": name, "seq": 2}:
        return f"the second message was answered with {answer}"
    values = api.values(name)
    if values != [b"unasked", b"asked"]:
        return f"the log holds {values}"
    if number % 2:
        api.delete(name)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cycles", description=__doc__)
    parser.add_argument("--count", type=int, default=2000)
    count = parser.parse_args().count
    begun = time.monotonic()
    failures = 0
    with (
        tempfile.TemporaryDirectory(prefix="jetstream-cycles-") as folder,
        running_server(Path(folder) / "data") as server,
    ):
        api, nats = Api(server.grpc), RawNats(server.nats)
        nats.subscribe("_INBOX.cycles")
        for number in range(1, count + 1):
            failure = cycle(api, nats, number)
            if failure:
                failures += 1
                print(f"cycle {number}: {failure}", flush=True)
            if number % SAY_EVERY == 0 or number == count:
                elapsed = time.monotonic() - begun
                print(f"{number} cycles, {failures} failed, {elapsed:.1f} s", flush=True)
        nats.close()
        api.close()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
