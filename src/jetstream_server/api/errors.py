"""Turns what a handler raises into a gRPC status, in one place for every RPC.

A JetstreamError becomes its status of errors.CODES, with the whole `Error` in the trailing
metadata. Anything else is a bug of ours: logged with its traceback, answered as `internal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import structlog
from grpc import aio

from jetstream_protocol.errors import CODES, InternalError, JetstreamError

ERROR_KEY = "jetstream-error-bin"

logger = structlog.get_logger("jetstream.api")

_Context = aio.ServicerContext[Any, Any]


async def _abort(context: _Context, error: JetstreamError) -> NoReturn:
    status = grpc.StatusCode[CODES[type(error)].grpc_status]
    trailer = ((ERROR_KEY, error.to_proto().SerializeToString()),)
    await context.abort(status, error.message, trailer)


def _unexpected(error: Exception, method: str) -> InternalError:
    logger.error("request_failed", method=method, exc_info=error)
    return InternalError(f"internal error in {method}: see the server's log")


class ErrorInterceptor(aio.ServerInterceptor):
    """Wraps every handler; see the module."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or "jetstream" not in method:
            return handler  # Unknown methods, health and reflection answer for themselves.
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary is not None:
            answer = _guarded(handler.unary_unary, method)
            return grpc.unary_unary_rpc_method_handler(answer, **coders)
        stream = _guarded_stream(handler.unary_stream, method)
        return grpc.unary_stream_rpc_method_handler(stream, **coders)


def _guarded(behaviour: Any, method: str) -> Callable[[Any, _Context], Awaitable[Any]]:
    async def answer(request: Any, context: _Context) -> Any:
        try:
            return await behaviour(request, context)
        except JetstreamError as error:
            await _abort(context, error)
        except aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  the supervisor of every RPC
            await _abort(context, _unexpected(error, method))

    return answer


def _guarded_stream(behaviour: Any, method: str) -> Callable[[Any, _Context], AsyncIterator[Any]]:
    async def answers(request: Any, context: _Context) -> AsyncIterator[Any]:
        try:
            async for answer in behaviour(request, context):
                yield answer
        except JetstreamError as error:
            await _abort(context, error)
        except aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001  the supervisor of every RPC
            await _abort(context, _unexpected(error, method))

    return answers
