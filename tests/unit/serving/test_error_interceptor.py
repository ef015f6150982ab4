"""Errors around every RPC: what a caller who has left makes fail is no fault of the server."""

from __future__ import annotations

from typing import Any, cast

import grpc
import pytest
from structlog.testing import capture_logs

from jetstream_server.serving.grpc.call_limiter import CallLimiter
from jetstream_server.serving.grpc.error_interceptor import ErrorInterceptor
from tests.support.loops import on_loop


class LeftError(Exception):
    """Stands for gRPC's error, which is of a private module."""


class Left:
    """The context of a call whose caller has left."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        assert code is grpc.StatusCode.UNIMPLEMENTED
        raise LeftError


class Details:
    method = "/jetstreao.v1.Streams/ListStreams"
    invocation_metadata = ()


async def no_handler(_: object) -> None:
    return None


@on_loop
async def test_a_caller_of_no_method_may_leave_before_the_answer() -> None:
    interceptor = ErrorInterceptor(CallLimiter(lambda peer: None))
    handler = await interceptor.intercept_service(no_handler, cast(Any, Details()))
    with capture_logs() as logs, pytest.raises(LeftError):
        await handler.stream_stream(None, Left())
    assert logs == []
