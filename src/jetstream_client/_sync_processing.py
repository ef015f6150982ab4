"""The method of `Client` that calls a handler for each record."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jetstream_client._async import AsyncClient
from jetstream_client._async_groups import SESSION_SECONDS
from jetstream_client._async_processing import (
    OUTSTANDING_BYTES,
    OUTSTANDING_MAX,
    RETRIES,
    RETRY_SECONDS,
    options_of,
    run_until,
)
from jetstream_client._loop_thread import LoopThread
from jetstream_client._positions import Position
from jetstream_client._serialization import Deserializer, Deserializers
from jetstream_client._types import OnReset, ReadFrom
from jetstream_client.processing.outputs import Output, outputs_of
from jetstream_client.processing.processor import Processed, Processor
from jetstream_client.processing.signals import stopping_on_signals
from jetstream_client.reading.group_consumer import Listener
from jetstream_client.reading.messages import Message
from jetstream_protocol.errors import InvalidRequestError

_LOOK_SECONDS = 0.1
"""How often `stop_event` is looked at: a thread's event tells no event loop."""


class ProcessingMethods:
    """What follows is part of `Client`, which sets these."""

    _client: AsyncClient
    _thread: LoopThread

    def process(
        self,
        source: str,
        handler: Callable[[Message], Any],
        *,
        cursor: str | None = None,
        group: str | None = None,
        start: Position = "earliest",
        stop: Position | None = None,
        read_from: ReadFrom = "leader",
        on_reset: OnReset = "error",
        concurrency: int = 8,
        retries: int = RETRIES,
        retry_delay: float = RETRY_SECONDS,
        dead_letter: str | None = None,
        outstanding_max: int = OUTSTANDING_MAX,
        outstanding_bytes: int = OUTSTANDING_BYTES,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        instance: str = "",
        session_timeout: float = SESSION_SECONDS,
        on_assigned: Listener | None = None,
        on_revoked: Listener | None = None,
        stop_event: threading.Event | None = None,
        handle_signals: bool = True,
    ) -> Processed:
        """Call `handler` for each record, up to `concurrency` at a time; records of one key one
        after the other, in order. Returns at `stop`, on SIGINT or SIGTERM, or when `stop_event` is
        set: what is being handled ends, and what is done is committed.

        source: a stream, or a group of streams. handler: takes a Message and returns None, an
        Output or a list of Outputs, which are published before the record counts as done; called in
        `concurrency` threads, where it may use this client. cursor, start, stop, read_from,
        on_reset, key_deserializer, value_deserializer: as in `consume`. group, instance,
        session_timeout, on_assigned, on_revoked: as in `consume_group`. Either `cursor` or `group`
        is needed.

        retries: how often a record is tried again when the handler raised an Exception, after
        `retry_delay` seconds, then twice as many each time, up to 30. dead_letter: the subject on
        which the record is published then, with headers that say where from and why; None: the
        exception ends the processing. outstanding_max, outstanding_bytes: how many records may be
        read and not committed, because one before them has not ended.

        The cursor never passes a record that was neither handled nor published as a dead letter: at
        least once. Outputs and dead letters have message ids, so that a record that is handled
        again within the `duplicate_window` of their stream adds nothing: see docs/consumers.md.

        Raises what ended it; PreconditionFailedError where another consumer uses the cursor;
        InvalidRequestError where a stream of `source` listens on `dead_letter`; NoStreamError where
        none does. on_assigned and on_revoked run in the client's own thread and must not call it.
        """
        if inspect.iscoroutinefunction(handler):
            raise InvalidRequestError("a coroutine function is a handler for AsyncClient.process")
        options = options_of(
            cursor,
            group,
            concurrency,
            retries,
            retry_delay,
            dead_letter,
            outstanding_max,
            outstanding_bytes,
        )
        deserializers = Deserializers(key_deserializer, value_deserializer)
        pool = ThreadPoolExecutor(concurrency, thread_name_prefix="jetstream-handler")
        stopper = _Stopper()

        def call(message: Message) -> list[Output]:
            try:
                return outputs_of(handler(deserializers.apply(message)))
            except StopIteration as error:  # No future can hold one.
                raise RuntimeError("the handler raised StopIteration") from error

        async def attempt(message: Message) -> list[Output]:
            return await asyncio.get_running_loop().run_in_executor(pool, call, message)

        async def run() -> Processed:
            processor = await self._client.processor(
                source,
                attempt,
                options,
                group is not None,
                start=start,
                stop=stop,
                read_from=read_from,
                on_reset=on_reset,
                instance=instance,
                session_timeout=session_timeout,
                on_assigned=on_assigned,
                on_revoked=on_revoked,
            )
            stopper.stops(processor)
            return await run_until(processor, None if stop_event is None else _set(stop_event))

        try:
            with stopping_on_signals(stopper.stop, wanted=handle_signals):
                return self._thread.run(run())
        finally:
            # Nothing runs any more, unless this thread was interrupted.
            pool.shutdown(wait=False, cancel_futures=True)


class _Stopper:
    """Stops a processor from any thread, also before there is one."""

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._is_told = False

    def stops(self, processor: Processor) -> None:
        """To be called in its loop."""
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(processor.stop)
        if self._is_told:
            processor.stop()

    def stop(self) -> None:
        self._is_told = True
        if self._stop is not None:
            self._stop()


async def _set(event: threading.Event) -> None:
    """Return once it is set."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if event.is_set():
            return
