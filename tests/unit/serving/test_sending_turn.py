"""One answer at a time, in the order of asking."""

from __future__ import annotations

import asyncio

import pytest

from jetstream_server.serving.dataplane.sending_turn import SendingTurn
from tests.support.virtual_time import on_virtual_loop


class Senders:
    """Tasks that take the turn, note their number, and give it back when told."""

    def __init__(self) -> None:
        self.turn = SendingTurn()
        self.order: list[int] = []
        self.ends = asyncio.Event()

    def start(self, number: int) -> asyncio.Task[None]:
        return asyncio.create_task(self._send(number))

    async def _send(self, number: int) -> None:
        async with self.turn:
            self.order.append(number)
            await self.ends.wait()


@on_virtual_loop
async def test_it_is_taken_by_one_and_passed_on_in_order() -> None:
    senders = Senders()
    assert senders.turn.take()
    assert not senders.turn.take()
    tasks = [senders.start(number) for number in range(3)]
    await asyncio.sleep(0)
    assert senders.order == []
    senders.turn.give()
    assert not senders.turn.take(), "it is passed on already"
    await asyncio.sleep(0.01)
    assert senders.order == [0]
    senders.ends.set()
    await asyncio.gather(*tasks)
    assert senders.order == [0, 1, 2]
    assert senders.turn.take()


@on_virtual_loop
async def test_who_gives_up_is_left_out() -> None:
    senders = Senders()
    assert senders.turn.take()
    tasks = [senders.start(number) for number in range(3)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    senders.turn.give()
    tasks[1].cancel()
    senders.ends.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert senders.order == [2]
    assert senders.turn.take()


@on_virtual_loop
async def test_who_is_passed_it_and_cancelled_at_once_passes_it_on() -> None:
    senders = Senders()
    assert senders.turn.take()
    tasks = [senders.start(number) for number in range(2)]
    await asyncio.sleep(0)
    senders.turn.give()
    tasks[0].cancel()
    senders.ends.set()
    with pytest.raises(asyncio.CancelledError):
        await tasks[0]
    await tasks[1]
    assert senders.order == [1]
    assert senders.turn.take()


@on_virtual_loop
async def test_an_error_gives_it_back() -> None:
    turn = SendingTurn()
    with pytest.raises(ZeroDivisionError):
        async with turn:
            raise ZeroDivisionError
    assert turn.take()
