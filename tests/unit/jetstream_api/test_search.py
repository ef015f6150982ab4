"""Searches whose records change while they are looked for. With real parts:
tests/integration/test_jetstream_api.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from jetstream_protocol.batch import encode
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import WallUs
from jetstream_server.jetstream_api.requests import GetRequest
from jetstream_server.jetstream_api.search import Search
from jetstream_server.jetstream_api.stream_reads import StreamReads
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.support.loops import on_loop
from tests.unit.replication import cores

STREAM = replace(
    cores.stream(), subject="bucket.*", config=replace(cores.stream().config, key="subject")
)
SUBJECTS = ("bucket.a", "bucket.b")


class Reads:
    """Stands for the reads of a stream. Its record of `bucket.a` at 0 is replaced by that at 2, and
    compacted away, once it was looked up."""

    def __init__(self) -> None:
        self.ends = [0, 1]

    async def bounds(self, stream: StreamMetadata) -> tuple[int, int]:
        return 0, 3

    async def last_of_subjects(self, stream: StreamMetadata, subjects: Sequence[str]) -> list[int]:
        found, self.ends = self.ends, [1, 2]
        return found

    async def fetch(self, stream: StreamMetadata, offset: int, bytes_max: int) -> pb.FetchResponse:
        if offset == 0:
            return pb.FetchResponse(next_offset=1, high_watermark=3)
        batch = encode([b"%d" % offset], SUBJECTS[offset % 2].encode())
        batch.stamp(offset, 0, WallUs(0))
        return pb.FetchResponse(batches=batch.to_bytes(), next_offset=offset + 1, high_watermark=3)


async def at_once(stream: StreamMetadata, length: int) -> None:
    """Nobody is slowed down."""


@on_loop
async def test_a_record_that_is_replaced_while_it_is_looked_up_is_not_missing() -> None:
    search = Search(cast(StreamReads, Reads()), at_once)
    found = await search.batch(STREAM, GetRequest(subjects=SUBJECTS))
    assert [record.offset for record in found.records] == [1, 2]
    assert found.pending == 0
