"""The formats of records over HTTP: lines of JSON, server-sent events, CSV, Arrow.

A row has the fields of `jetstream fetch --json` (record_json.py). Bytes that no text can hold, of
headers and subjects, become "?". Arrow needs pyarrow, which is loaded when it is first asked for.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.record_json import record_row
from jetstream_protocol.typed_rows import TypedRows, json_of
from jetstream_server.serving.http.openapi_schemas import RECORD, TEXT, described, ref
from jetstream_server.serving.http.operations import Schema
from jetstream_server.serving.http.server import error_body

_FIELDS = tuple(RECORD["required"])

PIECE_BYTES = 64 * 1024
"""Of a large answer about so much is made at a time: a text of control characters is six times as
long in JSON."""

Row = dict[str, Any]


class Columns:
    """The columns of a batch, each decoded once. bytes_max: of a key, of a value, of the headers
    and of the fields of a row; None: all. typed: reads the fields. Raises CorruptBatchError."""

    def __init__(
        self, batch: Batch, bytes_max: int | None = None, typed: TypedRows | None = None
    ) -> None:
        self._bytes_max = bytes_max
        self._typed = typed
        self.offsets, self.timestamps = batch.offsets(), batch.timestamps()
        self.subjects, self.keys, self.values = batch.subjects(), batch.keys(), batch.values()
        self.header_blocks = batch.header_blocks()

    def is_large(self, indexes: Sequence[int]) -> bool:
        """Whether these records are not to be encoded in one piece."""
        parts = (self.keys, self.values, self.header_blocks)
        return sum(len(part[at] or b"") for part in parts for at in indexes) > 8 * PIECE_BYTES

    def rows(self, indexes: Sequence[int]) -> list[Row]:
        rows = list(map(self._row, indexes))
        if self._typed is not None:
            found = self._typed.of([self.values[at] for at in indexes])
            for row, fields in zip(rows, found, strict=True):
                row["fields"] = json_of(fields, self._bytes_max)
        return rows

    def _row(self, at: int) -> Row:
        key, value, block = self.keys[at], self.values[at], self.header_blocks[at]
        sizes: Row = {}
        if self._bytes_max is not None:
            sizes = {
                "key_size": None if key is None else len(key),
                "value_size": None if value is None else len(value),
                "headers_size": len(block),
            }
            key, value = _cut(key, self._bytes_max), _cut(value, self._bytes_max)
            block = block[: self._bytes_max]
        subject = self.subjects[at].decode("utf-8", "surrogateescape")
        row = record_row(self.offsets[at], self.timestamps[at], subject, key, value, block)
        return row | sizes


def _cut(data: bytes | None, most: int) -> bytes | None:
    """The first bytes. A character is left out rather than cut in two."""
    if data is None or len(data) <= most:
        return data
    for end in range(most, max(most - 4, -1), -1):
        try:
            data[:end].decode()
        except UnicodeDecodeError:
            continue
        return data[:end]
    return data[:most]


class Format(Protocol):
    """name: in `format`. content_type: of an answer. schema: of a record in it, or of the whole.
    follows: whether such an answer goes on by default. keep_alive: what is sent while no record
    comes; b"": nothing. has_rows: whether `bytes_max` and `typed` may be asked for."""

    name: str
    content_type: str
    schema: Schema
    follows: bool
    keep_alive: bytes
    has_rows: bool

    @property
    def is_there(self) -> bool:
        """Whether this node can write it."""

    def head(self) -> bytes:
        """What an answer begins with."""

    def pieces(self, columns: Columns, indexes: Sequence[int]) -> Iterator[bytes]:
        """Some records of a batch."""

    def passed(self, offset: int) -> bytes:
        """What says that there are no more wanted records before the offset; b"": nothing can."""

    def tail(self) -> bytes:
        """What an answer ends with that is complete."""

    def error(self, error: JetstreamError) -> bytes:
        """What says in an answer that has begun that it ends with an error; b"": nothing can."""


class _Text:
    is_there = True
    keep_alive = b""
    follows = False
    has_rows = True

    def head(self) -> bytes:
        return b""

    def passed(self, offset: int) -> bytes:
        return b""

    def tail(self) -> bytes:
        return b""


class JsonLines(_Text):
    name = "ndjson"
    content_type = "application/x-ndjson"
    schema = ref("Record")

    def pieces(self, columns: Columns, indexes: Sequence[int]) -> Iterator[bytes]:
        for pieces, _ in _json_rows(columns, indexes):
            yield from pieces
            yield b"\n"

    def error(self, error: JetstreamError) -> bytes:
        return _json(error_body(error)) + b"\n"


class ServerSentEvents(_Text):
    name = "events"
    content_type = "text/event-stream"
    schema = TEXT
    follows = True
    keep_alive = b":\n\n"

    def pieces(self, columns: Columns, indexes: Sequence[int]) -> Iterator[bytes]:
        for pieces, offset in _json_rows(columns, indexes):
            yield b"id: %d\ndata: " % offset
            yield from pieces
            yield b"\n\n"

    def passed(self, offset: int) -> bytes:
        """An event without data, which programs do not see, but continue after."""
        return b"id: %d\n\n" % (offset - 1)

    def error(self, error: JetstreamError) -> bytes:
        return b"event: error\ndata: %b\n\n" % _json(error_body(error))


class Csv(_Text):
    """headers: as JSON."""

    name = "csv"
    content_type = "text/csv"
    schema = TEXT
    has_rows = False

    def head(self) -> bytes:
        return (",".join(_FIELDS) + "\r\n").encode()

    def pieces(self, columns: Columns, indexes: Sequence[int]) -> Iterator[bytes]:
        has_large = columns.is_large(indexes)
        for at, row in zip(indexes, columns.rows(indexes), strict=True):
            row["headers"] = json.dumps(row["headers"], ensure_ascii=False)
            cells = [row[name] for name in _FIELDS]
            is_large = has_large and columns.is_large((at,))
            yield from _csv_pieces(cells) if is_large else (_csv(cells),)

    def error(self, error: JetstreamError) -> bytes:
        return b""


class ArrowStream:
    """An Arrow IPC stream; a record batch holds some records of one batch (arrow_records.py)."""

    name = "arrow"
    content_type = "application/vnd.apache.arrow.stream"
    schema = described({}, "An Arrow IPC stream.")
    follows = False
    keep_alive = b""
    has_rows = False

    @property
    def is_there(self) -> bool:
        return find_spec("pyarrow") is not None

    def head(self) -> bytes:
        return bytes(_arrow().head())

    def pieces(self, columns: Columns, indexes: Sequence[int]) -> Iterator[bytes]:
        yield bytes(_arrow().encode(columns, indexes))

    def passed(self, offset: int) -> bytes:
        return b""

    def tail(self) -> bytes:
        return bytes(_arrow().TAIL)

    def error(self, error: JetstreamError) -> bytes:
        return b""


def _arrow() -> Any:
    return import_module("jetstream_server.serving.http.arrow_records")


FORMATS: tuple[Format, ...] = (JsonLines(), ServerSentEvents(), Csv(), ArrowStream())
"""The first is the default."""


def gathered(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same in fewer pieces."""
    some = bytearray()
    for piece in pieces:
        some += piece
        if len(some) >= PIECE_BYTES:
            yield bytes(some)
            some.clear()
    if some:
        yield bytes(some)


def _json_rows(columns: Columns, indexes: Sequence[int]) -> Iterator[tuple[Iterable[bytes], int]]:
    """Each row in pieces, and its offset."""
    has_large = columns.is_large(indexes)
    for at, row in zip(indexes, columns.rows(indexes), strict=True):
        is_large = has_large and columns.is_large((at,))
        yield _json_pieces(row) if is_large else (_json(row),), row["offset"]


def _json_pieces(value: Any) -> Iterator[bytes]:
    """As `_json`; a long text is never there as a whole once more."""
    if isinstance(value, dict):
        yield b"{"
        for at, (name, each) in enumerate(value.items()):
            yield (b"," if at else b"") + _json(name) + b":"
            yield from _json_pieces(each)
        yield b"}"
    elif isinstance(value, str) and len(value) > PIECE_BYTES:
        yield b'"'
        yield from (_json(some)[1:-1] for some in _cuts(value))
        yield b'"'
    else:
        yield _json(value)


def _csv_pieces(cells: Sequence[Any]) -> Iterator[bytes]:
    """As `_csv`, likewise."""
    for at, cell in enumerate(cells):
        yield b"," if at else b""
        if isinstance(cell, str) and len(cell) > PIECE_BYTES:
            yield b'"'
            yield from (some.replace('"', '""').encode("utf-8", "replace") for some in _cuts(cell))
            yield b'"'
        else:
            yield _csv([cell, 0]).removesuffix(b",0\r\n")  # One alone is quoted if it is empty.
    yield b"\r\n"


def _cuts(text: str) -> Iterator[str]:
    return (text[at : at + PIECE_BYTES] for at in range(0, len(text), PIECE_BYTES))


def _csv(cells: Sequence[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue().encode("utf-8", "replace")


def _json(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
