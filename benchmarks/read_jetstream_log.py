"""This server's read: the SDK's fetch loop, every value made a Python object once.

`--touch values` takes each value as bytes, as the peer's loop does; `--touch messages` builds the
SDK's `Message` for every record, with offset, timestamp, subject and key.

    python -m benchmarks.read_jetstream_log --server 127.0.0.1:9292 --stream bench --messages 500000
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable

from jetstream_client import Client

FETCH_MESSAGES = 100_000


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--server", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--touch", choices=["values", "messages"], default="values")
    options = parser.parse_args()
    count = length = offset = 0
    with Client(options.server) as client:
        client.describe_stream(options.stream)  # Connected, as the peer is, before the clock runs.
        start, processor = time.perf_counter(), time.process_time()
        while count < options.messages:
            messages = client.fetch(
                options.stream, start=offset, max_messages=FETCH_MESSAGES, max_wait=5.0
            )
            if not messages:
                raise RuntimeError(f"no message at offset {offset}: the log ends early")
            values: Iterable[bytes | None] = (
                messages.values()
                if options.touch == "values"
                else (message.value for message in messages)
            )
            length += sum(len(value) for value in values if value is not None)
            count += len(messages)
            offset = messages.next_offset
        seconds = time.perf_counter() - start
        used = time.process_time() - processor
    result = {"messages": count, "bytes": length, "seconds": seconds, "processor_seconds": used}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
