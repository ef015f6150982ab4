"""Walks the batches of a segment, and distinguishes a torn tail from corruption.

A segment is whole batches back to back from byte 0; each begins where the one before ends, so
every batch begins at a multiple of 8. A *valid* batch passes both CRCs; it *continues* the log
when its base offset is the next offset, or is after it and the batch is marked AFTER_GAP, and its
leader epoch is not below the one before.

Validity (docs/file_formats.md, "Segments"). At the first position without a valid next batch:

* a valid batch there (which only does not continue) or anywhere after it means **corruption**: a
  torn write cannot leave one. The bytes must be kept.
* otherwise it is a **torn tail**: an append that was not finished, which may be cut off.

If the bad batch's own header is intact, "after it" begins at the end that the header names: the
payloads inside may themselves be stored batches, and must not be taken for the log's.

Everything reads through a `Read` callable, so that server, command line and simulated disk share
this code. It never writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from jetstream_protocol.batch import (
    HEADER_BYTES,
    MAGIC,
    BatchHeader,
    crc32c,
    decode_header,
    extent_fields,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import WallUs

Read = Callable[[int, int], bytes]
"""`read(position, length)`: those bytes of the segment; fewer only at its end."""

SCAN_BYTES = 1 << 20
"""Bytes read at a time by a full scan: so many that the cost of a read does not matter."""

_ALIGNMENT = 8
_AFTER_GAP = int(Flags.AFTER_GAP)


@dataclass(slots=True)
class Tail:
    """What the next batch has to continue: the log's end."""

    offset: int
    leader_epoch: int = -1
    timestamp: WallUs = WallUs(0)

    def problem(self, header: BatchHeader) -> str:
        """Why the batch does not continue the log; "" when it does."""
        if header.base_offset != self.offset and not self.is_gap(header):
            return f"batch at offset {header.base_offset} where {self.offset} is next"
        if header.leader_epoch < self.leader_epoch:
            return f"leader epoch {header.leader_epoch} after epoch {self.leader_epoch}"
        return ""

    def is_gap(self, header: BatchHeader) -> bool:
        """Whether the batch says that compaction removed batches between the tail and it."""
        return header.base_offset > self.offset and bool(header.flags & _AFTER_GAP)

    def advance(self, header: BatchHeader) -> None:
        self.offset = header.next_offset
        self.leader_epoch = header.leader_epoch
        self.timestamp = max(self.timestamp, header.append_timestamp)


class Window:
    """The part of a segment that was read last. It moves forward as later positions are needed."""

    __slots__ = ("_chunk_bytes", "_read", "buffer", "end", "start")

    def __init__(self, read: Read, end: int, chunk_bytes: int) -> None:
        self._read = read
        self._chunk_bytes = chunk_bytes
        self.end = end
        self.start = 0
        self.buffer = b""

    def locate(self, position: int, length: int) -> int:
        """The index of `position` in `buffer`, which then holds `length` bytes from there, or
        all."""
        at = position - self.start
        if at < 0 or at + length > len(self.buffer):
            wanted = min(max(length, self._chunk_bytes), self.end - position)
            self.buffer = self._read(position, wanted)
            self.start = position
            at = 0
        return at

    def header(self, position: int) -> BatchHeader:
        """The header at `position`. Raises CorruptBatchError with that position."""
        at = self.locate(position, HEADER_BYTES)
        try:
            return decode_header(self.buffer, at)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, position=position) from error

    def check_body(self, position: int, header: BatchHeader) -> None:
        """Raise CorruptBatchError unless the whole body is there and passes its CRC."""
        at = self.locate(position, header.length)
        check_body(self.buffer, at, header, position)


def check_body(buffer: bytes, at: int, header: BatchHeader, position: int) -> None:
    """Raise CorruptBatchError unless the stored body after the header at `at` is intact."""
    body_end = at + HEADER_BYTES + header.body_length
    if len(buffer) < at + header.length:
        raise CorruptBatchError("batch cut short", position=position)
    padding_is_zero = not any(buffer[body_end : at + header.length])
    if crc32c(buffer[at + HEADER_BYTES : body_end]) != header.body_crc or not padding_is_zero:
        raise CorruptBatchError("batch body fails its CRC", position=position)


def walk(
    read: Read, start: int, end: int, *, bodies: bool, chunk_bytes: int = SCAN_BYTES
) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of each batch in [start, end). A batch must begin at `start`.

    bodies: check the bodies' CRCs too. Raises CorruptBatchError, with the position, at the first
    batch that is not valid or reaches beyond `end`.
    """
    window = Window(read, end, chunk_bytes)
    position = start
    while position < end:
        header = window.header(position)
        if position + header.length > end:
            raise CorruptBatchError("batch cut short", position=position)
        if bodies:
            window.check_body(position, header)
        yield position, header
        position += header.length


def skim(
    read: Read, start: int, end: int, next_offset: int, *, chunk_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Where each batch in [start, end) begins and ends, and its next offset.

    Several times faster than `walk`. `next_offset` is the base offset of the first batch, or lies
    in the gap before it. Headers are trusted without their CRC as long as each batch begins where
    the one before ends, so the caller has to decode the batch that it finally uses. Raises
    CorruptBatchError at the first damage, as `walk` would.
    """
    buffer, origin, position = b"", start, start
    while position < end:
        at = position - origin
        if at + HEADER_BYTES > len(buffer):
            buffer, origin, at = read(position, min(chunk_bytes, end - position)), position, 0
        if len(buffer) - at < HEADER_BYTES:
            raise CorruptBatchError("batch header cut short", position=position)
        magic, flags, length, base_offset, last_offset_delta = extent_fields(buffer, at)
        following = position + length
        if magic != MAGIC or base_offset != next_offset or not position < following <= end:
            if base_offset < next_offset or not flags & _AFTER_GAP or following > end:
                _explain(read, start, end, next_offset, position)
            try:
                decode_header(buffer, at)
            except CorruptBatchError as error:
                raise CorruptBatchError(error.reason, position=position) from error
        next_offset = base_offset + last_offset_delta + 1
        yield position, following, next_offset
        position = following


def _explain(read: Read, start: int, end: int, next_offset: int, position: int) -> NoReturn:
    """Raise the error that a careful walk finds between `start` and the bad position."""
    for at, header in walk(read, start, end, bodies=False, chunk_bytes=HEADER_BYTES):
        if at >= position:
            message = f"batch at offset {header.base_offset} where {next_offset} is next"
            raise CorruptBatchError(message, position=at)
    raise CorruptBatchError("batches end early", position=position)


@dataclass(frozen=True, slots=True)
class Bad:
    """A stretch of a segment without a valid batch, from `position` to `resumes_at`."""

    position: int
    reason: str
    resumes_at: int | None
    """Where the next valid batch is; None: there is none."""


def walk_past_damage(
    read: Read, end: int, base_offset: int
) -> Iterator[tuple[int, BatchHeader] | Bad]:
    """Every valid batch of a segment, with bodies checked, and the bad stretches between them."""
    tail = Tail(base_offset)
    position: int | None = 0
    while position is not None:
        try:
            for at, header in walk(read, position, end, bodies=True):
                tail.advance(header)
                yield at, header
            position = None
        except CorruptBatchError as error:
            position = find_valid_after(read, error.position, end, tail)
            yield Bad(error.position, error.reason, position)


def is_valid(window: Window, position: int) -> BatchHeader | None:
    """The header of the valid batch at `position`; None if there is none."""
    try:
        header = window.header(position)
        if position + header.length > window.end:
            return None
        window.check_body(position, header)
    except CorruptBatchError:
        return None
    return header


def _may_follow(header: BatchHeader, tail: Tail) -> bool:
    return header.base_offset >= tail.offset and header.leader_epoch >= tail.leader_epoch


def find_valid(read: Read, start: int, end: int, tail: Tail) -> int | None:
    """The position of the first valid batch at or after `start` that may belong to the log.

    A batch wholly before `tail` cannot: it is a stored batch inside of a record's value.
    """
    headers = Window(read, end, SCAN_BYTES)
    bodies = Window(read, end, SCAN_BYTES)
    position = -(-start // _ALIGNMENT) * _ALIGNMENT
    while end - position >= HEADER_BYTES:
        at = headers.locate(position, HEADER_BYTES)
        found = headers.buffer.find(MAGIC, at)
        if found < 0:
            # The magic may straddle the end of what was read; positions are aligned.
            position = headers.start + max(len(headers.buffer) // _ALIGNMENT * _ALIGNMENT, 8)
            continue
        position = headers.start + found
        if position % _ALIGNMENT == 0:
            header = is_valid(bodies, position)
            if header is not None and _may_follow(header, tail):
                return position
        position = (position // _ALIGNMENT + 1) * _ALIGNMENT
    return None


def find_valid_after(read: Read, bad: int, end: int, tail: Tail) -> int | None:
    """The position of a valid batch at or after the bad position `bad`; None: a torn tail."""
    window = Window(read, end, SCAN_BYTES)
    try:
        header = window.header(bad)
    except CorruptBatchError:
        return find_valid(read, bad + 1, end, tail)
    if is_valid(window, bad):
        return bad
    return find_valid(read, bad + header.length, end, tail)


def is_cut_short(read: Read, position: int, end: int) -> bool:
    """Whether a batch begins at the bad position and the file's end cuts it short. An append leaves
    this behind when only its process died."""
    window = Window(read, end, SCAN_BYTES)
    if end - position < HEADER_BYTES:
        at = window.locate(position, end - position)
        start = window.buffer[at : at + len(MAGIC)]
        return MAGIC.startswith(start)
    try:
        header = window.header(position)
    except CorruptBatchError:
        return False
    return position + header.length > end
