"""A table that is not opened leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_client import AsyncClient, InvalidRequestError
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.messages import LogView, Messages
from jetstream_client.reading.table import AsyncTable
from tests.support.loops import eventually, on_loop

END = 10**9


def answer(next_offset: int) -> Messages:
    found = Messages("prices", (), next_offset=next_offset, high_watermark=END)
    found.log_views = (LogView(1, 0),)
    return found


class Endless:
    """A consumer of a stream that is too long to be read."""

    deserializers = Deserializers()

    def __init__(self) -> None:
        self.asked = 0
        self.is_closed = False

    async def begin(self) -> None:
        await asyncio.sleep(0)

    async def next_messages(self) -> Any:
        self.asked += 1
        await asyncio.sleep(0)
        return answer(self.asked)

    async def aclose(self) -> None:
        self.is_closed = True


def table_of(consumer: Any, failure: Exception | None = None) -> AsyncTable:
    async def latest() -> int:
        if failure is not None:
            raise failure
        return END

    async def grace() -> float:
        return 0.0

    return AsyncTable(consumer, latest, grace, wait=True, patience=60, stale_after=None)


@on_loop
async def test_a_table_that_has_not_begun_does_not_seem_empty() -> None:
    table = AsyncClient("localhost:1").table("prices")
    with pytest.raises(InvalidRequestError, match="use it in `async with`"):
        table["apple"]
    assert repr(table).startswith("<AsyncTable of 0 keys")


@on_loop
async def test_a_table_whose_opening_is_cancelled_stops_loading() -> None:
    consumer = Endless()
    table = table_of(consumer)
    opening = asyncio.create_task(table.__aenter__())
    await eventually(lambda: consumer.asked > 3)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert consumer.is_closed
    assert table._task is not None
    assert table._task.done()


@on_loop
async def test_a_table_whose_end_is_refused_stops_loading() -> None:
    consumer = Endless()
    table = table_of(consumer, InvalidRequestError("refused"))
    with pytest.raises(InvalidRequestError, match="refused"):
        await table.opened()
    assert consumer.is_closed
