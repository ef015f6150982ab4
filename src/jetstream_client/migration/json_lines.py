"""Records as JSON: an object on each line, as `jetstream export` and other systems write them."""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from jetstream_client.migration.file_records import (
    Defaults,
    RecordsOfFile,
    checked_block,
    header_block_of,
    timestamp_of,
)
from jetstream_client.migration.records import Records

ROWS = 10_000
_SPACE = re.compile(r"[ \t\r\n]*")


class _Row(NamedTuple):
    line: int
    offset: int | None
    timestamp: int | None
    subject: bytes | None
    key: bytes | None
    value: bytes | None
    header_block: bytes | None


def read(path: Path, defaults: Defaults) -> Iterator[Records]:
    """Raises InvalidRequestError, which names the line that is wrong."""
    file_records = RecordsOfFile(path, "line", defaults)
    rows: list[_Row] = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            if not line.strip():
                continue
            try:
                rows.append(_row(number, line))
            except (ValueError, RecursionError) as error:
                raise file_records.row_error(number, error) from error
            if len(rows) == ROWS:
                yield file_records.complete(*zip(*rows, strict=True))
                rows = []
    if rows:
        yield file_records.complete(*zip(*rows, strict=True))


def _row(number: int, line: bytes) -> _Row:
    """Raises ValueError."""
    text = _text_of(line)
    try:
        fields = json.loads(text, parse_constant=_no_number)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(fields, dict):
        raise ValueError('it is no JSON object, such as {"value": "text"}')
    if "value" not in fields:
        raise ValueError('it has no field "value"')
    subject, timestamp = fields.get("subject"), fields.get("timestamp")
    if subject is not None and not isinstance(subject, str):
        raise ValueError(f"subject {subject!r}: it must be text")
    return _Row(
        number,
        _offset(fields.get("offset")),
        None if timestamp is None else timestamp_of(timestamp),
        None if subject is None else _encode("subject", subject, "surrogateescape"),
        _bytes(fields, "key", text),
        _bytes(fields, "value", text),
        _header_block(fields, text),
    )


def _text_of(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8, at byte {error.start + 1}") from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"it is no JSON: {name}")


def _offset(offset: object) -> int | None:
    if offset is not None and (not isinstance(offset, int) or isinstance(offset, bool)):
        raise ValueError(f"offset {offset!r}: it must be a whole number")
    return offset


def _bytes(fields: dict[str, Any], name: str, line: str) -> bytes | None:
    """The bytes that a text stands for; of anything else but null its JSON text, as it is in the
    line."""
    given, encoding = fields.get(name), fields.get(f"{name}_encoding")
    if given is None:
        return None
    if encoding not in (None, "utf8", "base64"):
        raise ValueError(f'{name}_encoding {encoding!r}: it must be "utf8" or "base64"')
    if not isinstance(given, str):
        if encoding is not None:
            raise ValueError(f'{name} must be text: its "{name}_encoding" is "{encoding}"')
        return _encode(name, _texts(line)[name])
    if encoding != "base64":
        return _encode(name, given)
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{name} is not base64: {error}") from None


def _encode(name: str, text: str, errors: str = "strict") -> bytes:
    try:
        return text.encode("utf-8", errors)
    except UnicodeEncodeError:
        raise ValueError(f"{name} holds half of a surrogate pair, which is no text") from None


def _texts(line: str) -> dict[str, str]:
    """The fields of a valid JSON object, as they are in the line: numbers keep all their digits."""

    def skip_space(position: int) -> int:
        found = _SPACE.match(line, position)
        assert found is not None
        return found.end()

    decode = json.JSONDecoder().raw_decode
    texts: dict[str, str] = {}
    at = skip_space(skip_space(0) + len("{"))
    while line[at] != "}":
        name, at = decode(line, at)
        start = skip_space(skip_space(at) + len(":"))
        _, end = decode(line, start)
        texts[name] = line[start:end]
        at = skip_space(end)
        if line[at] == ",":
            at = skip_space(at + 1)
    return texts


def _header_block(fields: dict[str, Any], line: str) -> bytes | None:
    """`jetstream export` writes both: the block, in which nothing is lost, and its headers."""
    if "header_block" in fields:
        block = _bytes(fields, "header_block", line)
        try:
            return block if "headers" in fields else checked_block(block)
        except ValueError as error:
            raise ValueError(f"header_block: {error}") from None
    headers = fields.get("headers")
    if headers is None:
        return None
    if not isinstance(headers, dict):
        raise ValueError(f"headers {headers!r}: it must be an object of texts")
    return header_block_of(headers)
