"""What takes longer to begin than any call may take begins all the same: the next call goes on
waiting for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pytest

from jetstream_client._closing import AsyncClosing
from jetstream_client.reading.consumer import AsyncConsumer
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.test_closing_publishers import Cluster, client_of
from tests.unit.client.test_consume import Log
from tests.unit.client.test_group_consumer import Member
from tests.unit.client.test_queue import Server, queue_of
from tests.unit.client.test_table import table_of

LIMIT_SECONDS: Final = 0.1
SLOW_SECONDS: Final = 0.15


class Case(NamedTuple):
    it: AsyncClosing
    ask: Callable[[], Awaitable[object]]


def slow(of: Any, name: str) -> None:
    fast = getattr(of, name)

    async def call(*arguments: Any) -> Any:
        await asyncio.sleep(SLOW_SECONDS)
        return await fast(*arguments)

    setattr(of, name, call)


def slow_consumer() -> AsyncConsumer:
    consumer = Log().consume("earliest", None)
    slow(consumer, "_resolve")
    return consumer


def a_consumer() -> Case:
    consumer = slow_consumer()
    return Case(consumer, lambda: anext(consumer))


def a_member() -> Case:
    member = Member()
    slow(member.coordinator, "heartbeat")
    return Case(member.consumer, lambda: anext(member.consumer))


def a_queue() -> Case:
    queue = queue_of(Server())
    slow(queue, "_create")
    return Case(queue, lambda: anext(queue))


def a_table() -> Case:
    table = table_of(slow_consumer())
    return Case(table, table.begin)


def a_publisher() -> Case:
    cluster = Cluster()
    slow(cluster, "route")
    publisher: Any = client_of(cluster).publisher("s")
    return Case(publisher, lambda: publisher.send(b"1"))


CASES = (a_consumer, a_member, a_queue, a_table, a_publisher)


@pytest.mark.parametrize("make", CASES)
@on_virtual_loop
async def test_it_begins_however_little_time_each_call_has(make: Callable[[], Case]) -> None:
    it, ask = make()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(LIMIT_SECONDS / 2):
                await ask()
    async with asyncio.timeout(LIMIT_SECONDS):
        await ask()
    await it.aclose()


@pytest.mark.parametrize("make", CASES)
@on_virtual_loop
async def test_closing_ends_what_nobody_waits_for_any_more(make: Callable[[], Case]) -> None:
    before = asyncio.all_tasks()
    it, ask = make()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(LIMIT_SECONDS / 2):
            await ask()
    await it.aclose()
    assert asyncio.all_tasks() == before
