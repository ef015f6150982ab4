"""Records that come over HTTP: a body as a batch.

A body of `application/x-ndjson` or `application/json` has one object a line for each record, in the
form in which records are read (record_json.py): `value`, `key`, their encodings, `headers`. What
only a stored record has (`offset`, `timestamp`) is ignored, so what was read may be written back. A
body of another type is the value of one record.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.header_names import HEADER_NAME
from jetstream_server.serving.http.openapi_schemas import RECORD

BODY_BYTES_MAX = 1024 * 1024
RECORDS_MAX = 10_000
LINES = ("application/x-ndjson", "application/json")
_FIELDS = frozenset(RECORD["required"])


def batch_of(
    body: bytes, content_type: str, subject: str, key: str | None, idempotency_key: str
) -> EncodedBatch:
    """subject: of all records. key: of the one record of a body that is not JSON. Raises
    InvalidRequestError, which names the line."""
    if content_type in LINES:
        if key is not None:
            raise InvalidRequestError("a line of JSON says its own key: leave out ?key=")
        records = [_record(at, line, subject) for at, line in _lines(body)]
    else:
        records = [(body, None if key is None else key.encode(), b"")]
    if not 0 < len(records) <= RECORDS_MAX:
        raise InvalidRequestError(f"a request has 1 to {RECORDS_MAX} records, not {len(records)}")
    values, keys, blocks = (list(column) for column in zip(*records, strict=True))
    batch = encode(
        values,
        subject.encode(),
        keys=keys if any(each is not None for each in keys) else None,
        header_blocks=blocks if any(blocks) else None,
    )
    if idempotency_key:
        batch.set_producer(producer_of(idempotency_key), 0)
    return batch


def producer_of(idempotency_key: str) -> int:
    """A producer id: the same one for the same key, never 0. A key may be any bytes."""
    digest = blake2b(
        idempotency_key.encode("utf-8", "surrogateescape"), digest_size=8, person=b"http-produce"
    ).digest()
    return int.from_bytes(digest, "little") >> 1 | 1


def _lines(body: bytes) -> list[tuple[int, bytes]]:
    return [(at, line) for at, line in enumerate(body.split(b"\n"), 1) if line.strip()]


def _record(at: int, line: bytes, subject: str) -> tuple[bytes | None, bytes | None, bytes]:
    """Value, key and header block."""
    try:
        row = bounded_json.loads(line)
    except ValueError as error:
        raise InvalidRequestError(f"line {at} is not JSON: {str(error)[:100]}") from error
    if not isinstance(row, dict) or "value" not in row:
        raise InvalidRequestError(f'line {at} is not an object with a "value"')
    unknown = sorted(set(row) - _FIELDS)
    if unknown:
        raise InvalidRequestError(f"line {at}: unknown field {unknown[0][:50]!r}")
    if row.get("subject", subject) != subject:
        raise InvalidRequestError(
            f"line {at} is on another subject than {subject!r}: a request is for one subject"
        )
    headers = row.get("headers") or {}
    return _bytes(at, row, "value"), _bytes(at, row, "key"), _block(at, headers)


def _bytes(at: int, row: dict[str, Any], name: str) -> bytes | None:
    text, encoding = row.get(name), row.get(f"{name}_encoding")
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRequestError(f"line {at}: {name} is text, or null; write JSON as text")
    try:
        if encoding == "base64":
            return base64.b64decode(text, validate=True)
        if encoding in (None, "utf8"):
            return text.encode()
    except (binascii.Error, UnicodeEncodeError) as error:
        raise InvalidRequestError(f"line {at}: {name}: {error}") from error
    raise InvalidRequestError(f"line {at}: {name}_encoding is utf8 or base64")


def _block(at: int, headers: object) -> bytes:
    if not isinstance(headers, dict):
        raise InvalidRequestError(f"line {at}: headers is an object of names and values")
    lines = []
    for name, given in headers.items():
        for value in given if isinstance(given, list) else [given]:
            if not isinstance(value, str) or not _is_sendable(name, value):
                raise InvalidRequestError(f"line {at}: header {name[:50]!r} cannot be sent")
            lines.append(f"{name}: {value}\r\n")
    return f"NATS/1.0\r\n{''.join(lines)}\r\n".encode() if lines else b""


def _is_sendable(name: str, value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return HEADER_NAME.fullmatch(name) is not None and not set(value) & set("\r\n\0")
