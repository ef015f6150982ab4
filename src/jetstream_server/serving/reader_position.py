"""Where a reader stands after the batches that it was given, by what their own headers say.

The log cannot say it: it may have been truncated, and have grown anew, since they were read.
"""

from __future__ import annotations

from typing import NamedTuple

from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import CorruptBatchError


class ReaderPosition(NamedTuple):
    """length: bytes of the batches. next_offset: after the last one, before any gap that follows.
    last_epoch: the last one's leader epoch."""

    length: int
    next_offset: int
    last_epoch: int


def position_after(data: bytes, below: int) -> ReaderPosition | None:
    """The position after those first batches of `data` that begin below the offset `below` and
    whose headers are good; None: there are none."""
    header, length = None, 0
    while length < len(data):
        try:
            following = decode_header(data, length)
        except CorruptBatchError:
            break
        if following.base_offset >= below:
            break
        header = following
        length += header.length
    return (
        None if header is None else ReaderPosition(length, header.next_offset, header.leader_epoch)
    )
