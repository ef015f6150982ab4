"""One record as a batch takes it: bytes, from what people give."""

from __future__ import annotations

import re

from jetstream_client._headers import HeadersLike, outgoing
from jetstream_protocol.errors import InvalidRequestError

_SERVER_HEADER = re.compile(
    r"Jetstream-.*|Nats-(?:Msg-Id|TTL|Rollup|Incr|Expected-.*|Schedule.*|Batch-.*)"
)


def record_of(
    value: bytes | str | None, key: bytes | str | None, headers: HeadersLike | None
) -> tuple[bytes | None, bytes | None, bytes]:
    """Value, key and header block. Raises InvalidRequestError."""
    if value is not None and type(value) is not bytes:
        value = value.encode() if isinstance(value, str) else bytes(value)
    if key is not None and type(key) is not bytes:
        key = key.encode() if isinstance(key, str) else bytes(key)
    return value, key, _block_of(headers) if headers else b""


def _block_of(headers: HeadersLike) -> bytes:
    """As NATS writes it. What asks the server for something is refused with its whole batch."""
    pairs = outgoing(headers)
    for name, _ in pairs:
        if _SERVER_HEADER.fullmatch(name):
            raise InvalidRequestError(
                f"header {name!r} speaks to the server and cannot travel in a batch: use publish()"
            )
    lines = "".join(f"{name}: {value}\r\n" for name, value in pairs)
    return f"NATS/1.0\r\n{lines}\r\n".encode()
