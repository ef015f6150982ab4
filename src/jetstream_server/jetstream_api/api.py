"""Serves the JetStream API of a domain: takes requests from the leaf link, has them answered, and
sends the answers.

The link's account is one principal (`nats.api_principal`). Who may ask for what within the account
is for NATS's own permissions.

Invariants.
* Every request that is taken is answered, within REQUEST_SECONDS, except where NATS would not let
  the answer through.
* **safety** A stream is named to a principal that may describe it, and read by one that may read
  it. While security is on and there is no principal, nothing is.
* Memory is bounded: REQUESTS_MAX at once, of which WORKING_MAX hold records; a link that is not
  read takes no further ones.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from jetstream_protocol.errors import JetstreamError, UnavailableError
from jetstream_protocol.types import StreamId
from jetstream_server.background import run_in_background
from jetstream_server.jetstream_api.answers import API_LEVEL, NO_TIME, account_info
from jetstream_server.jetstream_api.bucket_puts import BucketPuts
from jetstream_server.jetstream_api.catalogue import Catalogue, with_fewer_subjects
from jetstream_server.jetstream_api.consumers import ConsumerRequests
from jetstream_server.jetstream_api.errors import (
    ApiError,
    api_error,
    bad_request_error,
    busy_error,
    not_enabled_error,
    not_supported_error,
    too_large_error,
)
from jetstream_server.jetstream_api.leaf.acknowledged import Acknowledged
from jetstream_server.jetstream_api.leaf.connection import LeafConnection, OnMessages
from jetstream_server.jetstream_api.leaf.parser import LeafMessage, LeafMessages
from jetstream_server.jetstream_api.messages import Messages
from jetstream_server.jetstream_api.requests import (
    Request,
    body_of,
    check_empty,
    request_of,
)
from jetstream_server.jetstream_api.stream_changes import StreamChanges
from jetstream_server.jetstream_api.stream_reads import PURGE

logger = structlog.get_logger("jetstream.api")

REQUESTS_MAX: Final = 512
"""Upper bound on requests at a time. More are refused."""
WORKING_MAX: Final = 8
REQUEST_SECONDS: Final = 4.5
"""Clients wait for 5 s."""

CLOSE_SECONDS: Final = 2.0
"""How long a node that stops may go on with requests."""

_LEVEL_HEADER: Final = b"nats-required-api-level"

_EMPTY_PAGES: Final[dict[str, dict[str, Any]]] = {
    "STREAM.NAMES": {"total": 0, "offset": 0, "limit": 0, "streams": None},
    "STREAM.LIST": {"total": 0, "offset": 0, "limit": 0, "streams": []},
    "STREAM.INFO": {"total": 0, "offset": 0, "limit": 0},
    "STREAM.PURGE": {"purged": 0},
    "CONSUMER.NAMES": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    "CONSUMER.LIST": {"total": 0, "offset": 0, "limit": 0, "consumers": []},
    "CONSUMER.PAUSE": {"paused": False, "pause_until": NO_TIME},
}
"""What an error has beside it, where clients look for it."""


@dataclass(slots=True)
class ApiCounters:
    """Since the start. requests: taken. errors: answered by one. refused: not taken, because there
    were too many, or NATS takes answers too slowly."""

    requests: int = 0
    errors: int = 0
    refused: int = 0


class JetStreamApi:
    """For the loop's thread only. Call `start` once and `close` once."""

    def __init__(
        self,
        domain: str,
        catalogue: Catalogue,
        messages: Messages,
        connect: Callable[[OnMessages], LeafConnection],
        consumers: ConsumerRequests | None = None,
        *,
        changes: StreamChanges | None = None,
        puts: BucketPuts | None = None,
        is_open: bool,
    ) -> None:
        """connect: makes the link, which calls its argument. consumers, changes, puts: None: there
        are none. is_open: whether anybody may ask."""
        self.counters = ApiCounters()
        self.domain = domain
        self.link = connect(self._take)
        self._catalogue = catalogue
        self._messages = messages
        self._consumers = consumers
        if consumers is not None:
            consumers.begin(self.link)
        self._changes = changes
        self._puts = puts if is_open else None
        if self._puts is not None:
            self._puts.begin(self.link)
        self._is_open = is_open
        self._is_closing = False
        self._requests: set[asyncio.Task[None]] = set()
        self._working = asyncio.Semaphore(WORKING_MAX)
        self._verbs: dict[str, Callable[[Request, bytes], Awaitable[dict[str, Any]]]] = {
            "INFO": self._info,
            "STREAM.NAMES": self._names,
            "STREAM.LIST": self._list,
            "STREAM.INFO": self._stream_info,
            "STREAM.MSG.GET": self._get,
            "STREAM.MSG.DELETE": self._delete_message,
            "STREAM.CREATE": self._change,
            "STREAM.UPDATE": self._change,
            "STREAM.DELETE": self._change,
            "STREAM.PURGE": self._change,
        }

    def start(self) -> None:
        self.link.start()

    async def answer_for(
        self, stream_id: StreamId, verb: str, rest: str, payload: bytes, made_at: int
    ) -> bytes:
        """Answer another node's request about consumers, or a purge. Raises JetstreamError."""
        if verb == PURGE and self._changes is not None:
            return await self._changes.purge_for(stream_id, payload)
        if self._consumers is None:
            raise UnavailableError("this node serves no consumers")
        return await self._consumers.answer_for(stream_id, verb, rest, payload, made_at)

    async def close(self) -> None:
        """Answer what was asked, then close the link. Other nodes get what is asked from now on."""
        await self.link.withdraw()
        self._is_closing = True
        if self._consumers is not None:
            await self._consumers.close()
        if self._requests:
            await asyncio.wait(self._requests, timeout=CLOSE_SECONDS)
        for task in self._requests:
            task.cancel()
        await asyncio.gather(*self._requests, return_exceptions=True)
        await self.link.close()

    def _take(self, messages: LeafMessages) -> None:
        """Begin to answer."""
        consumers, puts = self._consumers, self._puts
        for message in messages:
            if isinstance(message, Acknowledged):
                if consumers is not None:
                    self._guarded(partial(consumers.acknowledged, message))
                continue
            if consumers is not None and self._guarded(partial(consumers.takes, message)):
                continue
            if puts is not None and puts.takes(message):
                continue
            if not message.reply or not self.link.may_answer(message.reply):
                continue
            if self._is_closing or not self.link.has_room:
                self.counters.refused += 1
            elif len(self._requests) >= REQUESTS_MAX:
                self.counters.refused += 1
                self._refuse(request_of(message.subject, self.domain), message.reply, busy_error())
            else:
                self.counters.requests += 1
                task = run_in_background(self._answer(message), "request of the JetStream API")
                self._requests.add(task)
                task.add_done_callback(self._requests.discard)

    def _guarded(self, take: Callable[[], object]) -> object:
        """Have consumers take something. Returns what they return; true if they fail."""
        try:
            return take()
        except Exception:  # noqa: BLE001  logged; a message must not cost the link
            logger.error("api_request_failed", verb="pull", trace=traceback.format_exc())
            return True

    async def _answer(self, message: LeafMessage) -> None:
        request = request_of(message.subject, self.domain)
        error = await self._error_of(request, message)
        if error is not None:
            self.counters.errors += 1
            self._refuse(request, message.reply, error)

    async def _error_of(self, request: Request, message: LeafMessage) -> ApiError | None:
        """Answer; None. Or why that is not possible."""
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await self._serve(request, message)
        except ApiError as error:
            return error
        except JetstreamError as error:
            return api_error(error)
        except TimeoutError:
            return api_error(UnavailableError("no answer in time"))
        except Exception:  # noqa: BLE001  logged; the other requests go on
            trace = traceback.format_exc()
            logger.error("api_request_failed", verb=request.verb, trace=trace)
            return ApiError(500, 10051, "the request failed: see the server's log")
        return None

    async def _serve(self, request: Request, message: LeafMessage) -> None:
        """Answer. Raises ApiError, JetstreamError."""
        if not self._is_open:
            raise not_enabled_error()
        if _required_level(message.headers) > API_LEVEL:
            raise ApiError(412, 10185, "JetStream minimum api level required",
                           "412 Required Api Level")  # fmt: skip
        if request.is_direct:
            async with self._working:
                await self._messages.direct(request, message, self.link)
            return
        if request.verb.startswith("CONSUMER.") and self._consumers is not None:
            found = await self._consumers.answer(request, message.payload)
        else:
            verb = self._verbs.get(request.verb)
            if verb is None:
                raise self._unsupported_error(request)
            found = await verb(request, message.payload)
        answer = _json({"type": request.type, **found})
        if len(answer) > self.link.max_payload:
            raise too_large_error(len(answer), self.link.max_payload)
        self.link.send(message.reply, answer)

    def _refuse(self, request: Request, reply: bytes, error: ApiError) -> None:
        if request.is_direct:
            self._messages.refuse(reply, error, self.link)
            return
        page = _EMPTY_PAGES.get(request.verb, {})
        self.link.send(reply, _json({"type": request.type, "error": error.to_json(), **page}))

    def _unsupported_error(self, request: Request) -> ApiError:
        """Why a request is not served."""
        if not request.verb:
            return bad_request_error("bad request: no such request of the JetStream API")
        return not_supported_error(request.verb)

    # Requests that are answered by JSON.

    async def _info(self, request: Request, payload: bytes) -> dict[str, Any]:
        counters = self.counters
        streams = len(self._catalogue.visible())
        return account_info(self.domain, streams, counters.requests, counters.errors)

    async def _names(self, request: Request, payload: bytes) -> dict[str, Any]:
        return self._catalogue.names(body_of(payload), self._room(request))

    async def _list(self, request: Request, payload: bytes) -> dict[str, Any]:
        return await self._catalogue.infos(body_of(payload), self._room(request))

    def _room(self, request: Request) -> int:
        """Bytes that a page may have."""
        return self.link.max_payload - len(request.type) - 200

    async def _stream_info(self, request: Request, payload: bytes) -> dict[str, Any]:
        if request.rest:
            raise bad_request_error()
        info = await self._catalogue.info(request.stream, body_of(payload))
        return with_fewer_subjects(info, self._room(request))

    async def _change(self, request: Request, payload: bytes) -> dict[str, Any]:
        if request.rest:
            raise bad_request_error()
        changes, name = self._changes, request.stream
        if changes is None:
            raise not_supported_error("streams are managed by the command `jetstream stream`")
        if request.verb == "STREAM.DELETE":
            check_empty(payload)
            return await changes.delete(name)
        body = body_of(payload)
        if request.verb == "STREAM.PURGE":
            return await changes.purge(name, body)
        create = changes.create if request.verb == "STREAM.CREATE" else changes.update
        return await create(name, body)

    async def _get(self, request: Request, payload: bytes) -> dict[str, Any]:
        async with self._working:
            return await self._messages.get(request, payload, self.link.max_payload)

    async def _delete_message(self, request: Request, payload: bytes) -> dict[str, Any]:
        self._catalogue.stream(request.stream)
        raise ApiError(500, 10057, "single messages can not be deleted")


def _json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, separators=(",", ":")).encode()


def _required_level(headers: bytes) -> int:
    for line in headers.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == _LEVEL_HEADER:
            text = value.strip()
            return int(text) if text.isdigit() and len(text) < 10 else API_LEVEL + 1
    return 0
