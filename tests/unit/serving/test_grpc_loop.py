"""Calls arrive on gRPC's loop and are answered on the node's, however slow its turns are."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from grpc import aio

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.services import Stub
from jetstream_server.serving.grpc import grpc_loop as grpc_loop_module
from jetstream_server.serving.grpc.grpc_loop import Call, GrpcLoop
from jetstream_server.serving.grpc.server import handlers_of
from tests.support.loops import eventually, on_loop

CALLS = 100


class Reads:
    """Notes on which loop it was asked, and what has ended."""

    def __init__(self) -> None:
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.calls: list[Call] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()
        self.waiting: Any = None
        """Calls that the node's loop has not begun."""

    async def Fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        self.loops.add(asyncio.get_running_loop())
        self.calls.append(call)
        call.when_ended(lambda: self.ended.append("fetch"))
        return pb.FetchResponse(next_offset=request.offset + 1)

    async def Consume(
        self, request: pb.ConsumeRequest, call: Call
    ) -> AsyncIterator[pb.FetchResponse]:
        try:
            for offset in range(3):
                self.loops.add(asyncio.get_running_loop())
                yield pb.FetchResponse(next_offset=offset)
            await self.go_on.wait()
        finally:
            await asyncio.sleep(0.01)
            self.ended.append("consume")


@asynccontextmanager
async def served(service: Reads) -> AsyncIterator[tuple[GrpcLoop, str]]:
    """The service on a port of its own."""
    grpc_loop = GrpcLoop()
    grpc_loop.start()
    relayed = grpc_loop.relay(service)
    service.waiting = relayed._intake._waiting

    async def listen() -> tuple[aio.Server, int]:
        server = aio.server()
        server.add_generic_rpc_handlers([handlers_of("Reads", relayed)])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, port

    server, port = await grpc_loop.run(listen())
    try:
        yield grpc_loop, f"127.0.0.1:{port}"
    finally:
        await grpc_loop.run(server.stop(1.0))
        await grpc_loop.stop()


def ask_at_once(stub: Any, count: int) -> int:
    calls = [stub.Fetch.future(pb.FetchRequest(offset=i)) for i in range(count)]
    return len({call.result().next_offset for call in calls})


async def in_thread(address: str, ask: Callable[[Any], Any]) -> Any:
    def run() -> Any:
        with grpc.insecure_channel(address) as channel:
            return ask(Stub("Reads", channel))

    return await asyncio.to_thread(run)


@on_loop
async def test_methods_run_on_the_nodes_loop_and_answer_over_grpcs() -> None:
    service = Reads()
    async with served(service) as (_, address):
        one = await in_thread(address, lambda stub: stub.Fetch(pb.FetchRequest(offset=4)))
        assert one.next_offset == 5
        service.go_on.set()
        many = await in_thread(address, lambda stub: list(stub.Consume(pb.ConsumeRequest())))
        assert [each.next_offset for each in many] == [0, 1, 2]
        assert service.loops == {asyncio.get_running_loop()}
        assert service.calls[0].peer.startswith("ipv4:127.0.0.1:")


async def hold_until(condition: Callable[[], bool]) -> None:
    """Hold the node's loop until so much has happened in other threads."""
    await asyncio.sleep(0)
    ends = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < ends, "it did not happen in time"
        time.sleep(0.005)  # noqa: ASYNC251


@on_loop
async def test_a_turn_of_the_nodes_loop_begins_a_few_methods_and_not_only_one() -> None:
    service, most, turns = Reads(), 0, 0
    async with served(service) as (_, address):
        asking = asyncio.create_task(in_thread(address, lambda stub: ask_at_once(stub, CALLS)))
        await hold_until(lambda: len(service.waiting) == CALLS)
        while (begun := len(service.calls)) < CALLS:
            await asyncio.sleep(0)
            most = max(most, len(service.calls) - begun)
            turns += 1
        assert await asking == CALLS
    assert most <= grpc_loop_module.AT_ONCE
    assert turns < CALLS / 2


@on_loop
async def test_nothing_is_begun_for_callers_that_have_left() -> None:
    service = Reads()

    def ask_and_leave(stub: Any) -> None:
        calls = [stub.Fetch.future(pb.FetchRequest()) for _ in range(CALLS)]
        asked.wait(60)
        for call in calls:
            call.cancel()

    def have_left() -> bool:
        if len(service.waiting) == CALLS:
            asked.set()
        return asked.is_set() and all(call.answer.cancelled() for call in list(service.waiting))

    asked = threading.Event()
    async with served(service) as (_, address):
        asking = asyncio.create_task(in_thread(address, ask_and_leave))
        await hold_until(have_left)
        await asking
    assert service.calls == []


@on_loop
async def test_a_call_leaves_nothing_to_the_collector_of_garbage() -> None:
    service = Reads()
    async with served(service) as (_, address):
        gc.collect()
        gc.disable()
        try:
            await in_thread(address, lambda stub: ask_at_once(stub, CALLS))
            await eventually(lambda: len(service.ended) == CALLS)
            await asyncio.sleep(0.1)
            left = sum(type(each).__name__ == "_ServicerContext" for each in gc.get_objects())
        finally:
            gc.enable()
    assert left < CALLS / 10


@on_loop
async def test_without_the_loop_there_is_a_clear_error() -> None:
    async with served(Reads()) as (grpc_loop, _):
        pass
    with pytest.raises(UnavailableError, match="stopping"):
        await grpc_loop.run(asyncio.sleep(0))


@on_loop
async def test_what_waits_for_the_end_of_a_call_is_told_even_if_it_has_ended_before() -> None:
    service = Reads()
    async with served(service) as (_, address):
        await in_thread(address, lambda stub: stub.Fetch(pb.FetchRequest()))
        await eventually(lambda: service.ended == ["fetch"])
        service.calls[0].when_ended(lambda: service.ended.append("late"))
        assert service.ended == ["fetch", "late"]


@on_loop
async def test_a_stream_that_is_cancelled_ends_its_method() -> None:
    service = Reads()

    def leave(stub: Any) -> None:
        answers = stub.Consume(pb.ConsumeRequest())
        assert next(answers).next_offset == 0
        answers.cancel()

    async with served(service) as (_, address):
        await in_thread(address, leave)
        await eventually(lambda: service.ended == ["consume"])


@on_loop
async def test_mistakes_on_grpcs_loop_are_told_on_the_nodes() -> None:
    told: list[str] = []

    async def make_a_mistake() -> None:
        asyncio.get_running_loop().call_exception_handler({"message": "a mistake"})

    async with served(Reads()) as (grpc_loop, _):
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        await grpc_loop.run(make_a_mistake())
        await eventually(lambda: told == ["a mistake"])
