"""The publish load: one Python process that publishes by an API and waits until all is stored.

    send      client.publisher(): send() for each record
    many      client.publisher(): publish_many() of 1,000 records at a time
    nats-py   publish_async() of nats-py for each record, a bounded number unacknowledged

Each value is made anew, as a program's would be. Prints one JSON object. Run by
`benchmarks.publish`.

    python -m benchmarks.publish_load --api send --server 127.0.0.1:9292 --size 128 --seconds 4
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from typing import NamedTuple

import nats

from benchmarks.jetstream_peer import SUBJECT
from benchmarks.load import WINDOW
from jetstream_client import Client, Publisher

MANY = 1_000
WARM_UP_SECONDS = 0.5


class Result(NamedTuple):
    messages: int
    seconds: float
    """From the first call to the last acknowledgement."""


def _driven(publisher: Publisher, publish: Callable[[], int], seconds: float) -> Result:
    """Call `publish`, which says how many records it published, for so long; then flush."""
    count = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        count += publish()
    publisher.flush()
    return Result(count, time.perf_counter() - begun)


def by_publisher(server: str, many: bool, size: int, seconds: float) -> Result:
    """`count` records stored, of which flush() has made sure: it raises any failure."""
    padding = bytes(size - 8)

    def send() -> int:
        for number in range(MANY):
            publisher.send(b"%08d" % number + padding)
        return MANY

    def send_many() -> int:
        publisher.publish_many([b"%08d" % number + padding for number in range(MANY)])
        return MANY

    publish = send_many if many else send
    with Client(server) as client, client.publisher(SUBJECT) as publisher:
        _driven(publisher, publish, WARM_UP_SECONDS)
        return _driven(publisher, publish, seconds)


async def by_nats_py(server: str, size: int, seconds: float) -> Result:
    """nats-py bounds what is unacknowledged itself, with the load's own window."""
    padding = bytes(size - 8)
    connection = await nats.connect(f"nats://{server}")
    jetstream = connection.jetstream(publish_async_max_pending=WINDOW)

    async def drive(seconds: float) -> Result:
        count = 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < seconds:
            for number in range(MANY):
                # Without its wait_stall, which would cost it a task for each message.
                future = await jetstream.publish_async(SUBJECT, b"%08d" % number + padding)
            count += MANY
        await jetstream.publish_async_completed()
        assert (await future).seq > 0
        return Result(count, time.perf_counter() - begun)

    await drive(WARM_UP_SECONDS)
    result = await drive(seconds)
    await connection.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--api", choices=["send", "many", "nats-py"], required=True)
    parser.add_argument("--server", required=True, help="gRPC, or of nats-py NATS: HOST:PORT,…")
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    if options.api == "nats-py":
        result = asyncio.run(by_nats_py(options.server, options.size, options.seconds))
    else:
        many = options.api == "many"
        result = by_publisher(options.server, many, options.size, options.seconds)
    print(json.dumps(result._asdict()))


if __name__ == "__main__":
    main()
