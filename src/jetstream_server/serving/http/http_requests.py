"""What a request says: its parameters and its body. What cannot be meant is refused with what to
say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any
from urllib.parse import unquote_to_bytes

from aiohttp import web

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import common_pb2

BODY_SECONDS = 10.0
_TURNS = 4
"""Of the loop: one reads the end, one closes the connection, one cancels."""
_MOST = 10**18 - 1
"""A bound that fits in an int64."""


def ref_of(stream: str) -> common_pb2.StreamRef:
    """A stream by its name or name@subject."""
    name, _, subject = stream.partition("@")
    return common_pb2.StreamRef(name=name, subject=subject)


def number(
    request: web.Request, name: str, default: int, *, least: int = 0, most: int = _MOST
) -> int:
    """Raises InvalidRequestError."""
    text = request.query.get(name)
    if text is None:
        return default
    found = integer(name, text, most)
    if found < least:
        raise InvalidRequestError(f"{name} is at least {least}")
    return found


def optional(request: web.Request, name: str) -> int | None:
    text = request.query.get(name)
    return None if text is None else integer(name, text)


def integer(name: str, text: str, most: int = _MOST) -> int:
    """Parse. Raises InvalidRequestError."""
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise InvalidRequestError(f"{name} must be a whole number that is not negative")
    if int(text) > most:
        raise InvalidRequestError(f"{name} is at most {most}")
    return int(text)


async def body_of(request: web.Request) -> dict[str, Any]:
    """The body of a change. Raises InvalidRequestError."""
    if request.content_type != "application/json":
        raise InvalidRequestError("a change is sent as JSON: Content-Type: application/json")
    body = await read_body(request)
    try:
        found = bounded_json.loads(body)
        json.dumps(found, ensure_ascii=False).encode()  # Half a surrogate breaks protobuf's parser.
    except ValueError as error:
        raise InvalidRequestError(f"the body cannot be read: {str(error)[:200]}") from error
    if not isinstance(found, dict):
        raise InvalidRequestError("the body cannot be read: it is not a JSON object")
    return found


async def let_hang_ups_come() -> None:
    """Before a change: a client that has hung up meanwhile, while this process stood still, wants
    it no more. Its connection's end is read next, and cancels the request."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


async def read_body(request: web.BaseRequest) -> bytes:
    """Raises InvalidRequestError if it does not come in time, or is compressed."""
    if request.headers.get("Content-Encoding", "identity").strip().lower() != "identity":
        raise InvalidRequestError("a body is taken as it is: send it without Content-Encoding")
    try:
        async with asyncio.timeout(BODY_SECONDS):
            body = await request.read()
    except TimeoutError as error:
        raise InvalidRequestError(f"the body did not come within {BODY_SECONDS:g} s") from error
    await let_hang_ups_come()
    return body


def flag(request: web.Request, name: str, default: bool) -> bool:
    given = request.query.get(name)
    if given is None:
        return default
    if given not in ("true", "false"):
        raise InvalidRequestError(f"{name} is true or false, not {given[:50]!r}")
    return given == "true"


def check_parameters(request: web.Request, known: Collection[str]) -> None:
    """Raises InvalidRequestError for another one, for one that is given twice, and for one that
    is no text: what stands for its bytes would be taken for the key of a record."""
    try:
        unquote_to_bytes(request.rel_url.raw_query_string).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(
            "a parameter is not UTF-8: a key of other bytes stands in a line of JSON, as base64"
        ) from error
    twice = next((name for name in request.query if len(request.query.getall(name)) > 1), None)
    if twice is not None:
        raise InvalidRequestError(f"parameter {twice[:50]!r} is given twice")
    unknown = sorted(set(request.query) - set(known))
    if unknown:
        there = f"there are {', '.join(known)}" if known else "there are none"
        raise InvalidRequestError(f"unknown parameter {unknown[0][:50]!r}: {there}")
