"""The method of `Client` that calls a handler for each record."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack

from jetstream_client._loop_thread import LoopThread
from jetstream_client.clients.async_client import AsyncClient
from jetstream_client.clients.async_processing import run_until
from jetstream_client.processing.listeners import in_thread
from jetstream_client.processing.options import ProcessOptions, ProcessSettings, check_handler
from jetstream_client.processing.outputs import Output, outputs_of
from jetstream_client.processing.processor import Processed, Processor
from jetstream_client.processing.signals import stopping_on_signals
from jetstream_client.processing.threads import HandlerThreads
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
        handler: Callable[[Message[Any, Any]], Any],
        *,
        cursor: str | None = None,
        group: str | None = None,
        stop_event: threading.Event | None = None,
        handle_signals: bool = True,
        **settings: Unpack[ProcessSettings],
    ) -> Processed:
        """Call `handler` for each record, several at a time, and records of one key one after the
        other, in order.

        Returns after SIGINT or SIGTERM, after `stop_event` is set, or at `stop`. Then records that
        are being handled end first, and progress is committed. Returns the counts, a `Processed`.

        source: a stream, or a group of streams. handler: takes a Message and returns None, an
        Output or a list of Outputs, which are published before the record counts as done. It runs
        in threads, and may use this client, as `on_assigned` and `on_revoked` may. cursor: the
        name of the cursor under which progress is kept. group: instead of cursor, the consumer
        group that it joins as a member. settings: see ProcessSettings, for example `concurrency=8,
        retries=3, dead_letter="dead.orders"`. handle_signals: False leaves signals alone, as in any
        thread but the main one.

        The cursor never passes a record that was neither handled nor published as a dead letter, so
        every record is handled at least once. Outputs and dead letters have message ids, so that a
        record that is handled again within the `duplicate_window` of their stream adds nothing.
        docs/consumers.md has more.

        Raises the error that ended it; PreconditionFailedError if another consumer uses the cursor;
        InvalidRequestError if a stream of `source` listens on `dead_letter`; NoStreamError if no
        stream does.

            def handle(message):
                print(message.value)

            client.process("orders", handle, cursor="printing", dead_letter="dead.orders")
        """
        if inspect.iscoroutinefunction(handler):
            raise InvalidRequestError("a coroutine function is a handler for AsyncClient.process")
        check_handler(handler)
        options = ProcessOptions.of(cursor, group, settings)
        options = replace(
            options,
            on_assigned=in_thread(options.on_assigned),
            on_revoked=in_thread(options.on_revoked),
        )
        deserializers = options.deserializers
        stopper = _Stopper()

        def call(message: Message) -> list[Output]:
            try:
                return outputs_of(handler(deserializers.apply(message)))
            except StopIteration as error:  # No future can hold one.
                raise RuntimeError("the handler raised StopIteration") from error

        threads = HandlerThreads(call, options.handler_timeout)

        async def run() -> Processed:
            processor = await self._client.processor(source, threads.call, options)
            stopper.stops(processor)
            return await run_until(processor, None if stop_event is None else _set(stop_event))

        try:
            with stopping_on_signals(stopper.stop, wanted=handle_signals):
                return self._thread.run(run())
        finally:
            threads.close()


class _Stopper:
    """Stops a processor from any thread, also before there is one."""

    def __init__(self) -> None:
        self._stop: Callable[[], object] | None = None
        self._is_stopped = False

    def stops(self, processor: Processor) -> None:
        """To be called in its loop."""
        loop = asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(processor.stop)
        if self._is_stopped:
            processor.stop()

    def stop(self) -> None:
        self._is_stopped = True
        if self._stop is not None:
            self._stop()


async def _set(event: threading.Event) -> None:
    """Return once it is set."""
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if event.is_set():
            return
