"""The record batch: unit of append, checksum, compression, replication, disk and wire.

A batch is an 88-byte header and a columnar body, little-endian, every column 8-byte aligned so
that Arrow maps it without a copy. docs/file_formats.md is the normative text.

Header, stamped fields marked *:

    0   4s  magic "JSLB"           40  u32  record_count
    4   u16 version                44  u32  last_offset_delta
    6   u16 flags                  48  u32  uncompressed_length
    8   u32 length                 52  i32  producer_sequence
    12  u32 body_crc               56  i64  producer_id
    16  i64 base_offset *          64  i64  min_timestamp
    24  i64 leader_epoch *         72  i64  max_timestamp
    32  i64 append_timestamp *     80  u32  body_length
                                   84  u32  header_crc *

Body columns, in this order, those after the first only when their flag says so:

    value offsets i32[n+1], value data, value validity
    key offsets i32[n+1], key data, key validity
    header-block offsets i32[n+1], header-block data
    subject: u32 length and bytes, the same for every record; or offsets i32[n+1] and data
    timestamps i64[n]
    offset deltas i32[n]

Invariants. Whoever builds the batch computes `body_crc` once, over the body as stored (compressed,
without padding). The leader stamps three fields and the header CRC again, and nothing else, unless
it encrypts the body (encrypted_body.py). `length` is header + body + padding to 8. A batch covers
the offsets [base_offset, base_offset + last_offset_delta], even where compaction has removed
records. Where it has removed whole batches, the flag AFTER_GAP of the next batch says so.

CRCs prove integrity, not honesty. `Batch.check_columns` must pass before a producer's batch is
appended, or before buffers of unknown origin are given to Arrow (a wild offset crashes the
process).
"""

from __future__ import annotations

import ctypes
import operator
import re
import struct
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, repeat
from typing import NamedTuple

import google_crc32c

from jetstream_protocol import body_compression
from jetstream_protocol.columns import (
    Column,
    Flags,
    Layout,
    ints,
    offsets_grow,
    padded,
    read_layout,
    slices,
)
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.types import WallUs

MAGIC = b"JSLB"
VERSION = 1
BATCH_BYTES_MAX = 64 * 1024 * 1024
"""NATS's own payload limit is 64 MiB; nothing longer can arrive."""
RECORDS_MAX = 1 << 20
"""Bounds what one batch can make a reader allocate."""

_HEADER = struct.Struct("<4sHHIIqqqIIIiqqqII")
HEADER_BYTES = _HEADER.size
_FLAGS = struct.Struct("<H")
_FLAGS_AT = 6
_SEPARATOR = re.compile(rb"[ \t\r\n]")
_STAMP = struct.Struct("<qqq")
_STAMP_AT = 16
_PRODUCER = struct.Struct("<iq")
_PRODUCER_AT = 52
# These read a few fields, several times faster than `decode_header` with its checks.
extent_fields = struct.Struct("<4s2xHI4xq20xI").unpack_from
"""Magic, flags, length, base_offset, last_offset_delta."""
size_fields = struct.Struct("<6xH36xII").unpack_from
"""Flags, last_offset_delta, uncompressed_length."""
producer_fields = struct.Struct("<6xH44xiq").unpack_from
"""Flags, producer_sequence, producer_id."""
_U32 = struct.Struct("<I")
_BODY_LENGTH_AT = 80
_CRC_AT = 84
NO_PRODUCER = -1

crc32c = google_crc32c.value
extend_crc32c = google_crc32c.extend


COMPRESSION_MASK = 3
_KNOWN_FLAGS = 2047
ENCRYPTION_BYTES = 64
"""How many bytes encryption adds to a body (encrypted_body.py)."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in the order of the bytes, without magic and header CRC."""

    version: int
    flags: int
    length: int
    body_crc: int
    base_offset: int
    leader_epoch: int
    append_timestamp: WallUs
    record_count: int
    last_offset_delta: int
    uncompressed_length: int
    producer_sequence: int
    producer_id: int
    min_timestamp: int
    max_timestamp: int
    body_length: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1


def decode_header(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """Decode the header at `position`. Raises CorruptBatchError unless every field is possible.

    The header's CRC is checked; the body's is not (`Batch.decode` does that).
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatchError("batch header cut short", position=position)
    magic, *fields, header_crc = _HEADER.unpack_from(buffer, position)
    if magic != MAGIC:
        raise CorruptBatchError("not a batch: wrong magic", position=position)
    if crc32c(bytes(buffer[position : position + _CRC_AT])) != header_crc:
        raise CorruptBatchError("batch header fails its CRC", position=position)
    header = BatchHeader._make(fields)
    problem = _header_problem(header)
    if problem:
        raise CorruptBatchError(problem, position=position)
    return header


def decode_claims(header: bytes | bytearray) -> BatchHeader:
    """Decode a header as its producer has sent it: whatever the leader stamps, the CRC with it, is
    not looked at, and the stamped fields are 0. Raises CorruptBatchError."""
    magic, *fields, _ = _HEADER.unpack_from(header)
    if magic != MAGIC:
        raise CorruptBatchError("not a batch: wrong magic", position=0)
    fields[4:7] = 0, 0, 0
    claimed = BatchHeader._make(fields)
    problem = _header_problem(claimed)
    if problem:
        raise CorruptBatchError(problem, position=0)
    return claimed


def _header_problem(header: BatchHeader) -> str:
    """Why a header with a good CRC is refused; "": it is accepted."""
    if header.version != VERSION:
        return f"batch version {header.version}; this software reads version {VERSION}"
    if header.flags & ~_KNOWN_FLAGS or header.flags & COMPRESSION_MASK == COMPRESSION_MASK:
        return f"unknown batch flags {header.flags:#x}: written by newer software?"
    if header.flags & Flags.KEY_VALIDITY and not header.flags & Flags.KEYS:
        return "batch flags claim null keys but no keys"
    if header.length != padded(HEADER_BYTES + header.body_length):
        return f"batch length {header.length} does not fit body length {header.body_length}"
    if header.length > BATCH_BYTES_MAX or header.uncompressed_length > BATCH_BYTES_MAX:
        return f"batch longer than {BATCH_BYTES_MAX} bytes"
    plain_length = header.body_length
    if header.flags & Flags.ENCRYPTED:
        plain_length -= ENCRYPTION_BYTES
    if plain_length < 0:
        return "an encrypted batch body cut short"
    if not header.flags & COMPRESSION_MASK and header.uncompressed_length != plain_length:
        return "uncompressed length differs from body length of an uncompressed batch"
    if header.record_count > RECORDS_MAX or header.last_offset_delta >= RECORDS_MAX:
        return f"batch of more than {RECORDS_MAX} records"
    if header.record_count > header.last_offset_delta + 1:
        return "batch has more records than offsets"
    if header.base_offset < 0 or header.leader_epoch < 0:
        return "negative offset or leader epoch"
    return ""


class EncodedBatch:
    """A batch ready to append: `header` is stamped in place, `body` never changes.

    `body` includes the padding, so `len(header) + len(body) == length`. is_as_stored: a log has
    appended exactly these bytes; one that encrypts has not.
    """

    __slots__ = ("body", "header", "is_as_stored", "last_offset_delta", "length", "record_count")

    def __init__(
        self, header: bytearray, body: bytes, record_count: int, last_offset_delta: int
    ) -> None:
        self.header = header
        self.body = body
        self.length = len(header) + len(body)
        self.record_count = record_count
        self.last_offset_delta = last_offset_delta
        self.is_as_stored = False

    @property
    def fits(self) -> bool:
        """Whether readers accept a batch of this size, encrypted or not."""
        return (
            self.length <= BATCH_BYTES_MAX - ENCRYPTION_BYTES and self.record_count <= RECORDS_MAX
        )

    @property
    def plain_body(self) -> bytes:
        """The body without its padding."""
        (length,) = _U32.unpack_from(self.header, _BODY_LENGTH_AT)
        return self.body[:length]

    def set_producer(self, producer_id: int, sequence: int) -> None:
        """Write the producer's two fields. A producer may renumber batches not sent yet."""
        _PRODUCER.pack_into(self.header, _PRODUCER_AT, sequence, producer_id)

    def stamp(self, base_offset: int, leader_epoch: int, append_timestamp: WallUs) -> None:
        """Write the leader's three fields and the header CRC."""
        header = self.header
        _STAMP.pack_into(header, _STAMP_AT, base_offset, leader_epoch, append_timestamp)
        _U32.pack_into(header, _CRC_AT, crc32c(bytes(header[:_CRC_AT])))

    def to_bytes(self) -> bytes:
        return bytes(self.header) + self.body


def with_flags(data: bytes, flags: int) -> bytes:
    """Return the batch in `data` with other flags."""
    header = bytearray(data[:HEADER_BYTES])
    _FLAGS.pack_into(header, _FLAGS_AT, flags)
    _U32.pack_into(header, _CRC_AT, crc32c(bytes(header[:_CRC_AT])))
    return bytes(header) + data[HEADER_BYTES:]


class _BodyBuilder:
    """Collects columns, each aligned to 8 bytes."""

    __slots__ = ("length", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def add(self, data: bytes) -> None:
        self.parts.append(data)
        self._added(len(data))

    def _added(self, length: int) -> None:
        self.length += length
        padding = -self.length & 7
        if padding:
            self.parts.append(bytes(padding))
            self.length += padding

    def add_strings(self, items: Sequence[bytes]) -> None:
        """Add an offsets column and a data column. The items are copied only when the body is
        built."""
        offsets = array("i", accumulate(map(len, items), initial=0))
        self.add(offsets.tobytes())
        self.parts += items
        self._added(offsets[-1])

    def add_nullable(self, items: Sequence[bytes | None], nulls: bool) -> None:
        """Like `add_strings`; if `nulls`, with an Arrow validity bitmap (bit set: present) after
        it."""
        if not nulls:
            self.add_strings(items)  # type: ignore[arg-type]  # the caller found no None
            return
        self.add_strings([item or b"" for item in items])
        # Binary digits, last record first: `int` converts base-two text in linear time.
        digits = "".join(["0" if item is None else "1" for item in reversed(items)])
        self.add(int(digits or "0", 2).to_bytes((len(items) + 7) // 8, "little"))


def encode(
    values: Sequence[bytes | None],
    subjects: bytes | Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    header_blocks: Sequence[bytes] | None = None,
    timestamps: Sequence[int] | None = None,
    offset_deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    producer_id: int = NO_PRODUCER,
    producer_sequence: int = -1,
    compression: int = 0,
    after_gap: bool = False,
) -> EncodedBatch:
    """Build a batch of `len(values)` records, not yet stamped.

    values, keys: None is null (for a value: a tombstone). subjects: one for all, or one each.
    header_blocks: raw NATS header blocks, b"" for none. timestamps: µs; without them every record's
    timestamp is the append timestamp. offset_deltas, last_offset_delta, after_gap: only after
    compaction. compression: 0, Flags.ZSTD or Flags.LZ4. No reader accepts a batch longer than
    BATCH_BYTES_MAX or of more than RECORDS_MAX records: callers with more must split it.
    """
    count = len(values)
    assert count or last_offset_delta is not None, "a batch covers at least one offset"
    flags = 0
    body = _BodyBuilder()
    if None in values:
        flags |= Flags.VALUE_VALIDITY
    body.add_nullable(values, bool(flags))
    if keys is not None:
        flags |= Flags.KEYS
        nulls = None in keys
        flags |= Flags.KEY_VALIDITY if nulls else 0
        body.add_nullable(keys, nulls)
    if header_blocks is not None:
        flags |= Flags.HEADERS
        body.add_strings(header_blocks)
    flags |= _add_subjects(body, subjects)
    min_timestamp = max_timestamp = 0
    if timestamps is not None:
        flags |= Flags.TIMESTAMPS
        min_timestamp = min(timestamps, default=0)
        max_timestamp = max(timestamps, default=0)
        body.add(array("q", timestamps).tobytes())
    if offset_deltas is not None:
        flags |= Flags.OFFSET_DELTAS
        body.add(array("i", offset_deltas).tobytes())
    if after_gap:
        flags |= Flags.AFTER_GAP
    if last_offset_delta is None:
        last_offset_delta = count - 1

    data = b"".join(body.parts)
    uncompressed_length = len(data)
    if compression:
        flags |= compression
        data = body_compression.compress(data, compression)
    return seal(
        flags, data, count, last_offset_delta, uncompressed_length,
        producer_sequence, producer_id, (min_timestamp, max_timestamp),
    )  # fmt: skip


def seal(
    flags: int,
    data: bytes,
    count: int,
    last_offset_delta: int,
    uncompressed_length: int,
    producer_sequence: int = -1,
    producer_id: int = NO_PRODUCER,
    timestamps: tuple[int, int] = (0, 0),
) -> EncodedBatch:
    """Put a header before padded columns; not yet stamped. timestamps: least and greatest, µs."""
    length = padded(HEADER_BYTES + len(data))
    padding = length - HEADER_BYTES - len(data)
    header = bytearray(HEADER_BYTES)
    _HEADER.pack_into(
        header, 0, MAGIC, VERSION, flags, length, crc32c(data), 0, 0, 0, count, last_offset_delta,
        uncompressed_length, producer_sequence, producer_id, *timestamps, len(data), 0,
    )  # fmt: skip
    return EncodedBatch(header, data + bytes(padding), count, last_offset_delta)


def _add_subjects(body: _BodyBuilder, subjects: bytes | Sequence[bytes]) -> int:
    """Add the subject column in its shorter form, and return the flag that it needs."""
    if not isinstance(subjects, bytes):
        if not subjects or subjects.count(subjects[0]) != len(subjects):
            body.add_strings(subjects)
            return Flags.SUBJECT_COLUMN
        subjects = subjects[0]
    body.add(_U32.pack(len(subjects)) + subjects)
    return 0


# google_crc32c takes bytes and other buffers that cannot move. A bytearray and its views can move;
# this type cannot. It has one size, because ctypes makes a new type for each size.
_Piece = ctypes.c_char * (32 * 1024)
_TAKES_PIECES = google_crc32c.implementation == "c"


def _part(
    buffer: bytes | bytearray | memoryview, start: int, stop: int
) -> tuple[bytes | memoryview, int]:
    """Part of a buffer, and its CRC. The part of a bytearray is a view, so that received bytes are
    not copied."""
    view = memoryview(buffer)[start:stop]
    if not isinstance(buffer, bytearray) or not _TAKES_PIECES:
        copy = bytes(view)
        return copy, crc32c(copy)
    crc, at = 0, start
    while stop - at >= ctypes.sizeof(_Piece):
        crc = google_crc32c.extend(crc, _Piece.from_buffer(buffer, at))
        at += ctypes.sizeof(_Piece)
    return view.toreadonly(), google_crc32c.extend(crc, bytes(view[at - start :]))


class Batch:
    """A decoded view of one batch. Columns are cut out when they are needed; records cost nothing.

    `decode` checks both CRCs and that the columns lie within the body; `check_columns` checks
    every record's bounds. body: a view if a bytearray was decoded, which must not change then.
    """

    __slots__ = ("body", "header", "layout")

    def __init__(self, header: BatchHeader, body: bytes | memoryview, layout: Layout) -> None:
        self.header = header
        self.body = body
        self.layout = layout

    @classmethod
    def decode(cls, buffer: bytes | bytearray | memoryview, position: int = 0) -> Batch:
        """Decode the batch at `position`. Raises CorruptBatchError, which has the position."""
        header = decode_header(buffer, position)
        end = position + header.length
        if end > len(buffer):
            raise CorruptBatchError("batch cut short", position=position)
        start = position + HEADER_BYTES
        stop = start + header.body_length
        body, body_crc = _part(buffer, start, stop)
        if body_crc != header.body_crc or any(bytes(memoryview(buffer)[stop:end])):
            raise CorruptBatchError("batch body fails its CRC", position=position)
        try:
            return cls.of_checked(header, body)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, position=position) from error

    @classmethod
    def of(cls, header: BatchHeader, data: bytes) -> Batch:
        """The batch made of a header and the bytes after it, padding included. Raises
        CorruptBatchError."""
        body = data[: header.body_length]  # The same object where there is no padding.
        if crc32c(body) != header.body_crc or any(data[header.body_length :]):
            raise CorruptBatchError("batch body fails its CRC")
        return cls.of_checked(header, body)

    @classmethod
    def of_checked(cls, header: BatchHeader, body: bytes | memoryview) -> Batch:
        """The batch made of a header and a stored body (without padding) whose CRCs were checked.

        Raises CorruptBatchError unless the columns lie within the body.
        """
        if header.flags & Flags.ENCRYPTED:
            raise CorruptBatchError("the batch is encrypted: a server with its key can read it")
        compression = header.flags & COMPRESSION_MASK
        if compression:
            body = body_compression.decompress(body, compression, header.uncompressed_length)
        return cls(header, body, read_layout(body, header.record_count, header.flags))

    def __len__(self) -> int:
        return self.header.record_count

    def check_columns(self) -> None:
        """Raise CorruptBatchError unless every record lies within its columns.

        Takes a few nanoseconds per record. Needed for bytes from outside, not for the server's own.
        """
        layout = self.layout
        for name, column in (
            ("value", layout.values),
            ("key", layout.keys),
            ("header", layout.header_blocks),
            ("subject", layout.subjects),
        ):
            if column is None:
                continue
            if not offsets_grow(self.body, column.offsets, len(self)):
                raise CorruptBatchError(f"{name} offsets do not start at 0 and grow")
        self._check_subjects()
        self._check_positions()

    def _check_subjects(self) -> None:
        """**safety** Between white space NATS reads commands: none may be sent with a record."""
        layout = self.layout
        found = layout.subject if layout.subjects is None else self.data(layout.subjects)
        if _SEPARATOR.search(found):
            raise CorruptBatchError("a subject has white space")
        try:
            if layout.subjects is None:
                layout.subject.decode()
            elif not found.isascii():
                for subject in self.subjects():
                    subject.decode()
        except UnicodeDecodeError as error:
            raise CorruptBatchError("a subject is not UTF-8") from error

    def _check_positions(self) -> None:
        header = self.header
        self.check_count()
        if self.layout.offset_deltas >= 0:
            deltas = ints(self.body, self.layout.offset_deltas, len(self), "i")
            increasing = all(map(operator.lt, deltas, islice(deltas, 1, None)))
            if deltas and (deltas[0] < 0 or deltas[-1] > header.last_offset_delta):
                increasing = False
            if not increasing:
                raise CorruptBatchError("offset deltas do not grow within the batch")
        least = greatest = 0
        if self.layout.timestamps >= 0:
            timestamps = self.timestamps()
            least, greatest = min(timestamps, default=0), max(timestamps, default=0)
        if (header.min_timestamp, header.max_timestamp) != (least, greatest):
            raise CorruptBatchError("timestamp bounds differ from the timestamps")

    def check_count(self) -> None:
        """Raise CorruptBatchError unless the offsets are as many as the records."""
        if self.layout.offset_deltas < 0 and len(self) != self.header.last_offset_delta + 1:
            raise CorruptBatchError("record count and last offset delta disagree")

    def values(self) -> list[bytes | None]:
        """Each record's value; None: a tombstone."""
        return self._nullable(self.layout.values)

    def keys(self) -> list[bytes | None]:
        """Each record's key; None: no key."""
        if self.layout.keys is None:
            return [None] * len(self)
        return self._nullable(self.layout.keys)

    def header_blocks(self) -> list[bytes]:
        """Each record's raw NATS header block; b"": none."""
        if self.layout.header_blocks is None:
            return [b""] * len(self)
        return self._strings(self.layout.header_blocks)

    def subjects(self) -> list[bytes]:
        if self.layout.subjects is None:
            return [self.layout.subject] * len(self)
        return self._strings(self.layout.subjects)

    def timestamps(self) -> list[int]:
        """Each record's timestamp in µs: its producer's, else the append timestamp."""
        if self.layout.timestamps < 0:
            return [self.header.append_timestamp] * len(self)
        return ints(self.body, self.layout.timestamps, len(self), "q")

    def offsets(self) -> Sequence[int]:
        base = self.header.base_offset
        if self.layout.offset_deltas < 0:
            return range(base, base + len(self))
        deltas = ints(self.body, self.layout.offset_deltas, len(self), "i")
        return list(map(operator.add, repeat(base), deltas))

    def ends(self, column: Column) -> list[int]:
        """Where each item of a column ends within the column's data."""
        return self._column_offsets(column)[1:]

    def _column_offsets(self, column: Column) -> list[int]:
        return ints(self.body, column.offsets, len(self) + 1, "i")

    def data(self, column: Column) -> bytes:
        """All items of a column, back to back."""
        return bytes(self.body[column.data : column.data + column.data_length])

    def _strings(self, column: Column) -> list[bytes]:
        items = slices(self.body, column.offsets, column.data, len(self))
        if items is None:
            raise CorruptBatchError("the offsets of a column do not start at 0 and grow")
        return items

    def _nullable(self, column: Column) -> list[bytes | None]:
        items: list[bytes | None] = self._strings(column)  # type: ignore[assignment]
        if column.validity >= 0:
            bits = int.from_bytes(
                self.body[column.validity : column.validity + (len(self) + 7) // 8], "little"
            )
            digits = f"{bits:0{len(items)}b}"[::-1]
            items = [
                item if digit == "1" else None for item, digit in zip(items, digits, strict=False)
            ]
        return items


def iterate(buffer: bytes | bytearray | memoryview, *, file: str = "") -> Iterator[Batch]:
    """Decode the whole batches that `buffer` consists of. Raises CorruptBatchError."""
    position = 0
    while position < len(buffer):
        try:
            batch = Batch.decode(buffer, position)
        except CorruptBatchError as error:
            raise CorruptBatchError(error.reason, file, position) from error
        yield batch
        position += batch.header.length
