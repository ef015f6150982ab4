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

from jetstream_protocol.errors import (
    CODES,
    GRPC_ERROR_KEY,
    InternalError,
    InvalidRequestError,
    JetstreamError,
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
    "/jetstream.v1.Cursors/CommitCursors": 1024 * 1024,
}

logger = structlog.get_logger("jetstream.api")

_Context = aio.ServicerContext[Any, Any]
_Deserialize = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True)
class _Refused:
    """Stands for an unreadable request until the call can be answered."""

    reason: str


def _checked(deserialize: _Deserialize, method: str, callers: CallLimiter) -> _Deserialize:
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


async def _abort(context: _Context, error: JetstreamError) -> NoReturn:
    status = grpc.StatusCode[CODES[type(error)].grpc_status]
    answer = bounded(error)
    await context.abort(status, answer.message, ((GRPC_ERROR_KEY, answer.SerializeToString()),))


def _unexpected(error: Exception, method: str) -> InternalError:
    logger.error("request_failed", method=method, exc_info=error)
    return InternalError(f"internal error in {method}: see the server's log")


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every handler, health and reflection included; see the module."""

    def __init__(
        self, callers: CallLimiter, called: Callable[[str], None] = lambda peer: None
    ) -> None:
        """called: called with the peer of each call."""
        self._callers = callers
        self._called = called
        self._guarded: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        rule = RPCS.get(method)
        try:
            self._callers.began(is_public=rule is not None and rule.scope is Scope.PUBLIC)
        except JetstreamError as error:
            return _refusing(error)
        known = self._guarded.get(method)
        if known is not None:
            return known
        handler = await continuation(handler_call_details)
        if handler is not None:  # Unknown methods are answered as unimplemented, not remembered.
            handler = self._guarded[method] = _guarded(handler, method, self._callers, self._called)
        return handler


def _refusing(error: JetstreamError) -> grpc.RpcMethodHandler[Any, Any]:
    """A handler that reads no request: gRPC reads those of other handlers before it calls them."""

    async def refuse(_: object, context: _Context) -> None:
        await _abort(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


def _guarded(handler: Any, method: str, callers: CallLimiter, called: Callable[[str], None]) -> Any:
    around = _Supervised(method, called)
    coders = {
        "request_deserializer": _checked(handler.request_deserializer, method, callers),
        "response_serializer": handler.response_serializer,
    }
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(_unary(handler.unary_unary, around), **coders)
    if handler.unary_stream is not None:
        # A handler either yields answers or writes them itself.
        wrap = _stream if inspect.isasyncgenfunction(handler.unary_stream) else _unary
        return grpc.unary_stream_rpc_method_handler(wrap(handler.unary_stream, around), **coders)
    assert handler.stream_stream is not None, f"{method} is of a kind no service of ours has"
    return grpc.stream_stream_rpc_method_handler(_both(handler.stream_stream, around), **coders)


class _Supervised:
    """Around each call of a method."""

    def __init__(self, method: str, called: Callable[[str], None]) -> None:
        self._method = method
        self._called = called

    @asynccontextmanager
    async def __call__(self, context: _Context) -> AsyncIterator[None]:
        """Answers an exception inside with its status."""
        self._called(context.peer())
        try:
            yield
        except JetstreamError as error:
            await _abort(context, error)
        except aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  the supervisor of every RPC
            await _abort(context, _unexpected(error, self._method))


def _unary(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def answer(request: Any, context: _Context) -> Any:
        async with around(context):
            return await behaviour(_readable(request), context)

    return answer


def _stream(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    async def answers(request: Any, context: _Context) -> AsyncIterator[Any]:
        async with around(context):
            async for answer in behaviour(_readable(request), context):
                yield answer

    return answers


def _both(behaviour: Any, around: _Supervised) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    def on_readable(requests: AsyncIterator[Any], context: _Context) -> Any:
        return behaviour((_readable(request) async for request in requests), context)

    return _stream(on_readable, around)
