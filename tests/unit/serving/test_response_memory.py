"""The memory of unread answers: bounded over all, fair between connections, never held for long."""

from __future__ import annotations

import asyncio
import errno

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.serving.grpc import response_memory as module
from jetstream_server.serving.grpc.response_memory import (
    PEER_BYTES_MAX,
    Reservation,
    ResponseMemoryLimiter,
)
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop

MIB = 1024 * 1024


def nobody(peer: str) -> None:
    raise AssertionError(f"{peer} was hung up on")


@on_virtual_loop
async def test_answers_within_the_bound_wait_for_nobody() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 10 * MIB)
    held = [await outstanding.reserve(f"peer-{index}", MIB) for index in range(10)]
    assert outstanding.bytes == 10 * MIB
    for each in held:
        outstanding.release(each)
    assert outstanding.bytes == 0


@on_virtual_loop
async def test_an_answer_beyond_the_bound_waits_for_room() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 2 * MIB)
    first = await outstanding.reserve("a", MIB)
    await outstanding.reserve("b", MIB)
    waiting = asyncio.create_task(outstanding.reserve("c", MIB))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    outstanding.release(first)
    await waiting
    assert outstanding.bytes == 2 * MIB


@on_virtual_loop
async def test_an_answer_larger_than_the_bound_has_room_when_it_is_alone() -> None:
    outstanding = ResponseMemoryLimiter(nobody, MIB)
    held = await outstanding.reserve("a", 64 * MIB)
    waiting = asyncio.create_task(outstanding.reserve("b", 1))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    outstanding.release(held)
    await waiting


@on_virtual_loop
async def test_an_answer_without_room_is_refused_after_its_time() -> None:
    outstanding = ResponseMemoryLimiter(nobody, MIB)
    await outstanding.reserve("a", MIB)
    with pytest.raises(UnavailableError):
        await outstanding.reserve("b", 1, 0.1)
    assert outstanding.bytes == MIB
    assert list(outstanding._peers) == ["a"]


@on_virtual_loop
async def test_one_connection_holds_no_more_than_its_share() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 100 * MIB)
    held = await outstanding.reserve("greedy", PEER_BYTES_MAX)
    waiting = asyncio.create_task(outstanding.reserve("greedy", 1))
    await outstanding.reserve("modest", MIB, 0.1)
    await asyncio.sleep(0.05)
    assert not waiting.done()
    outstanding.release(held)
    await waiting


@on_virtual_loop
async def test_those_who_wait_are_served_in_turn() -> None:
    outstanding = ResponseMemoryLimiter(nobody, MIB)
    held = await outstanding.reserve("first", MIB)
    order: list[str] = []

    async def take(name: str) -> None:
        mine = await outstanding.reserve(name, MIB)
        order.append(name)
        outstanding.release(mine)

    tasks = []
    for name in ("b", "c", "d"):
        tasks.append(asyncio.create_task(take(name)))
        await asyncio.sleep(0)
    outstanding.release(held)
    await asyncio.gather(*tasks)
    assert order == ["b", "c", "d"]


@on_virtual_loop
async def test_a_cancelled_wait_leaves_nothing_behind() -> None:
    outstanding = ResponseMemoryLimiter(nobody, MIB)
    held = await outstanding.reserve("a", MIB)
    waits = [asyncio.create_task(outstanding.reserve(f"w{i}", MIB, None)) for i in range(5)]
    await asyncio.sleep(0.02)
    for wait in waits:
        wait.cancel()
    await asyncio.gather(*waits, return_exceptions=True)
    outstanding.release(held)
    assert (outstanding.bytes, outstanding._peers) == (0, {})
    await outstanding.reserve("b", MIB, 0.1)


def test_under_pressure_the_longest_stalled_are_hung_up_on_one_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)

    @on_virtual_loop
    async def scenario() -> None:
        held: dict[str, Reservation] = {}
        ended: list[str] = []

        def close_connection(peer: str) -> None:
            ended.append(peer)
            loop = asyncio.get_running_loop()
            loop.call_later(0.01, outstanding.release, held.pop(peer))  # As gRPC would.

        outstanding = ResponseMemoryLimiter(close_connection, 2 * MIB)
        for name in ("oldest", "younger"):
            held[name] = await outstanding.reserve(name, MIB)
        await asyncio.sleep(0.2)
        assert ended == [], "nobody waits: let them take their time"
        await outstanding.reserve("reader", 2 * MIB)
        assert ended == ["oldest", "younger"]

    scenario()


def test_who_waits_for_room_waits_on_while_there_is_no_descriptor_to_hang_up_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)

    @on_virtual_loop
    async def scenario() -> None:
        lacking = [OSError(errno.EMFILE, "Too many open files") for _ in range(2)]
        held: dict[str, Reservation] = {}

        def close_connection(peer: str) -> None:
            if lacking:
                raise lacking.pop()
            asyncio.get_running_loop().call_soon(outstanding.release, held.pop(peer))

        outstanding = ResponseMemoryLimiter(close_connection, MIB)
        held["stalled"] = await outstanding.reserve("stalled", MIB)
        await outstanding.reserve("reader", MIB)
        assert not held

    scenario()


def test_who_takes_answers_in_time_is_never_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.01)

    @on_virtual_loop
    async def scenario() -> None:
        outstanding = ResponseMemoryLimiter(nobody, MIB)
        served = 0

        async def read(name: str) -> None:
            nonlocal served
            for _ in range(5):
                mine = await outstanding.reserve(name, MIB)
                await asyncio.sleep(0.01)
                outstanding.release(mine)
                served += 1

        await asyncio.gather(*(read(f"r{index}") for index in range(5)))
        await eventually(lambda: served == 25)

    scenario()


@on_virtual_loop
async def test_one_principal_holds_no_more_than_half_over_all_its_connections() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 4 * MIB)
    first = await outstanding.reserve("a", MIB, principal="user:x")
    await outstanding.reserve("b", MIB, principal="user:x")
    waiting = asyncio.create_task(outstanding.reserve("c", MIB, principal="user:x"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await outstanding.reserve("d", MIB, principal="user:y")
    await outstanding.reserve("e", MIB)
    outstanding.release(first)
    held = await waiting
    outstanding.release(held)
    assert outstanding.bytes == 3 * MIB


@on_virtual_loop
async def test_answers_of_one_principal_that_wait_together_take_half_and_no_more() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 4 * MIB)
    everything = await outstanding.reserve("other", 4 * MIB, principal="user:y")
    waits = [
        asyncio.create_task(outstanding.reserve(f"x{i}", MIB, None, principal="user:x"))
        for i in range(4)
    ]
    await asyncio.sleep(0.05)
    outstanding.release(everything)
    await eventually(lambda: outstanding.bytes == 2 * MIB)
    await outstanding.reserve("other", 2 * MIB, principal="user:y")
    assert sum(each.done() for each in waits) == 2
    for each in waits:
        each.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


@on_virtual_loop
async def test_principals_that_wait_take_turns() -> None:
    outstanding = ResponseMemoryLimiter(nobody, 2 * MIB)
    everything = await outstanding.reserve("other", 2 * MIB, principal="user:z")
    greedy = [
        asyncio.create_task(outstanding.reserve(f"x{i}", MIB, None, principal="user:x"))
        for i in range(50)
    ]
    await asyncio.sleep(0.05)
    modest = asyncio.create_task(outstanding.reserve("y", MIB, principal="user:y"))
    await asyncio.sleep(0.05)
    outstanding.release(everything)
    await modest
    assert sum(each.done() for each in greedy) == 1
    for each in greedy:
        each.cancel()
    await asyncio.gather(*greedy, return_exceptions=True)


@pytest.mark.parametrize("second", ["deaf", "waiting"], ids=["its connection", "its principal"])
@on_virtual_loop
async def test_nobody_is_hung_up_on_for_an_answer_that_would_not_have_its_room(
    second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow reader of another principal has more room than it needs."""
    monkeypatch.setattr(module, "STALL_SECONDS", 0.05)
    closed: list[str] = []
    outstanding = ResponseMemoryLimiter(closed.append, 8 * PEER_BYTES_MAX)
    await outstanding.reserve("slow", MIB, principal="user:slow")
    await outstanding.reserve("deaf", 2 * PEER_BYTES_MAX, principal="user:deaf")
    await outstanding.reserve("deaf too", 2 * PEER_BYTES_MAX, principal="user:deaf")
    waiting = asyncio.create_task(outstanding.reserve(second, MIB, None, principal="user:deaf"))
    await eventually(lambda: "deaf" in closed)
    await asyncio.sleep(0.3)
    assert "slow" not in closed
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@on_virtual_loop
async def test_an_answer_that_is_being_made_is_no_reason_to_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STALL_SECONDS", 0.0)
    hung_up_on: list[str] = []
    outstanding = ResponseMemoryLimiter(hung_up_on.append, MIB)
    held = await outstanding.reserve("a", MIB, is_made=False)
    with pytest.raises(UnavailableError):
        await outstanding.reserve("b", MIB, 0.2)
    assert hung_up_on == []
    outstanding.renew(held)
    with pytest.raises(UnavailableError):
        await outstanding.reserve("b", MIB, 0.2)
    assert "a" in hung_up_on


@on_virtual_loop
async def test_room_that_an_answer_does_not_need_is_for_others() -> None:
    outstanding = ResponseMemoryLimiter(nobody, MIB)
    held = await outstanding.reserve("a", MIB, principal="user:a", is_made=False)
    waiting = asyncio.create_task(outstanding.reserve("b", MIB // 2, principal="user:b"))
    await asyncio.sleep(0)
    outstanding.renew(held, 10)
    await waiting
    assert outstanding.bytes == MIB // 2 + 10
    outstanding.release(held)
    assert outstanding.bytes == MIB // 2
