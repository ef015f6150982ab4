"""Records as `jetstream export` writes them: a JSON object on each line."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from jetstream_client.migration.records import Records
from jetstream_client.values.types import to_timestamp_us
from jetstream_protocol.errors import InvalidRequestError

ROWS = 10_000


class _Row(NamedTuple):
    offset: int
    timestamp: int
    subject: bytes
    key: bytes | None
    value: bytes | None
    header_block: bytes | None


def read(path: Path) -> Iterator[Records]:
    """Raises InvalidRequestError, which names the line that is wrong."""
    rows: list[_Row] = []
    last = -1
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = _row(json.loads(line))
                if row.offset <= last:
                    raise ValueError(f"offset {row.offset} after {last}")
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise InvalidRequestError(
                    f"{path}, line {number} is no record as `jetstream export` writes them: {error}"
                ) from error
            last = row.offset
            rows.append(row)
            if len(rows) == ROWS:
                yield _records(rows)
                rows = []
    if rows:
        yield _records(rows)


def _row(values: dict[str, Any]) -> _Row:
    """Raises ValueError, KeyError, TypeError."""
    offset = values["offset"]
    if not isinstance(offset, int) or offset < 0:
        raise ValueError(f"offset {offset!r}")
    return _Row(
        offset,
        to_timestamp_us(datetime.fromisoformat(values["timestamp"])),
        values["subject"].encode("utf-8", "surrogateescape"),
        _decoded(values, "key"),
        _decoded(values, "value"),
        _decoded(values, "header_block"),
    )


def _decoded(values: dict[str, Any], name: str) -> bytes | None:
    text = values[name]
    if text is None:
        return None
    encoding = values[f"{name}_encoding"]
    if encoding == "utf8":
        return bytes(text.encode())
    if encoding != "base64":
        raise ValueError(f"{name}_encoding {encoding!r}")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{name}: {error}") from error


def _records(rows: list[_Row]) -> Records:
    offsets, timestamps, subjects, keys, values, blocks = zip(*rows, strict=True)
    return Records(offsets, timestamps, subjects, keys, values, [block or b"" for block in blocks])
