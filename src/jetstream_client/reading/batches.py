"""Batches as they are stored: what a backup copies, without taking records out of them."""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.batch import decode_header
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.logfiles.scan import check_body


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole batches, back to back (docs/file_formats.md); all of their CRCs were checked.

    The first may begin before the offset asked for. next_offset: where to fetch from next.
    last_epoch: the leader epoch of the last record, to be passed with the next fetch.
    [log_start_offset, high_watermark) could be read when the server answered.

    What compaction had done by then to the log of this leader, whose epoch is leader_epoch: the
    records that it removed have later ones of their keys below compacted_below (None: it was never
    compacted, or its server is of an earlier release), and no tombstone at or after
    tombstones_gone_below was removed.
    """

    data: bytes
    next_offset: int
    last_epoch: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int = -1
    compacted_below: int | None = None
    tombstones_gone_below: int = 0


def check_batches(
    data: bytes, offset: int, last_epoch: int, head: pb.DataFetchResponse
) -> FetchedBatches:
    """An answer to a fetch at `offset`. Raises CorruptBatchError."""
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        check_body(data, position, header, position)
        position += header.length
        offset, last_epoch = header.next_offset, header.leader_epoch
    return FetchedBatches(
        data,
        offset,
        last_epoch,
        head.log_start_offset,
        head.high_watermark,
        head.leader_epoch,
        head.compacted_below if head.HasField("compacted_below") else None,
        head.tombstones_gone_below,
    )
