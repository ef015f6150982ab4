"""The last commit of a consumer that was killed, or whose closing was cut short, arrives when the
next one has begun."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_client import AsyncClient, AsyncConsumer, Message
from jetstream_client.transport.cursors import Commit
from tests.support.loops import eventually, on_loop
from tests.support.server import ServerProcess


@on_loop
async def test_a_late_last_commit_of_an_earlier_consumer_does_not_end_the_next_one(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("late", "late")
        for number in range(10):
            await client.publish("late", b"%d" % number)
        cursors: Any = client._cursors
        commit = cursors.commit
        held: list[Any] = []
        is_held = asyncio.Event()

        async def later(asked: Any) -> Any:
            held.append(asked)
            is_held.set()
            await asyncio.Event().wait()

        first = client.consume("late", cursor="reader", auto_commit=False)
        for _ in range(3):
            await anext(first)
        await first.commit()
        for _ in range(3):
            await anext(first)
        cursors.commit = later
        committing = asyncio.ensure_future(first.commit())
        await is_held.wait()
        committing.cancel()
        await asyncio.gather(committing, return_exceptions=True)
        cursors.commit = commit
        await first.aclose()
        async with client.consume("late", cursor="reader", auto_commit=False) as second:
            assert (await anext(second)).offset == 3
            await commit(held[0])
            assert (await client.describe_cursor("reader", "late")).offset == 3
            await second.commit()
            assert (await client.describe_cursor("reader", "late")).offset == 4


@pytest.mark.parametrize("is_processing", [False, True])
@on_loop
async def test_a_late_commit_of_a_killed_program_does_not_end_the_next_one(
    server: ServerProcess, is_processing: bool
) -> None:
    name = f"killed-{is_processing}"
    async with (
        AsyncClient(server.grpc, timeout=60) as killed,
        AsyncClient(server.grpc, timeout=60) as client,
    ):
        await client.create_stream(name, name)
        for number in range(10):
            await client.publish(name, b"%d" % number)
        first = killed.consume(name, cursor="reader", auto_commit=False)
        for _ in range(3):
            await anext(first)
        await first.commit()
        late = await last_commit(killed, first)
        if is_processing:
            handled: list[int] = []

            async def handler(message: Message) -> None:
                if not handled:
                    await killed._cursors.commit(late)
                handled.append(message.offset)

            await client.process(name, handler, cursor="reader", stop="latest")
            assert sorted(handled) == list(range(3, 10))
        else:
            async with client.consume(name, cursor="reader", stop="latest") as second:
                assert (await anext(second)).offset == 3
                await killed._cursors.commit(late)
                assert [message.offset async for message in second] == list(range(4, 10))
        assert (await client.describe_cursor("reader", name)).offset == 10


async def last_commit(client: AsyncClient, consumer: AsyncConsumer) -> Commit:
    """The commit with which the program ends; it has left and has not arrived."""
    held: list[Commit] = []
    is_held = asyncio.Event()
    cursors: Any = client._cursors
    commit = cursors.commit

    async def hold(asked: Commit) -> None:
        held.append(asked)
        is_held.set()
        await asyncio.Event().wait()

    await anext(consumer)
    cursors.commit = hold
    committing = asyncio.ensure_future(consumer.commit())
    await is_held.wait()
    committing.cancel()
    await asyncio.gather(committing, return_exceptions=True)
    cursors.commit = commit
    return held[0]


@on_loop
async def test_nor_does_closing_it_again_fail_when_the_next_one_has_committed(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc, timeout=60) as client:
        await client.create_stream("again", "again")
        for number in range(10):
            await client.publish("again", b"%d" % number)
        cursors: Any = client._cursors
        commit, is_closing = cursors.commit, asyncio.Event()

        async def never(asked: Any) -> Any:
            is_closing.set()
            await asyncio.Event().wait()

        first = client.consume("again", cursor="reader")
        await anext(first)
        await first.commit(0)
        await anext(first)
        cursors.commit = never
        closing = asyncio.ensure_future(first.aclose())
        await eventually(lambda: first.buffer.has_ended and is_closing.is_set())
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        cursors.commit = commit
        async with client.consume("again", cursor="reader") as second:
            await anext(second)
            await anext(second)
        await first.aclose()
        assert (await client.describe_cursor("reader", "again")).offset == 2
