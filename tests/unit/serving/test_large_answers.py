"""Lists over gRPC wait for room: who asks for many and reads none holds bounded memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.security.identity import ANONYMOUS
from jetstream_server.security.requirements import RPCS
from jetstream_server.serving.grpc import guard
from jetstream_server.serving.grpc.guard import Guarded
from jetstream_server.serving.grpc.response_memory import (
    ANSWER_BYTES_MAX,
    PEER_BYTES_MAX,
    ResponseMemoryLimiter,
)
from tests.support.access import open_to_all
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop


class Streams:
    """Whose list has two megabytes."""

    made = 0

    async def ListStreams(self, request: object, call: object) -> pb.ListStreamsResponse:
        self.made += 1
        if self.fails:
            raise ValueError("a bug")
        return pb.ListStreamsResponse(
            streams=[pb.Stream(name="s" * 1000) for _ in range(PEER_BYTES_MAX // 1000)]
        )

    fails = False


class OneCall:
    """Of a client that reads its answer when the test says so."""

    peer = "ipv4:10.0.0.1:5"
    peer_identity = None
    identity = ANONYMOUS
    known_revision = 0

    def __init__(self) -> None:
        self.ended: list[Callable[[], object]] = []
        self.when_ended = self.ended.append

    def header(self, key: str) -> str:
        return ""


async def know_enough(revision: int) -> None: ...


def guarded(streams: Streams, unread: ResponseMemoryLimiter) -> Guarded:
    access = SimpleNamespace(control=open_to_all())
    connections = SimpleNamespace(called=lambda peer, identity: None)
    return Guarded(
        streams,
        "jetstream.v1.Streams",
        cast(Any, access),
        cast(Any, connections),
        unread,
        know_enough,
    )


@on_virtual_loop
async def test_a_list_is_made_once_the_ones_before_are_read() -> None:
    streams, unread = Streams(), ResponseMemoryLimiter(lambda _: None)
    service = guarded(streams, unread)
    calls = [OneCall() for _ in range(3)]
    asking = [
        asyncio.ensure_future(service.ListStreams(pb.ListStreamsRequest(), cast(Any, each)))
        for each in calls
    ]
    await eventually(lambda: asking[0].done())
    size = asking[0].result().ByteSize()
    assert size > ANSWER_BYTES_MAX
    await asyncio.sleep(0.05)
    assert (streams.made, unread.bytes) == (1, size)
    for each in range(3):
        await eventually(lambda each=each: asking[each].done())
        calls[each].ended[0]()
    assert (streams.made, unread.bytes) == (3, 0)


@on_virtual_loop
async def test_a_call_that_fails_holds_no_room() -> None:
    streams, unread = Streams(), ResponseMemoryLimiter(lambda _: None)
    streams.fails = True
    with pytest.raises(ValueError, match="a bug"):
        await guarded(streams, unread).ListStreams(pb.ListStreamsRequest(), cast(Any, OneCall()))
    assert unread.bytes == 0


def test_what_is_large_is_an_rpc() -> None:
    assert set(RPCS) >= guard.LARGE
