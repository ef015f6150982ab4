"""The formats of records over HTTP: lines of JSON, server-sent events, CSV.

A row has the fields of `jetstream fetch --json` (record_json.py). Bytes that no text can hold, of
headers and subjects, become "?".
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.record_json import record_row
from jetstream_server.serving.http.operations import Schema
from jetstream_server.serving.http.schemas import RECORD, TEXT, ref
from jetstream_server.serving.http.server import error_body

_FIELDS = tuple(RECORD["properties"])

Row = dict[str, Any]


class Format(Protocol):
    """content_type: of an answer. schema: of a record in it, or of the whole. follows: whether such
    an answer goes on by default. head: what it begins with. keep_alive: what is sent while no
    record comes; b"": nothing."""

    content_type: str
    schema: Schema
    follows: bool
    head: bytes
    keep_alive: bytes

    def encode(self, rows: Iterable[Row]) -> bytes: ...

    def error(self, error: JetstreamError) -> bytes:
        """What says in an answer that has begun that it ends with an error; b"": nothing can."""


class JsonLines:
    content_type = "application/x-ndjson"
    schema = ref("Record")
    follows = False
    head = b""
    keep_alive = b""

    def encode(self, rows: Iterable[Row]) -> bytes:
        return b"".join(_json(row) + b"\n" for row in rows)

    def error(self, error: JetstreamError) -> bytes:
        return _json(error_body(error)) + b"\n"


class ServerSentEvents:
    content_type = "text/event-stream"
    schema = TEXT
    follows = True
    head = b""
    keep_alive = b":\n\n"

    def encode(self, rows: Iterable[Row]) -> bytes:
        return b"".join(b"id: %d\ndata: %b\n\n" % (row["offset"], _json(row)) for row in rows)

    def error(self, error: JetstreamError) -> bytes:
        return b"event: error\ndata: %b\n\n" % _json(error_body(error))


class Csv:
    """headers: as JSON."""

    content_type = "text/csv"
    schema = TEXT
    follows = False
    head = (",".join(_FIELDS) + "\r\n").encode()
    keep_alive = b""

    def encode(self, rows: Iterable[Row]) -> bytes:
        text = io.StringIO()
        writer = csv.writer(text)
        for row in rows:
            headers = json.dumps(row["headers"], ensure_ascii=False)
            writer.writerow([*(row[name] for name in _FIELDS[:-1]), headers])
        return text.getvalue().encode("utf-8", "replace")

    def error(self, error: JetstreamError) -> bytes:
        return b""


FORMATS: tuple[Format, ...] = (JsonLines(), ServerSentEvents(), Csv())
"""The first is the default."""


def rows_of(batch: Batch, indexes: Sequence[int]) -> list[Row]:
    """Those rows of a batch. Raises CorruptBatchError."""
    offsets, timestamps, subjects = batch.offsets(), batch.timestamps(), batch.subjects()
    keys, values, blocks = batch.keys(), batch.values(), batch.header_blocks()
    return [
        record_row(
            offsets[at],
            timestamps[at],
            subjects[at].decode("utf-8", "surrogateescape"),
            keys[at],
            values[at],
            blocks[at],
        )
        for at in indexes
    ]


def _json(row: Row) -> bytes:
    text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
    return text.encode("utf-8", "replace")
