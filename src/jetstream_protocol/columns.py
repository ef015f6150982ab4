"""The columns of a batch's body: where each begins, and how rows are cut out of them.

Nothing here looks at a record before its rows are needed. Cutting rows out is the hot path of
every reader that wants Python objects: `_slices.pyx` does it in C if the extension was built.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import islice
from typing import NamedTuple, TypeAlias

from jetstream_protocol import body_compression
from jetstream_protocol.errors import CorruptBatchError

# Columns are written and viewed in the machine's own order.
assert sys.byteorder == "little", "jetstream needs a little-endian machine"

Body: TypeAlias = bytes | memoryview

_U32 = struct.Struct("<I")


class Flags(IntEnum):
    """Which columns a body has, how it is compressed (the two lowest bits are one number), and
    whether it is encrypted.

    Not an `IntFlag`: its operators take a microsecond each, which slows readers of small batches.
    """

    ZSTD = body_compression.ZSTD
    LZ4 = body_compression.LZ4
    VALUE_VALIDITY = 4
    KEYS = 8
    KEY_VALIDITY = 16
    HEADERS = 32
    SUBJECT_COLUMN = 64
    TIMESTAMPS = 128
    OFFSET_DELTAS = 256
    AFTER_GAP = 512
    ENCRYPTED = 1024


def padded(length: int) -> int:
    """Round up to a multiple of 8: columns begin there."""
    return (length + 7) & ~7


def ints(body: Body, position: int, count: int, code: str) -> list[int]:
    """Read `count` integers. code: "i" for 32 bits, "q" for 64."""
    width = 4 if code == "i" else 8
    column: array[int] = array(code)
    column.frombytes(body[position : position + width * count])
    return column.tolist()


def pure_slices(body: Body, offsets_at: int, data_at: int, count: int) -> list[bytes] | None:
    """The items of a column of byte strings; None if its offsets do not start at 0 or ever fall."""
    offsets = ints(body, offsets_at, count + 1, "i")
    data = bytes(body[data_at : data_at + max(0, offsets[-1])])
    items = [data[a:b] for a, b in zip(offsets, islice(offsets, 1, None), strict=False)]
    return items if _grow(offsets) else None


def pure_offsets_grow(body: Body, offsets_at: int, count: int) -> bool:
    """Whether the `count + 1` offsets of a column start at 0 and never fall."""
    return _grow(ints(body, offsets_at, count + 1, "i"))


def _grow(offsets: Sequence[int]) -> bool:
    return offsets[0] == 0 and all(map(operator.le, offsets, islice(offsets, 1, None)))


slices: Callable[[Body, int, int, int], list[bytes] | None] = pure_slices
offsets_grow: Callable[[Body, int, int], bool] = pure_offsets_grow
try:
    from jetstream_protocol import _slices
except ImportError:  # Built without a C compiler, or JETSTREAM_PURE is set.
    pass
else:
    slices, offsets_grow = _slices.slices, _slices.offsets_grow


class Column(NamedTuple):
    """A column of byte strings: positions in the body. `validity` is -1 if every item is
    present."""

    offsets: int
    data: int
    data_length: int
    validity: int


class Layout(NamedTuple):
    """Where each column of a body begins. Found in O(1), without looking at the records."""

    values: Column
    keys: Column | None
    header_blocks: Column | None
    subjects: Column | None
    subject: bytes  # the constant subject where there is no column
    timestamps: int  # -1: none
    offset_deltas: int  # -1: none


class _LayoutReader:
    """Walks a body's columns, and refuses to step outside of the body."""

    __slots__ = ("body", "count", "end", "position")

    def __init__(self, body: bytes | memoryview, count: int) -> None:
        self.body = body
        self.count = count
        self.position = 0
        self.end = len(body)

    def take(self, length: int) -> int:
        start = self.position
        if start + length > self.end:
            raise CorruptBatchError("a column reaches beyond the end of the batch")
        self.position = padded(start + length)
        return start

    def strings(self, nullable: bool) -> Column:
        offsets = self.take(4 * (self.count + 1))
        (data_length,) = _U32.unpack_from(self.body, offsets + 4 * self.count)
        data = self.take(data_length)
        validity = self.take((self.count + 7) // 8) if nullable else -1
        return Column(offsets, data, data_length, validity)


def plain_values(body: Body, count: int) -> Column:
    """The values of a body that begins with them, none of them null."""
    (data_length,) = _U32.unpack_from(body, 4 * count)
    return Column(0, padded(4 * (count + 1)), data_length, -1)


def _plain_layout(body: bytes | memoryview, count: int) -> Layout | None:
    """What `read_layout` finds where there are only values and a subject, as in most small batches;
    None: something is wrong with it."""
    end, data = len(body), padded(4 * (count + 1))
    if data <= end:
        (data_length,) = _U32.unpack_from(body, 4 * count)
        at = padded(data + data_length)
        if at + 4 <= end:
            (length,) = _U32.unpack_from(body, at)
            if padded(at + 4 + length) == end:
                subject = bytes(body[at + 4 : at + 4 + length])
                values = Column(0, data, data_length, -1)
                return Layout(values, None, None, None, subject, -1, -1)
    return None


def read_layout(body: bytes | memoryview, count: int, flags: int) -> Layout:
    found = None if flags else _plain_layout(body, count)
    if found is not None:
        return found
    reader = _LayoutReader(body, count)
    values = reader.strings(bool(flags & Flags.VALUE_VALIDITY))
    keys = reader.strings(bool(flags & Flags.KEY_VALIDITY)) if flags & Flags.KEYS else None
    header_blocks = reader.strings(False) if flags & Flags.HEADERS else None
    subjects = None
    subject = b""
    if flags & Flags.SUBJECT_COLUMN:
        subjects = reader.strings(False)
    else:
        at = reader.take(4)
        (length,) = _U32.unpack_from(body, at)
        reader.position = at  # length and bytes are one column
        reader.take(4 + length)
        subject = bytes(body[at + 4 : at + 4 + length])
    timestamps = reader.take(8 * count) if flags & Flags.TIMESTAMPS else -1
    offset_deltas = reader.take(4 * count) if flags & Flags.OFFSET_DELTAS else -1
    if reader.position != len(body):
        raise CorruptBatchError("batch body is longer than its columns")
    return Layout(values, keys, header_blocks, subjects, subject, timestamps, offset_deltas)
