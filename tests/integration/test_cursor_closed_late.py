"""The last commit of a consumer whose closing was cut short arrives when the next one has begun."""

from __future__ import annotations

import asyncio
from typing import Any

from jetstream_client import AsyncClient
from tests.support.loops import on_loop
from tests.support.server import ServerProcess


@on_loop
async def test_a_late_last_commit_of_an_earlier_consumer_does_not_end_the_next_one(
    server: ServerProcess,
) -> None:
    async with AsyncClient(server.grpc) as client:
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
            assert (await client.describe_cursor("reader", "late")).offset == 6
            await second.commit()
            assert (await client.describe_cursor("reader", "late")).offset == 4
