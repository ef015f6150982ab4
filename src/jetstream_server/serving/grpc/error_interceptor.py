"""Wraps every RPC: checks requests, and turns exceptions into a status.

A request that is too long for its method, or not a valid message, gets `invalid_request`. A
JetstreamError becomes its status in errors.CODES, with the whole `Error` in the trailing metadata.
Any other exception is a bug: it is logged with its traceback and answered as `internal`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc import aio

from jetstream_protocol.channels import REVISION_KEY
from jetstream_protocol.errors import (
    CODES,
    GRPC_ERROR_KEY,
    InternalError,
    InvalidRequestError,
    JetstreamError,
    UnauthenticatedError,
)
from jetstream_protocol.restored_batch import RESTORE_BYTES_MAX
from jetstream_server.net.error_limits import bounded
from jetstream_server.security.requirements import RPCS, Scope
from jetstream_server.serving.grpc.call_limiter import CallLimiter

REQUEST_BYTES_MAX = 64 * 1024
"""Limit of a request. Names and subjects are its longest parts. Methods with another limit, such as
ListOffsets, which may name tens of thousands of streams, are in LIMITS."""
LIMITS = {
    "/jetstream.v1.Reads/ListOffsets": 4 * 1024 * 1024,
    "/jetstream.v1.Streams/RestoreBatches": RESTORE_BYTES_MAX + 1024,
    "/jetstream.v1.Streams/ProduceBatch": RESTORE_BYTES_MAX + 1024,
    "/jetstream.v1.Cursors/CommitCursors": 1024 * 1024,
    "/jetstream.v1.Consumers/AskConsumers": 512 * 1024,
    "/jetstream.v1.Consumers/StoreConsumers": 64 * 1024 * 1024,
}

logger = structlog.get_logger("jetstream.api")

_Context = aio.ServicerContext[Any, Any]
_Deserialize = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands for an unreadable request until the call can be answered."""

    reason: str


def _check_size(deserialize: _Deserialize, method: str, callers: CallLimiter) -> _Deserialize:
    bytes_max = LIMITS.get(method, REQUEST_BYTES_MAX)

    def read(data: bytes) -> Any:
        callers.received()
        if len(data) > bytes_max:
            return _Refused(f"a request of {len(data)} bytes; at most {bytes_max} are allowed")
        try:
            return deserialize(data)
        except DecodeError:
            return _Refused("the request cannot be decoded")

    return read


def _readable(request: Any) -> Any:
    if isinstance(request, _Refused):
        raise InvalidRequestError(request.reason)
    return request


async def _abort(
    context: _Context, error: JetstreamError, more: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """more: trailing metadata besides."""
    status = grpc.StatusCode[CODES[type(error)].grpc_status]
    answer = bounded(error)
    await context.abort(
        status, answer.message, (*more, (GRPC_ERROR_KEY, answer.SerializeToString()))
    )


def _unexpected_error(error: Exception, method: str) -> InternalError:
    logger.error("request_failed", method=method, exc_info=error)
    return InternalError(f"internal error in {method}: see the server's log")


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every handler, health and reflection included; see the module."""

    def __init__(
        self,
        callers: CallLimiter,
        called: Callable[[str], None] = lambda peer: None,
        revision: Callable[[], int] = lambda: 0,
    ) -> None:
        """called: called with the peer of each call. revision: returns that of the metadata here,
        which answers tell (channels.REVISION_KEY)."""
        self._revision = revision
        self._callers = callers
        self._called = called
        self._guard: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        known = self._guard.get(method)
        if known is not None:
            return known
        rule = RPCS.get(method)
        is_public = rule is not None and rule.scope is Scope.PUBLIC
        handler = await continuation(handler_call_details)
        around = _Supervised(
            method, self._callers, self._called, self._revision, is_public=is_public
        )
        if handler is None:  # Not remembered: there is no end of unknown methods.
            return grpc.stream_stream_rpc_method_handler(_unknown(around))
        handler = self._guard[method] = _guard(handler, method, self._callers, around)
        return handler


def _unknown(around: _Supervised) -> Callable[[Any, _Context], Awaitable[None]]:
    async def refuse(_: object, context: _Context) -> None:
        async with around(context):  # It counts as a call.
            await around.refuse()
        # Not inside: it fails if the caller has left, which is no fault of ours.
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")

    return refuse


def _guard(handler: Any, method: str, callers: CallLimiter, around: _Supervised) -> Any:
    """For gRPC every request is a stream, which is the same to a client. It calls a handler of one
    request only when that has arrived, and until then the caller is unknown."""
    coders = {
        "request_deserializer": _check_size(handler.request_deserializer, method, callers),
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        return grpc.stream_unary_rpc_method_handler(_unary(handler.unary_unary, around), **coders)
    if handler.unary_stream is not None:
        # A handler either yields answers or writes them itself.
        wrap = _stream if inspect.isasyncgenfunction(handler.unary_stream) else _unary
        return grpc.stream_stream_rpc_method_handler(wrap(handler.unary_stream, around), **coders)
    assert handler.stream_stream is not None, f"{method} is of a kind no service of ours has"
    return grpc.stream_stream_rpc_method_handler(_both(handler.stream_stream, around), **coders)


class _Supervised:
    """Around each call of a method."""

    def __init__(
        self,
        method: str,
        callers: CallLimiter,
        called: Callable[[str], None],
        revision: Callable[[], int],
        *,
        is_public: bool,
    ) -> None:
        self._method = method
        self._callers = callers
        self._called = called
        self._revision = revision
        self._is_public = is_public

    @asynccontextmanager
    async def __call__(self, context: _Context) -> AsyncIterator[None]:
        """Answers an exception inside with its status."""
        try:
            self._callers.began(context.peer(), is_public=self._is_public)
            yield
        except JetstreamError as error:
            await self._callers.refuse()
            stranger = isinstance(error, UnauthenticatedError)
            await _abort(context, error, () if stranger else self.trailers())
        except aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  the supervisor of every RPC
            await _abort(context, _unexpected_error(error, self._method))

    async def refuse(self) -> None:
        await self._callers.refuse()

    def trailers(self) -> tuple[tuple[str, str], ...]:
        """The trailing metadata of an answer."""
        return () if self._is_public else ((REVISION_KEY, str(self._revision())),)

    async def request(self, context: _Context) -> Any:
        """The call's only request."""
        request = await context.read()
        if request is aio.EOF:
            raise InvalidRequestError("there is no request")
        return _readable(self.note_call(request, context))

    def note_call(self, request: Any, context: _Context) -> Any:
        """The request, whose connection has made a call now."""
        self._called(context.peer())
        return request


def _unary(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def answer(_: object, context: _Context) -> Any:
        async with around(context):
            found = await behaviour(await around.request(context), context)
            context.set_trailing_metadata(around.trailers())
            return found

    return answer


def _stream(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    async def answers(_: object, context: _Context) -> AsyncIterator[Any]:
        async with around(context):
            async for answer in behaviour(await around.request(context), context):
                yield answer

    return answers


def _both(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    async def answers(requests: AsyncIterator[Any], context: _Context) -> AsyncIterator[Any]:
        async with around(context):
            readable = (_readable(around.note_call(each, context)) async for each in requests)
            async for answer in behaviour(readable, context):
                yield answer

    return answers
