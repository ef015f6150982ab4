"""A compacted stream of which compaction removes what a reader has not read yet."""

from __future__ import annotations

import time
from typing import Any

from jetstream_client import Client

_KEYS = 40
COMPACTED_SECONDS = 240.0
"""Passes run at the lowest priority: where other processes want the processors, they take long."""


def publish(client: Client, name: str, first: int, count: int) -> None:
    """Record number N has the key N % 40, and the offset N. Some segments."""
    with client.publisher(name, linger=0.0, max_bytes=8_192) as publisher:
        for number in range(first, first + count):
            publisher.send(b"%d" % number * 200, key=b"%d" % (number % _KEYS))


def create(client: Client, name: str, **settings: Any) -> None:
    client.create_stream(
        name, name, compact=True, segment_bytes=65_536, segment_age=0, flush="none", **settings
    )


def wait_until_compacted(client: Client, name: str, offset: int) -> None:
    """Until a pass has ended that looked at all records before `offset`."""
    deadline = time.monotonic() + COMPACTED_SECONDS
    while True:
        compaction = client.describe_stream(name).compaction
        if compaction is not None and compaction.cleaned_to >= offset:
            return
        assert time.monotonic() < deadline, f"compaction has not come to offset {offset}"
        time.sleep(0.1)


def overtake(client: Client, name: str, first: int) -> None:
    """Supersede every record before offset `first`, and have all of them removed. Compaction comes
    further than a fetch that begins before `first`: that ends with its segment of about 90."""
    publish(client, name, first, 600)
    wait_until_compacted(client, name, first + 200)


def view_before(offset: int) -> dict[bytes | None, bytes | None]:
    """What a reader of all that `publish` has written ends with at that offset."""
    return {b"%d" % (number % _KEYS): b"%d" % number * 200 for number in range(offset)}
