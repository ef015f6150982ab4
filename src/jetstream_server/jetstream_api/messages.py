"""Single messages and batches of them: MSG.GET as JSON, DIRECT.GET as messages with headers."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Any, Final

from jetstream_protocol.subjects import readable
from jetstream_server.consumers.records import Record
from jetstream_server.jetstream_api.answers import direct_headers, status_headers, time_text
from jetstream_server.jetstream_api.catalogue import Catalogue
from jetstream_server.jetstream_api.errors import (
    ApiError,
    bad_request_error,
    too_large_error,
)
from jetstream_server.jetstream_api.leaf.connection import LeafConnection
from jetstream_server.jetstream_api.leaf.parser import LeafMessage
from jetstream_server.jetstream_api.requests import GetRequest, Request
from jetstream_server.jetstream_api.search import Results, Search
from jetstream_server.security.acl import Operation

_JSON_AROUND: Final = 400
"""Bytes of an answer to MSG.GET besides the message: type, sequence, time, punctuation."""
_MESSAGES_PER_TURN: Final = 64
"""Messages of a batch in one turn of the event loop: about 1 ms."""


class Messages:
    def __init__(self, catalogue: Catalogue, search: Search) -> None:
        self._catalogue = catalogue
        self._search = search

    async def get(self, request: Request, payload: bytes, bytes_max: int) -> dict[str, Any]:
        """The answer to MSG.GET, of at most that length. Raises ApiError, JetstreamError."""
        if request.rest:
            raise bad_request_error()
        stream = self._catalogue.stream(request.stream, Operation.READ)
        wanted = GetRequest.of(payload)
        if wanted.batch or wanted.bytes_max or wanted.subjects:
            raise bad_request_error("bad request: batches are read by DIRECT.GET")
        record = await self._search.one(stream, wanted)
        length = _JSON_AROUND + 4 * record.size // 3
        if length > bytes_max:
            raise too_large_error(length, bytes_max)
        message: dict[str, Any] = {
            "subject": record.subject.decode("utf-8", "replace"),
            "seq": record.sequence,
            "time": time_text(record.appended_us),
        }
        if record.headers and not wanted.no_headers:
            message["hdrs"] = base64.b64encode(record.headers).decode()
        if record.value:
            message["data"] = base64.b64encode(record.value).decode()
        return {"message": message}

    async def direct(self, request: Request, message: LeafMessage, link: LeafConnection) -> None:
        """Answer DIRECT.GET. Raises ApiError, JetstreamError."""
        stream = self._catalogue.stream(request.stream, Operation.READ)
        wanted = _request_of(request, message)
        if wanted.batch or wanted.subjects:
            found = await self._search.batch(stream, wanted)
            await _send_batch(request, found, wanted, message.reply, link)
        else:
            record = await self._search.one(stream, wanted)
            headers = b"" if wanted.no_headers else _headers(request.stream, record, {})
            _check_length(record, headers, link)
            link.send(message.reply, record.value, headers)

    def refuse(self, reply: bytes, error: ApiError, link: LeafConnection) -> None:
        """Answer DIRECT.GET by a status."""
        link.send(reply, b"", status_headers(error.status))


def _request_of(request: Request, message: LeafMessage) -> GetRequest:
    if not request.rest:
        return GetRequest.of(message.payload)
    if message.payload.strip():
        raise bad_request_error()
    return GetRequest.last_of(request.rest)


async def _send_batch(
    request: Request,
    found: Results,
    wanted: GetRequest,
    reply: bytes,
    link: LeafConnection,
) -> None:
    """Send the messages, and the status that ends a batch. Raises ApiError for a message that NATS
    would not take: the batch ends before it."""
    last = 0
    pending = found.pending + len(found.records)
    for count, record in enumerate(found.records, 1):
        if count % _MESSAGES_PER_TURN == 0:
            await asyncio.sleep(0)
        pending -= 1
        added = {"Nats-Num-Pending": pending, "Nats-Last-Sequence": last}
        headers = _headers(request.stream, record, added)
        _check_length(record, headers, link)
        await link.room()
        link.send(reply, record.value, headers)
        last = record.sequence
    ends: dict[str, object] = {"Nats-Num-Pending": found.pending, "Nats-Last-Sequence": last}
    if wanted.subjects:
        ends["Nats-UpTo-Sequence"] = found.up_to
    await link.room()
    link.send(reply, b"", status_headers("204 EOB", ends))


def _headers(name: str, record: Record, added: Mapping[str, object]) -> bytes:
    ours = {
        "Nats-Stream": name,
        "Nats-Subject": readable(record.subject).decode("utf-8", "surrogateescape"),
        "Nats-Sequence": record.sequence,
        "Nats-Time-Stamp": time_text(record.appended_us),
        **added,
    }
    return direct_headers(record.headers, ours)


def _check_length(record: Record, headers: bytes, link: LeafConnection) -> None:
    length = len(headers) + len(record.value)
    if length > link.max_payload:
        raise too_large_error(length, link.max_payload)
