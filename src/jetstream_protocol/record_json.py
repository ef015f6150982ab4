"""A record as JSON, everywhere in the same form: `jetstream fetch --json`, and records over HTTP.

    {"offset": 7, "timestamp": "2026-01-31T12:00:00.000000Z", "subject": "orders.eu",
     "key": "42", "key_encoding": "utf8", "value": "…", "value_encoding": "utf8", "headers": {}}

A key or a value is text if it is UTF-8, and base64 otherwise; null: there is none. A header that is
given more than once has a list of values.
"""

from __future__ import annotations

import base64
from typing import Any

from jetstream_protocol.times import timestamp_text, to_datetime


def record_row(
    offset: int,
    timestamp_us: int,
    subject: str,
    key: bytes | None,
    value: bytes | None,
    header_block: bytes,
) -> dict[str, Any]:
    key_text, key_encoding = encoded(key)
    value_text, value_encoding = encoded(value)
    headers = header_values(header_block).items()
    return {
        "offset": offset,
        "timestamp": timestamp_text(to_datetime(timestamp_us)),
        "subject": subject,
        "key": key_text,
        "key_encoding": key_encoding,
        "value": value_text,
        "value_encoding": value_encoding,
        "headers": {name: given[0] if len(given) == 1 else given for name, given in headers},
    }


def encoded(data: bytes | None) -> tuple[str | None, str | None]:
    """Bytes as JSON text, and the encoding: "utf8" or "base64"; null for null."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def header_values(block: bytes) -> dict[str, list[str]]:
    """The values of each header, in order. The first line of a block is NATS's own. Bytes that are
    not UTF-8 are kept as surrogate escapes."""
    found: dict[str, list[str]] = {}
    for line in block.split(b"\r\n")[1:]:
        name, separator, value = line.partition(b":")
        if separator:
            text = value.strip(b" \t").decode("utf-8", "surrogateescape")
            found.setdefault(name.strip(b" \t").decode("utf-8", "surrogateescape"), []).append(text)
    return found
