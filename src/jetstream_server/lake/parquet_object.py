"""One object of the lake as a Parquet file: any engine reads its rows, and we read batches back.

The rows have a column each for what a record has, and perhaps those of the stream's schema, which
only engines read. The headers of the batches, which rows cannot tell, lie in the file's metadata.
`decode_group` puts both together to the bytes that the log held, and checks every checksum.
docs/file_formats.md, "Objects of the lake", is the normative text.

**safety** Nothing is given to Arrow before a CRC has shown that it is unchanged, and nothing of a
size that the metadata claims is made before the size was bounded: damage ends in
CorruptBatchError.

A batch that is not as our encoder writes it (compressed, or with bytes that mean nothing) comes
back plain, with the same records, offsets, epoch, time and producer. `Encoded.changed` counts them.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jetstream_protocol import bounded_json
from jetstream_protocol.arrow_values import integer, integers, null_if_empty, same_text
from jetstream_protocol.batch import (
    BATCH_BYTES_MAX,
    COMPRESSION_MASK,
    HEADER_BYTES,
    Batch,
    BatchHeader,
    crc32c,
    decode_header,
    seal,
)
from jetstream_protocol.columns import Column, Flags, padded
from jetstream_protocol.errors import CorruptBatchError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

if TYPE_CHECKING:
    from jetstream_server.lake.typed_columns import Group, TypedColumns

GROUP_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of batches in a row group, unless one batch alone is longer. It is the unit of a read."""
BATCHES_MAX: Final = 65_536
"""In an object: their headers, in the footer, then take a megabyte at most."""
FOOTER_BYTES_MAX: Final = 16 * 1024 * 1024
"""About 65,536 groups of one batch each. A longer footer is not read."""
STORED_BYTES_MAX: Final = 1024**3
"""Of a row group in the store: its batches, and columns of the schema."""
CHUNKS_MAX: Final = 50_000
"""Columns times row groups. Of each the footer has some 150 bytes."""
VERSION: Final = 1

_TRAILER = struct.Struct("<4sI")
_TRAILER_MAGIC: Final = b"JSLF"
_TAIL = struct.Struct("<I4s")
_PARQUET: Final = b"PAR1"
_HEADERS_KEY: Final = b"jetstream.headers"
_OBJECT_KEY: Final = b"jetstream.object"

_TIMESTAMP = pa.timestamp("us", "UTC")
_COLUMNS: Final = (
    ("offset", pa.int64(), False),
    ("timestamp", _TIMESTAMP, False),
    ("append_timestamp", _TIMESTAMP, False),
    ("leader_epoch", pa.int64(), False),
    ("subject", pa.string(), False),
    ("key", pa.binary(), True),
    ("value", pa.binary(), True),
    ("headers", pa.binary(), True),
)
SCHEMA: Final = pa.schema(
    [
        pa.field(name, kind, nullable, metadata={"PARQUET:field_id": str(at)})
        for at, (name, kind, nullable) in enumerate(_COLUMNS, 1)
    ]
)
"""The field ids are those of the table: they never change."""
_INTEGERS: Final = ("offset", "timestamp", "append_timestamp", "leader_epoch")


class GroupPlace(NamedTuple):
    """A row group: its bytes in the object with their CRC, and what of the batches it has."""

    position: int
    length: int
    crc: int
    batches: int
    rows: int
    raw_length: int


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """What an object holds: the records of [begin, end). The times are append timestamps, in µs."""

    begin: int
    end: int
    rows: int
    raw_length: int
    first_epoch: int
    last_epoch: int
    first_us: int
    last_us: int
    subject_min: str
    subject_max: str


@dataclass(frozen=True, slots=True)
class Encoded:
    """An object to be stored. changed: batches that will not come back to the byte."""

    data: bytes
    facts: ObjectFacts
    changed: int


@dataclass(frozen=True, slots=True)
class Footer:
    """What was read from the end of an object. headers: of all batches, one list for each group."""

    facts: ObjectFacts
    groups: tuple[GroupPlace, ...]
    headers: tuple[tuple[BatchHeader, ...], ...]
    raw_headers: tuple[tuple[bytes, ...], ...]
    metadata: Any

    def group_of(self, offset: int) -> int:
        """The group with the batch that holds `offset`."""
        for at, headers in enumerate(self.headers):
            if offset < headers[-1].next_offset:
                return at
        raise ValueError(f"the object ends at {self.facts.end}")


def encode_batches(given: Iterable[Batch], typed: TypedColumns | None = None) -> Encoded:
    """Make an object of batches in a row, of which a row group at a time is in memory: of all of
    them, or of the first ones if it gets too many columns. typed: what it has of a schema.

    Raises CorruptBatchError: for damaged or encrypted batches, for those that do not continue each
    other, and for more than BATCHES_MAX.
    """
    sink = io.BytesIO()
    places: list[GroupPlace] = []
    headers: list[bytes] = []
    changed = 0
    subjects: list[str] = []
    width = len(SCHEMA) + (0 if typed is None else typed.leaves)
    schema = SCHEMA if typed is None else pa.schema([*SCHEMA, *typed.arrow])
    with pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["subject", *(() if typed is None else typed.strings)],
        # Of text in the fields there may be much, and footers have a limit.
        write_statistics=[*SCHEMA.names, *(() if typed is None else typed.bounded)],
        column_encoding=dict.fromkeys(_INTEGERS, "DELTA_BINARY_PACKED"),
        store_schema=False,
    ) as writer:
        position = len(_PARQUET)
        for batches, columns in _groups(given, typed):
            table = _table(batches)
            stored = [_as_decoded(batch, table, at) for batch, at in _beginnings(batches)]
            group_headers = [each for each, _ in stored]
            headers += group_headers
            if len(headers) > BATCHES_MAX:
                raise CorruptBatchError(f"an object holds at most {BATCHES_MAX} batches")
            changed += sum(is_changed for _, is_changed in stored)
            raw_length = sum(decode_header(each).length for each in group_headers)
            end = position
            if len(table):
                writer.write_table(_beside(table, columns), row_group_size=len(table))
                end = sink.tell()
                bounds = pc.min_max(table["subject"])
                subjects += [bounds["min"].as_py(), bounds["max"].as_py()]
            with sink.getbuffer() as view:
                crc = crc32c(bytes(view[position:end]))
            places.append(
                GroupPlace(position, end - position, crc, len(batches), len(table), raw_length)
            )
            position = end
            if len(places) * width >= CHUNKS_MAX:
                break
        facts = _facts(headers, places, subjects)
        version = 0 if typed is None else typed.version
        writer.add_key_value_metadata(_described(facts, places, headers, version))
    _add_trailer(sink)
    return Encoded(sink.getvalue(), facts, changed)


def _groups(
    given: Iterable[Batch], typed: TypedColumns | None
) -> Iterator[tuple[list[Batch], Group | None]]:
    """The batches by row groups, checked, with their columns of a schema."""
    batches: list[Batch] = []
    columns = None if typed is None else typed.begin()
    length, last = 0, None
    for batch in given:
        header = batch.header
        if last is not None:
            _check_follows(last, header)
        last = header
        batch.check_columns()
        plain = padded(HEADER_BYTES + header.uncompressed_length)
        if plain > BATCH_BYTES_MAX:
            raise CorruptBatchError(f"a batch of {plain} bytes once it is decompressed")
        is_full = columns is not None and columns.is_full
        if batches and (is_full or length + plain > GROUP_BYTES_MAX):
            yield batches, columns
            batches, length = [], 0
            columns = None if typed is None else typed.begin()
        batches.append(batch)
        length += plain
        if columns is not None:
            columns.add(batch)
    if not batches:
        raise CorruptBatchError("an object holds at least one batch")
    yield batches, columns


def _beside(table: Any, columns: Group | None) -> Any:
    if columns is None:
        return table
    typed = columns.take()
    schema = pa.schema([*SCHEMA, *typed.schema])
    return pa.table([*table.columns, *typed.columns], schema=schema)


def _check_follows(last: BatchHeader, header: BatchHeader) -> None:
    is_next = header.base_offset == last.next_offset
    if header.flags & Flags.AFTER_GAP:
        is_next = header.base_offset >= last.next_offset
    if not is_next or header.leader_epoch < last.leader_epoch:
        raise CorruptBatchError(
            f"the batch at offset {header.base_offset} does not follow offset {last.last_offset}"
        )
    if header.append_timestamp < last.append_timestamp:
        raise CorruptBatchError(f"the batch at offset {header.base_offset} goes back in time")


def _beginnings(batches: Sequence[Batch]) -> Iterator[tuple[Batch, int]]:
    row = 0
    for batch in batches:
        yield batch, row
        row += len(batch)


# Batches to rows.


def _table(batches: Sequence[Batch]) -> Any:
    columns = zip(*map(_arrays, batches), strict=True)
    return pa.table([pa.concat_arrays(each) for each in columns], schema=SCHEMA)


def _arrays(batch: Batch) -> list[Any]:
    header, layout, count = batch.header, batch.layout, len(batch)
    if layout.offset_deltas < 0:
        offsets = integers(range(header.base_offset, header.base_offset + count), pa.int64())
    else:
        deltas = _wrapped(batch, pa.int32(), None, (layout.offset_deltas, 4 * count))
        base = integer(header.base_offset, pa.int64())
        offsets = pc.add(deltas.cast(pa.int64()), base)
    appended = pa.repeat(integer(header.append_timestamp, _TIMESTAMP), count)
    timestamps = appended
    if layout.timestamps >= 0:
        timestamps = _wrapped(batch, _TIMESTAMP, None, (layout.timestamps, 8 * count))
    if layout.subjects is None:
        subjects = same_text(layout.subject.decode(), count)
    else:
        subjects = _strings(batch, layout.subjects, pa.string())
    blocks = _strings(batch, layout.header_blocks)
    if layout.header_blocks is not None:
        blocks = null_if_empty(blocks)
    epochs = pa.repeat(integer(header.leader_epoch, pa.int64()), count)
    keys, values = _strings(batch, layout.keys), _strings(batch, layout.values)
    return [offsets, timestamps, appended, epochs, subjects, keys, values, blocks]


def _strings(batch: Batch, column: Column | None, kind: Any = None) -> Any:
    kind, count = kind or pa.binary(), len(batch)
    if column is None:
        return pa.nulls(count, kind)
    validity = None if column.validity < 0 else (column.validity, (count + 7) // 8)
    return _wrapped(
        batch, kind, validity, (column.offsets, 4 * (count + 1)), (column.data, column.data_length)
    )


def _wrapped(batch: Batch, kind: Any, *places: tuple[int, int] | None) -> Any:
    """An array over the batch's own bytes. `check_columns` has shown that they are safe."""
    body = pa.py_buffer(batch.body)
    parts = [None if each is None else body.slice(*each) for each in places]
    return pa.Array.from_buffers(kind, len(batch), parts)


# Rows to batches.


class _Rows:
    """The columns of a row group, each in one piece."""

    def __init__(self, table: Any) -> None:
        self._columns = {
            name: _one_piece(table.column(name), SCHEMA.field(name).type) for name in SCHEMA.names
        }

    def __getitem__(self, name: str) -> Any:
        return self._columns[name]

    def strings(self, name: str, row: int, count: int) -> tuple[bytes, bytes]:
        """Offsets, from 0, and data of the items of these rows."""
        column = self[name]
        _, offsets, data = column.buffers()
        if not count:
            return bytes(4), b""
        places = pa.Array.from_buffers(
            pa.int32(), count + 1, [None, offsets], offset=column.offset + row
        )
        first, last = places[0].as_py(), places[count].as_py()
        shifted = pc.subtract(places, places[0]).buffers()[1]
        items = b"" if data is None else data.slice(first, last - first).to_pybytes()
        return shifted.to_pybytes()[: 4 * (count + 1)], items

    def validity(self, name: str, row: int, count: int) -> bytes:
        column = self[name]
        bitmap, at = column.buffers()[0], column.offset + row
        length = (count + 7) // 8
        mask = (1 << count) - 1
        if bitmap is None:
            return mask.to_bytes(length, "little")
        part: bytes = bitmap.slice(at // 8, (at + count + 7) // 8 - at // 8).to_pybytes()
        bits: int = int.from_bytes(part, "little") >> at % 8 & mask
        return bits.to_bytes(length, "little")

    def integers(self, name: str, row: int, count: int) -> Any:
        column = self[name]
        places = column.buffers()[1]
        return pa.Array.from_buffers(pa.int64(), count, [None, places], offset=column.offset + row)


def _one_piece(column: Any, kind: Any) -> Any:
    pieces = [each for each in column.chunks if len(each)]
    if not pieces:
        return pa.nulls(0, kind)
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)


def _body(header: BatchHeader, rows: _Rows, row: int) -> bytes:
    """The columns of a batch, from its rows, as `batch.encode` writes them."""
    flags, count = header.flags, header.record_count
    parts = [*rows.strings("value", row, count)]
    if flags & Flags.VALUE_VALIDITY:
        parts.append(rows.validity("value", row, count))
    if flags & Flags.KEYS:
        parts += rows.strings("key", row, count)
        if flags & Flags.KEY_VALIDITY:
            parts.append(rows.validity("key", row, count))
    if flags & Flags.HEADERS:
        parts += rows.strings("headers", row, count)
    if flags & Flags.SUBJECT_COLUMN:
        parts += rows.strings("subject", row, count)
    else:
        subject = rows["subject"][row].as_py().encode() if count else b""
        parts.append(struct.pack("<I", len(subject)) + subject)
    if flags & Flags.TIMESTAMPS:
        parts.append(_bytes_of(rows.integers("timestamp", row, count), 8 * count))
    if flags & Flags.OFFSET_DELTAS:
        base = integer(header.base_offset, pa.int64())
        deltas = pc.subtract(rows.integers("offset", row, count), base).cast(pa.int32())
        parts.append(_bytes_of(deltas, 4 * count))
    return b"".join(part + bytes(-len(part) & 7) for part in parts)


def _bytes_of(integers: Any, length: int) -> bytes:
    if not length:
        return b""
    width = length // len(integers)
    buffer: bytes = integers.buffers()[1].slice(integers.offset * width, length).to_pybytes()
    return buffer


def _as_decoded(batch: Batch, table: Any, row: int) -> tuple[bytes, bool]:
    """The header of the batch that `decode_group` will give back, and whether that is another."""
    header = batch.header
    rows = _Rows(table.slice(row, len(batch)))
    body = _body(header, rows, 0)
    flags = header.flags & ~COMPRESSION_MASK
    plain = seal(
        flags, body, header.record_count, header.last_offset_delta, len(body),
        header.producer_sequence, header.producer_id, (header.min_timestamp, header.max_timestamp),
    )  # fmt: skip
    plain.stamp(header.base_offset, header.leader_epoch, header.append_timestamp)
    is_changed = flags != header.flags or decode_header(plain.header).body_crc != header.body_crc
    return bytes(plain.header), is_changed


# The footer.


def _facts(
    headers: Sequence[bytes], places: Sequence[GroupPlace], subjects: Sequence[str]
) -> ObjectFacts:
    first, last = decode_header(headers[0]), decode_header(headers[-1])
    return ObjectFacts(
        begin=first.base_offset,
        end=last.next_offset,
        rows=sum(each.rows for each in places),
        raw_length=sum(each.raw_length for each in places),
        first_epoch=first.leader_epoch,
        last_epoch=last.leader_epoch,
        first_us=first.append_timestamp,
        last_us=last.append_timestamp,
        subject_min=min(subjects, default=""),
        subject_max=max(subjects, default=""),
    )


def _described(
    facts: ObjectFacts, places: Sequence[GroupPlace], headers: Sequence[bytes], version: int
) -> dict[bytes, bytes]:
    whole = b"".join(headers)
    # All first bytes, then all second ones: fields that hardly change take next to nothing.
    planes = b"".join(whole[at::HEADER_BYTES] for at in range(HEADER_BYTES))
    described: dict[str, Any] = {
        "version": VERSION,
        "subject_min": facts.subject_min,
        "subject_max": facts.subject_max,
        "groups": places,
    }
    if version:
        described["schema_version"] = version
    return {
        _HEADERS_KEY: base64.b64encode(zstd.compress(planes, level=3)),
        _OBJECT_KEY: json.dumps(described, separators=(",", ":")).encode(),
    }


def _add_trailer(sink: io.BytesIO) -> None:
    """Put a CRC before the footer, where Parquet leaves room for anything."""
    tail_at = sink.seek(0, io.SEEK_END) - _TAIL.size
    sink.seek(tail_at)
    length, _ = _TAIL.unpack(sink.read())
    sink.seek(tail_at - length)
    footer = sink.read()
    sink.seek(tail_at - length)
    sink.write(_TRAILER.pack(_TRAILER_MAGIC, crc32c(footer)) + footer)


Get = Callable[[int, int], bytes]
"""Reads a range of an object: position, length."""


def read_footer(get: Get, size: int) -> Footer:
    """Read the end of an object of `size` bytes. Raises CorruptBatchError, and what `get`
    raises."""
    if size < len(_PARQUET) + _TRAILER.size + _TAIL.size:
        raise CorruptBatchError("the object is too short to be one of the lake")
    guess = min(size, 64 * 1024)
    tail = _exactly(get, size - guess, guess)
    length, magic = _TAIL.unpack_from(tail, guess - _TAIL.size)
    whole = length + _TAIL.size + _TRAILER.size
    if magic != _PARQUET or length > FOOTER_BYTES_MAX or whole + len(_PARQUET) > size:
        raise CorruptBatchError("the object is not a whole Parquet file")
    if whole > guess:
        tail = _exactly(get, size - whole, whole - guess) + tail
    tail = tail[-whole:]
    trailer, crc = _TRAILER.unpack_from(tail)
    footer = tail[_TRAILER.size :]
    if trailer != _TRAILER_MAGIC or crc32c(footer) != crc:
        raise CorruptBatchError("the footer of the object fails its CRC")
    try:
        metadata = pq.read_metadata(pa.BufferReader(footer))
        return _footer(metadata, size - whole)
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError) as error:
        raise CorruptBatchError(f"the footer of the object cannot be read: {error}") from error


def _exactly(get: Get, position: int, length: int) -> bytes:
    data = get(position, length)
    if len(data) != length:
        raise CorruptBatchError("the object ends early", position=position + len(data))
    return data


def _footer(metadata: Any, data_end: int) -> Footer:
    given = metadata.metadata or {}
    paths = [metadata.schema.column(at).path for at in range(len(SCHEMA))]
    if paths != SCHEMA.names:
        raise CorruptBatchError("the object does not begin with the columns of every stream")
    described = bounded_json.loads(given[_OBJECT_KEY])
    if described["version"] != VERSION:
        raise CorruptBatchError(
            f"an object of version {described['version']}; this reads {VERSION}"
        )
    places = tuple(GroupPlace(*each) for each in described["groups"])
    rows = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
    if [each.rows for each in places if each.rows] != rows:
        raise CorruptBatchError("the row groups of the object are not those it describes")
    raw = _headers(given[_HEADERS_KEY])
    headers = [decode_header(each) for each in raw]
    for before, after in pairwise(headers):
        _check_follows(before, after)
    cut: list[tuple[BatchHeader, ...]] = []
    raw_cut: list[tuple[bytes, ...]] = []
    at, position = 0, len(_PARQUET)
    for place in places:
        mine = tuple(headers[at : at + place.batches])
        _check_place(place, mine, position, data_end)
        cut.append(mine)
        raw_cut.append(tuple(raw[at : at + place.batches]))
        at, position = at + place.batches, place.position + place.length
    if not headers or at != len(headers):
        raise CorruptBatchError("the object describes other batches than it holds")
    facts = _facts(raw, places, [described["subject_min"], described["subject_max"]])
    return Footer(facts, places, tuple(cut), tuple(raw_cut), metadata)


def _check_place(
    place: GroupPlace, headers: Sequence[BatchHeader], position: int, data_end: int
) -> None:
    raw_length = sum(each.length for each in headers)
    if (
        not headers
        or len(headers) != place.batches
        or raw_length != place.raw_length
        or (raw_length > GROUP_BYTES_MAX and len(headers) > 1)
        or sum(each.record_count for each in headers) != place.rows
        or place.position != position
        or not 0 <= place.length <= min(data_end - position, STORED_BYTES_MAX)
    ):
        raise CorruptBatchError("a row group of the object is not as its batches say")


def _headers(packed: bytes) -> list[bytes]:
    try:
        compressed = base64.b64decode(packed, validate=True)
        limit = BATCHES_MAX * HEADER_BYTES
        planes = zstd.ZstdDecompressor().decompress(compressed, max_length=limit + 1)
    except zstd.ZstdError as error:
        raise CorruptBatchError(f"the headers do not decompress: {error}") from error
    count, rest = divmod(len(planes), HEADER_BYTES)
    if rest or count > BATCHES_MAX:
        raise CorruptBatchError("the headers of the object are cut short, or too many")
    whole = bytearray(len(planes))
    for at in range(HEADER_BYTES):
        whole[at::HEADER_BYTES] = planes[at * count : (at + 1) * count]
    return [bytes(whole[at : at + HEADER_BYTES]) for at in range(0, len(whole), HEADER_BYTES)]


def decode_group(footer: Footer, group: int, data: bytes) -> bytes:
    """The batches of a row group, from its bytes in the object. Raises CorruptBatchError."""
    place = footer.groups[group]
    if len(data) != place.length or crc32c(data) != place.crc:
        raise CorruptBatchError("a row group of the object fails its CRC", position=place.position)
    rows = _Rows(_read(footer, group, data))
    built: list[bytes] = []
    row = 0
    for header, raw in zip(footer.headers[group], footer.raw_headers[group], strict=True):
        try:
            body = _body(header, rows, row)
        except (pa.ArrowException, ValueError, IndexError) as error:  # Offsets too far apart.
            raise CorruptBatchError(
                f"the batch at offset {header.base_offset} cannot be made: {error}",
                position=place.position,
            ) from error
        if len(body) != header.body_length or crc32c(body) != header.body_crc:
            raise CorruptBatchError(
                f"the batch at offset {header.base_offset} fails its CRC", position=place.position
            )
        Batch.of(header, body).check_columns()  # A store may lie with checksums that fit.
        built += [raw, body, bytes(header.length - HEADER_BYTES - len(body))]
        row += header.record_count
    return b"".join(built)


def _read(footer: Footer, group: int, data: bytes) -> Any:
    place = footer.groups[group]
    if not place.rows:
        return SCHEMA.empty_table()
    at = sum(1 for each in footer.groups[:group] if each.rows)
    # Columns of integers, lengths and levels come on top of the batches' own bytes.
    chunks = footer.metadata.row_group(at)
    claimed = sum(chunks.column(each).total_uncompressed_size for each in range(len(SCHEMA)))
    if claimed > 2 * place.raw_length + 64 * place.rows + 1024 * 1024:
        raise CorruptBatchError("a row group of the object claims to be longer than its batches")
    try:
        window = pa.PythonFile(_Window(data, place.position), mode="r")
        file = pq.ParquetFile(window, metadata=footer.metadata, pre_buffer=False)
        table = file.read_row_group(at, SCHEMA.names, use_threads=False)
        if not table.schema.equals(SCHEMA) or len(table) != place.rows:
            raise CorruptBatchError("a row group of the object has other columns or rows")
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptBatchError(
            f"a row group of the object cannot be read: {error}", position=place.position
        ) from error
    return table


def has_same_records(one: Batch, other: Batch) -> bool:
    """Whether two batches differ only in how their bytes are stored."""
    facts = [
        (
            header.flags & ~COMPRESSION_MASK, header.base_offset, header.leader_epoch,
            header.append_timestamp, header.record_count, header.last_offset_delta,
            header.producer_sequence, header.producer_id, header.min_timestamp,
            header.max_timestamp,
        )
        for header in (one.header, other.header)
    ]  # fmt: skip
    is_same: bool = facts[0] == facts[1] and _table([one]).equals(_table([other]))
    return is_same


class _Window(io.RawIOBase):
    """A part of a file that is at hand, at its place in the file."""

    def __init__(self, data: bytes, start: int) -> None:
        self._data, self._start, self._at = data, start, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._start + len(self._data)
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        at = self._at - self._start
        if at < 0:
            raise OSError("a part of the object that was not read is asked for")
        stop = len(self._data) if size is None or size < 0 else at + size
        data = self._data[at:stop]
        self._at += len(data)
        return data
