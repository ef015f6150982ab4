"""A consumer's position: where it begins, ends, and what it does when a fetch fails."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from jetstream_client import (
    AsyncConsumer,
    Messages,
    OffsetOutOfRangeError,
    Position,
    UnavailableError,
)
from jetstream_client.reading.cursor import ConsumerCursor
from jetstream_client.reading.deserializers import Deserializers
from jetstream_client.reading.messages import MessageCollector
from jetstream_client.values.positions import needed, offset_of
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.batches import batch_bytes, messages_of, numbered


class Log:
    """A stream of numbered records, fetched three at a time."""

    def __init__(self, start: int = 0, high_watermark: int = 10) -> None:
        self.start = start
        self.high_watermark = high_watermark
        self.is_cut = False
        self.asked: list[int] = []
        self.failures: list[Exception] = []
        self.patience: float | None = None
        self.on_fetch: Callable[[], None] = lambda: None

    async def fetch(
        self, offset: int, last_epoch: int, stop: int | None, max_wait: float
    ) -> Messages:
        self.asked.append(offset)
        self.on_fetch()
        if self.failures:
            raise self.failures.pop()
        if offset < self.start:
            raise OffsetOutOfRangeError("gone", self.start, self.high_watermark)
        if self.is_cut and offset > self.high_watermark:
            await asyncio.sleep(0)
            raise OffsetOutOfRangeError("beyond", self.start, self.high_watermark)
        if offset >= self.high_watermark:
            await asyncio.sleep(max_wait)
        cutter = MessageCollector("orders", offset, end=stop, count_max=3)
        cutter.add(numbered(self.high_watermark - self.start, self.start))
        return cutter.messages()

    def lose(self, high_watermark: int) -> None:
        """The records from there on, in an election. Its leader knows that there are no more."""
        self.high_watermark = high_watermark
        self.is_cut = True

    def offset_of(self, position: Position) -> int:
        answers = {"earliest": self.start, "latest": self.high_watermark}
        return offset_of(position, [answers[str(name)] for name in needed(position)])

    def consume(
        self,
        start: Position = "earliest",
        stop: Position | None = "latest",
        cursor: ConsumerCursor | None = None,
    ) -> AsyncConsumer:
        async def resolve(start: Position, stop: Position | None) -> tuple[int, int | None]:
            return self.offset_of(start), None if stop is None else self.offset_of(stop)

        return AsyncConsumer(
            self.fetch, resolve, start, stop, patience=self.patience, cursor=cursor
        )


async def offsets(consumer: AsyncConsumer) -> list[int]:
    return [message.offset async for message in consumer]


@on_virtual_loop
async def test_every_record_comes_once_and_in_order() -> None:
    assert await offsets(Log().consume()) == list(range(10))


@on_virtual_loop
async def test_it_stops_before_the_end_that_was_asked_for() -> None:
    assert await offsets(Log().consume(2, 7)) == [2, 3, 4, 5, 6]


@on_virtual_loop
async def test_latest_is_settled_when_reading_begins() -> None:
    log = Log()
    log.on_fetch = lambda: setattr(log, "high_watermark", 20)
    assert await offsets(log.consume()) == list(range(10))


@on_virtual_loop
async def test_entering_settles_where_it_begins() -> None:
    log = Log()
    async with log.consume("latest", None) as consumer:
        log.high_watermark = 12
        assert consumer.position == 10
        assert [(await anext(consumer)).offset for _ in range(2)] == [10, 11]
        assert consumer.position == 12


@on_virtual_loop
async def test_the_next_records_are_fetched_while_these_are_handed_out() -> None:
    log = Log()
    async with log.consume() as consumer:
        await anext(consumer)
        await asyncio.sleep(0)
        assert log.asked == [0, 3]


@on_virtual_loop
async def test_earliest_follows_retention_until_the_first_record() -> None:
    log = Log(start=0)
    consumer = log.consume()
    await consumer.begin()
    log.start = 4
    assert await offsets(consumer) == [4, 5, 6, 7, 8, 9]


@on_virtual_loop
async def test_a_reader_that_retention_overtook_is_told_never_moved() -> None:
    log = Log()
    async with log.consume() as consumer:
        for _ in range(6):
            await anext(consumer)
        log.start = 9
        with pytest.raises(OffsetOutOfRangeError):
            await offsets(consumer)
        assert consumer.position == 6


@on_virtual_loop
async def test_an_offset_below_the_start_is_refused() -> None:
    with pytest.raises(OffsetOutOfRangeError):
        await offsets(Log(start=5).consume(2))


@on_virtual_loop
async def test_an_offset_far_beyond_the_end_is_refused_not_waited_for() -> None:
    log = Log()
    log.failures.append(OffsetOutOfRangeError("beyond", 0, 10))
    with pytest.raises(OffsetOutOfRangeError):
        await offsets(log.consume(99))


@on_virtual_loop
async def test_a_log_that_ends_before_where_it_waits_is_told_and_not_asked_on_and_on() -> None:
    log = Log()
    consumer = log.consume("latest", None)
    await consumer.begin()
    log.lose(5)
    for asked in ([10], [10, 10]):
        with pytest.raises(OffsetOutOfRangeError):
            await anext(consumer)
        assert log.asked == asked
    await consumer.seek("latest")
    log.high_watermark = 6
    assert (await anext(consumer)).offset == 5


@on_virtual_loop
async def test_a_cursor_whose_log_ends_before_it_begins_anew_where_it_is_told_to() -> None:
    log = Log()
    reset: Any = SimpleNamespace(
        auto_commit=False,
        reset_to=None,
        open=AsyncMock(return_value=None),
        reset_by=lambda error: "earliest",
    )
    async with log.consume("latest", None, cursor=reset) as consumer:
        log.lose(5)
        assert (await anext(consumer)).offset == 0
        assert consumer.reset_count == 1


@on_virtual_loop
async def test_so_does_one_that_is_to_stop_at_the_end_of_what_is_left() -> None:
    log = Log()
    log.lose(5)
    reset: Any = SimpleNamespace(
        auto_commit=False,
        reset_to=None,
        open=AsyncMock(return_value=(8, 0)),
        reset_by=lambda error: "earliest",
    )
    consumer = log.consume("earliest", "latest", cursor=reset)
    assert await offsets(consumer) == [0, 1, 2, 3, 4]
    assert consumer.reset_count == 1


@on_virtual_loop
async def test_after_a_failure_reading_goes_on_where_it_was() -> None:
    log = Log()
    log.failures.append(UnavailableError("for a moment"))
    consumer = log.consume()
    with pytest.raises(UnavailableError):
        await anext(consumer)
    assert await offsets(consumer) == list(range(10))


@on_virtual_loop
async def test_waiting_with_a_timeout_loses_nothing() -> None:
    log = Log()
    async with log.consume(9, None) as consumer:
        assert (await anext(consumer)).offset == 9
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.01)
        asked = list(log.asked)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(consumer), 0.01)
        assert log.asked == asked  # the same fetch is waited for


@on_virtual_loop
async def test_closing_gives_up_the_fetch_under_way() -> None:
    log = Log()
    consumer = log.consume(10, None)
    waiting = asyncio.ensure_future(anext(consumer, None))
    await asyncio.sleep(0.01)
    await consumer.aclose()
    assert await waiting is None
    assert await anext(consumer, None) is None


@on_virtual_loop
async def test_cancelling_whoever_waits_is_not_swallowed() -> None:
    consumer = Log().consume(10, None)
    waiting = asyncio.ensure_future(anext(consumer, None))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await consumer.aclose()


@on_virtual_loop
async def test_patience_ends_when_no_record_comes_for_so_long() -> None:
    log = Log()
    log.patience = 0.05
    consumer = log.consume(7, 20)
    assert [(await anext(consumer)).offset for _ in range(3)] == [7, 8, 9]
    with pytest.raises(UnavailableError, match="no record of 'orders'"):
        await anext(consumer)


@on_virtual_loop
async def test_patience_is_of_one_wait_not_of_the_whole_reading() -> None:
    log = Log(high_watermark=40)
    log.patience = 0.05
    read = []
    async for message in log.consume():
        read.append(message.offset)
        await asyncio.sleep(0.005)
    assert read == list(range(40))


@on_virtual_loop
async def test_offsets_that_compaction_emptied_use_up_no_patience() -> None:
    async def fetch(offset: int, last_epoch: int, stop: int | None, max_wait: float) -> Messages:
        columns = {"offset_deltas": [], "last_offset_delta": 9}
        data = batch_bytes([], offset, **columns) if offset < 50 else numbered(10, offset)
        return messages_of(data, offset)

    async def resolve(start: Position, stop: Position | None) -> tuple[int, int | None]:
        return 0, 60

    consumer = AsyncConsumer(fetch, resolve, 0, 60, patience=0.01)
    assert await offsets(consumer) == list(range(50, 60))


@on_virtual_loop
async def test_it_goes_on_where_it_is_sent_backwards_and_forwards() -> None:
    async with Log().consume() as consumer:
        assert [(await anext(consumer)).offset for _ in range(2)] == [0, 1]
        await consumer.seek(7)
        assert consumer.position == 7
        assert (await anext(consumer)).offset == 7
        await consumer.seek("earliest")
        assert await offsets(consumer) == list(range(10))
        await consumer.seek(8)
        assert await offsets(consumer) == [8, 9]


@on_virtual_loop
async def test_whoever_waits_for_a_record_is_sent_along() -> None:
    log = Log()
    async with log.consume("latest", None) as consumer:
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0.01)
        await consumer.seek(4)
        assert (await waiting).offset == 4


@on_virtual_loop
async def test_a_seek_below_the_log_start_is_told_like_any_other_offset() -> None:
    log = Log(start=4)
    async with log.consume() as consumer:
        await consumer.seek(1)
        with pytest.raises(OffsetOutOfRangeError):
            await anext(consumer)
        await consumer.seek("earliest")
        assert (await anext(consumer)).offset == 4


@on_virtual_loop
async def test_paused_it_hands_out_nothing_and_fetches_nothing_further() -> None:
    log = Log()
    async with log.consume() as consumer:
        await anext(consumer)
        await asyncio.sleep(0)
        consumer.pause()
        assert consumer.paused
        waiting = asyncio.ensure_future(anext(consumer))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        assert log.asked == [0, 3]
        consumer.resume()
        assert (await waiting).offset == 1
        assert await offsets(consumer) == list(range(2, 10))


@on_virtual_loop
async def test_closing_ends_a_pause() -> None:
    consumer = Log().consume()
    await anext(consumer)
    consumer.pause()
    waiting = asyncio.ensure_future(offsets(consumer))
    await asyncio.sleep(0.01)
    await consumer.aclose()
    assert await waiting == []


@on_virtual_loop
async def test_what_cannot_be_deserialised_is_not_passed_over() -> None:
    def even(value: bytes) -> int:
        if int(value) % 2:
            raise ValueError("odd")
        return int(value)

    async with Log().consume() as consumer:
        consumer.deserializers = Deserializers(value=even)
        assert (await anext(consumer)).value == 0
        for _ in range(2):
            with pytest.raises(ValueError, match="odd") as raised:
                await anext(consumer)
            assert raised.value.__notes__ == [
                "deserialising the value of record 1 of stream 'orders'"
            ]
            assert consumer.position == 1
        await consumer.seek(2)
        assert (await anext(consumer)).value == 2
