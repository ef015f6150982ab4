"""Streams of real servers whose old records are in a lake."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from jetstream_client import Client
from tests.support.server import ServerProcess

COUNT = 1_000
VALUE = b"x" * 1_000


def until(holds: Callable[[], bool], seconds: float = 200) -> None:
    """The process that copies has the lowest priority: on a busy machine it gets little time."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def fill(client: Client, name: str, first: int = 0, count: int = COUNT) -> int:
    """Append records in batches of ten; returns the stream's id."""
    stream = client.create_stream(
        name, name, replicas=1, lake=True, segment_bytes=64 * 1024, duplicate_window=0
    )
    with client.publisher(name, linger=0) as publisher:
        for number in range(first, first + count, 10):
            values = [b"%d " % each + VALUE for each in range(number, number + 10)]
            publisher.publish_many(values)
            publisher.flush()
    return stream.id


def batches(client: Client, name: str) -> bytes:
    """The bytes of all batches, as a reader is sent them."""
    found = b""
    offset, end = client.offset_at(name, "earliest"), client.offset_at(name, "latest")
    while offset < end:
        fetched = client.fetch_batches(name, offset)
        found += fetched.data
        offset = fetched.next_offset
    return found


def local_start(server: ServerProcess, stream_id: int) -> int:
    """The base offset of the first segment on the disk."""
    folder = server.data / "streams" / str(stream_id)
    return min(int(each[:-4]) for each in os.listdir(folder) if each.endswith(".log"))


def only_in_lake(server: ServerProcess, client: Client, name: str, count: int) -> int:
    """A stream of so many records, of which the first half is in the lake alone. Returns its id."""
    stream_id = fill(client, name, count=count)
    client.alter_stream(name, local_max_bytes=64 * 1024)
    until(lambda: local_start(server, stream_id) > count // 2)
    return stream_id


def is_copied(lake: Path, stream_id: int) -> bool:
    """Whether objects of nearly all records are there."""
    objects = list(lake.glob(f"*/{stream_id}-*/metadata/*.metadata.json"))
    return bool(objects) and max(int(each.name[:20]) for each in objects) > COUNT // 2
