"""A processing whose source, handlers and commits do what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_client import Message, Messages, MessageTooLargeError
from jetstream_client.processing.options import ProcessOptions
from jetstream_client.processing.outputs import Output
from jetstream_client.processing.processor import Processor
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.client.batches import messages_of, numbered


class Source:
    """A member with one stream. arrived: what it reads next. news: it has to adjust."""

    is_shared = True
    is_lost = False

    def __init__(self) -> None:
        self.consumer: Any = SimpleNamespace(
            stream_id=1, stream_name="orders-1", reset_count=0, commit_below=self.commit_below
        )
        self.reads = [self.consumer]
        self.arrived: asyncio.Queue[Messages] = asyncio.Queue()
        self.news = asyncio.Event()
        self.adjusted = 0
        self.on_commit: Callable[[], object] = lambda: None

    async def begin(self) -> None: ...

    async def next(self) -> tuple[Any, Messages] | None:
        return self.consumer, await self.arrived.get()

    def consumers(self) -> list[Any]:
        return self.reads

    async def adjust(self) -> None:
        self.adjusted += 1

    async def wait_for_news(self) -> None:
        await self.news.wait()
        self.news.clear()

    def check_heard(self, timeout: float) -> None: ...

    async def aclose(self) -> None: ...

    async def commit_below(self, offset: int, last_epoch: int) -> None:
        self.on_commit()


def processor_of(source: Source, handles: asyncio.Event) -> Processor:
    async def attempt(message: Message) -> list[Output]:
        await handles.wait()
        return []

    async def ask(stream_id: int, seconds: float) -> None: ...

    async def publish(*_: Any, **__: Any) -> None: ...

    options = ProcessOptions.of(None, "workers", {})
    return Processor(source, attempt, publish, ask, 10.0, options)


@on_virtual_loop
async def test_streams_are_given_to_others_while_handlers_of_one_that_was_reset_end() -> None:
    source, handles = Source(), asyncio.Event()
    processor = processor_of(source, handles)
    running = asyncio.ensure_future(processor.run())
    source.arrived.put_nowait(messages_of(numbered(2)))
    await eventually(lambda: processor._schedule.running == 2)
    source.consumer.reset_count = 1
    source.arrived.put_nowait(messages_of(numbered(2)))
    await eventually(lambda: source.arrived.empty())
    source.news.set()
    await eventually(lambda: source.adjusted == 1)
    handles.set()
    await eventually(lambda: processor._schedule.records == 0)
    processor.stop()
    await running


@on_virtual_loop
async def test_a_bug_in_a_commit_ends_the_processing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jetstream_client.processing.processor.CHECKPOINT_SECONDS", 0.01)
    source, handles = Source(), asyncio.Event()

    def breaks() -> None:
        source.on_commit = lambda: None
        raise ValueError("a bug")

    source.on_commit = breaks
    source.arrived.put_nowait(messages_of(numbered(1)))
    handles.set()
    with pytest.raises(ValueError, match="a bug"):
        await asyncio.wait_for(processor_of(source, handles).run(), 5)


@pytest.mark.parametrize("most", [470, 0])
@on_virtual_loop
async def test_a_dead_letter_that_is_too_large_is_shortened_or_ends_the_processing(
    most: int,
) -> None:
    source, sizes = Source(), list[int]()

    async def publish(*_: Any, headers: Any, **__: Any) -> None:
        sizes.append(len(str(headers)))
        if sizes[-1] > most:
            raise MessageTooLargeError("too large")

    async def attempt(message: Message) -> list[Output]:
        raise ValueError("x" * 1000)

    async def ask(stream_id: int, seconds: float) -> None: ...

    options = ProcessOptions.of(None, "workers", {"retries": 0, "dead_letter": "dead"})
    processor = Processor(source, attempt, publish, ask, 10.0, options)
    running = asyncio.ensure_future(processor.run())
    source.arrived.put_nowait(messages_of(numbered(1)))
    if most:
        await eventually(lambda: processor._dead_letters == 1)
        processor.stop()
        await running
    else:
        with pytest.raises(MessageTooLargeError):
            await asyncio.wait_for(running, 5)
        assert processor._dead_letters == 0
    assert len(sizes) == 2
