"""Checks the bytes of another log before a follower appends them.

**safety** Checks offsets, epochs, lengths and both CRCs: the sender may have truncated and appended
again between choosing a range and sending it, or its disk may have damaged the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from jetstream_protocol.batch import BatchHeader, decode_header
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import DivergedError
from jetstream_protocol.logfiles.scan import Tail, check_body


def check_incoming(
    data: bytes, tail: Tail, leader_epoch_max: int | None, gaps_below: int
) -> list[BatchHeader]:
    """The headers of the batches in `data`, if all of them continue the log at `tail`.

    leader_epoch_max: the epoch under which the bytes were fetched; None: any. gaps_below:
    **safety** a batch may follow a gap of compaction only if it begins at or below this offset:
    only committed records are compacted, so any other gap would mean lost records. Raises
    CorruptBatchError when the bytes are not whole valid batches, DivergedError when they do not
    continue the log.
    """
    headers: list[BatchHeader] = []
    position = 0
    while position < len(data):
        header = decode_header(data, position)
        check_body(data, position, header, position)
        problem = tail.problem(header)
        if not problem and leader_epoch_max is not None and header.leader_epoch > leader_epoch_max:
            problem = f"leader epoch {header.leader_epoch}, asked for under {leader_epoch_max}"
        if not problem and tail.offset < header.base_offset > gaps_below:
            problem = f"no batch at offset {tail.offset}, and a gap is not allowed there"
        if problem:
            raise DivergedError(problem, tail.leader_epoch, tail.offset)
        tail.advance(header)
        headers.append(header)
        position += header.length
    return headers


def last_gap(headers: Sequence[BatchHeader]) -> int:
    """Where the last gap among the batches ends; 0 when there is none."""
    marked = [header.base_offset for header in headers if header.flags & Flags.AFTER_GAP]
    return marked[-1] if marked else 0


def count_fitting(headers: Sequence[BatchHeader], room: int) -> int:
    """How many of the batches fit into `room` bytes; at least one."""
    count = 0
    for header in headers:
        room -= header.length
        if room < 0 and count:
            break
        count += 1
    return count
