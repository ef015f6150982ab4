"""The formats of records over HTTP: lines of JSON, server-sent events, CSV, Arrow.

A row has the fields of `jetstream fetch --json` (record_json.py). Bytes that no text can hold, of
headers and subjects, become "?". Arrow needs pyarrow, which is loaded when it is first asked for.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.record_json import record_row
from jetstream_server.serving.http.openapi_schemas import RECORD, TEXT, described, ref
from jetstream_server.serving.http.operations import Schema
from jetstream_server.serving.http.server import error_body

_FIELDS = tuple(RECORD["required"])

Row = dict[str, Any]


class Columns:
    """The columns of a batch, each decoded once. bytes_max: of a key, of a value and of the headers
    of a row; None: all. Raises CorruptBatchError."""

    def __init__(self, batch: Batch, bytes_max: int | None = None) -> None:
        self._bytes_max = bytes_max
        self.offsets, self.timestamps = batch.offsets(), batch.timestamps()
        self.subjects, self.keys, self.values = batch.subjects(), batch.keys(), batch.values()
        self.header_blocks = batch.header_blocks()

    def rows(self, indexes: Sequence[int]) -> list[Row]:
        return list(map(self._row, indexes))

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
    comes; b"": nothing. is_cut: whether `bytes_max` may be asked for."""

    name: str
    content_type: str
    schema: Schema
    follows: bool
    keep_alive: bytes
    is_cut: bool

    @property
    def is_there(self) -> bool:
        """Whether this node can write it."""

    def head(self) -> bytes:
        """What an answer begins with."""

    def encode(self, columns: Columns, indexes: Sequence[int]) -> bytes:
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
    is_cut = True

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

    def encode(self, columns: Columns, indexes: Sequence[int]) -> bytes:
        return b"".join(_json(row) + b"\n" for row in columns.rows(indexes))

    def error(self, error: JetstreamError) -> bytes:
        return _json(error_body(error)) + b"\n"


class ServerSentEvents(_Text):
    name = "events"
    content_type = "text/event-stream"
    schema = TEXT
    follows = True
    keep_alive = b":\n\n"

    def encode(self, columns: Columns, indexes: Sequence[int]) -> bytes:
        rows = columns.rows(indexes)
        return b"".join(b"id: %d\ndata: %b\n\n" % (row["offset"], _json(row)) for row in rows)

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
    is_cut = False

    def head(self) -> bytes:
        return (",".join(_FIELDS) + "\r\n").encode()

    def encode(self, columns: Columns, indexes: Sequence[int]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        for row in columns.rows(indexes):
            headers = json.dumps(row["headers"], ensure_ascii=False)
            writer.writerow([*(row[name] for name in _FIELDS[:-1]), headers])
        return text.getvalue().encode("utf-8", "replace")

    def error(self, error: JetstreamError) -> bytes:
        return b""


class ArrowStream:
    """An Arrow IPC stream; a record batch holds some records of one batch (arrow_records.py)."""

    name = "arrow"
    content_type = "application/vnd.apache.arrow.stream"
    schema = described({}, "An Arrow IPC stream.")
    follows = False
    keep_alive = b""
    is_cut = False

    @property
    def is_there(self) -> bool:
        return find_spec("pyarrow") is not None

    def head(self) -> bytes:
        return bytes(_arrow().head())

    def encode(self, columns: Columns, indexes: Sequence[int]) -> bytes:
        return bytes(_arrow().encode(columns, indexes))

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


def _json(row: Row) -> bytes:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
