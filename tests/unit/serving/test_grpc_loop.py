"""Calls arrive on gRPC's loop and are answered on the node's, however slow its turns are."""

from __future__ import annotations

import asyncio
import gc
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
from jetstream_server.serving.grpc.handlers import handlers_of
from tests.support.lateness import Lateness
from tests.support.loops import eventually, on_loop

CALLS = 100
TURN_SECONDS = 0.02


class Reads:
    """Notes on which loop it was asked, and what has ended."""

    def __init__(self) -> None:
        self.loops: set[asyncio.AbstractEventLoop] = set()
        self.calls: list[Call] = []
        self.ended: list[str] = []
        self.go_on = asyncio.Event()

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


@on_loop
async def test_callers_do_not_wait_for_a_turn_of_the_nodes_loop_each() -> None:
    turns = 0

    async def be_busy() -> None:
        nonlocal turns
        while True:
            turns += 1
            time.sleep(TURN_SECONDS)  # noqa: ASYNC251  that is what a busy loop does
            await asyncio.sleep(0)

    async with served(Reads()) as (_, address):
        busy = asyncio.create_task(be_busy())
        assert await in_thread(address, lambda stub: ask_at_once(stub, CALLS)) == CALLS
        busy.cancel()
    assert turns < CALLS / 2


class Slow(Reads):
    """A method that holds the node's loop for a while."""

    begun = 0

    async def Fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchResponse:
        self.begun += 1
        time.sleep(TURN_SECONDS)  # noqa: ASYNC251
        return pb.FetchResponse()


@on_loop
async def test_a_turn_of_the_nodes_loop_begins_a_few_methods_however_many_call(
    monkeypatch: pytest.MonkeyPatch,
    lateness: Lateness,
) -> None:
    monkeypatch.setattr(grpc_loop_module, "AT_ONCE", 2)
    service, longest = Slow(), 0.0

    async def look() -> None:
        nonlocal longest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - begun)

    async with served(service) as (_, address):
        called_at = time.monotonic()
        looking = asyncio.create_task(look())
        await in_thread(address, lambda stub: ask_at_once(stub, 30))
        looking.cancel()
    assert service.begun == 30
    assert longest < TURN_SECONDS * 8 + lateness.since(called_at)


@on_loop
async def test_nothing_is_begun_for_callers_that_have_left() -> None:
    service = Slow()

    def ask_and_leave(stub: Any) -> None:
        calls = [stub.Fetch.future(pb.FetchRequest(), timeout=0.05) for _ in range(CALLS)]
        assert all(call.exception() is not None for call in calls)

    async with served(service) as (_, address):
        asking = asyncio.create_task(in_thread(address, ask_and_leave))
        await asyncio.sleep(0)
        time.sleep(1.0)  # noqa: ASYNC251
        await asking
        await asyncio.sleep(0.1)
    assert service.begun < CALLS / 2


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
