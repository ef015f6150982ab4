"""The method of `AsyncClient` that calls a handler for each record."""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from jetstream_client._async_groups import SESSION_SECONDS, AsyncGroupMethods
from jetstream_client._headers import HeadersLike
from jetstream_client._positions import Position
from jetstream_client._serialization import Deserializer, Deserializers
from jetstream_client._types import OnReset, Payload, ReadFrom, Stream
from jetstream_client.processing.outputs import Output, outputs_of
from jetstream_client.processing.processor import Attempt, Processed, ProcessOptions, Processor
from jetstream_client.processing.signals import stopping_on_signals
from jetstream_client.processing.sources import CursorSource, GroupSource, Source
from jetstream_client.reading.consumer import AsyncConsumer
from jetstream_client.reading.group_consumer import Listener, tell
from jetstream_client.reading.messages import Message
from jetstream_protocol.errors import InvalidRequestError, NoStreamError

Handler: TypeAlias = Callable[[Message], Awaitable[Any] | Any]
RETRIES = 3
RETRY_SECONDS = 0.1
OUTSTANDING_MAX = 1_000
OUTSTANDING_BYTES = 64 * 1024 * 1024


class AsyncProcessingMethods(AsyncGroupMethods):
    """What follows is part of `AsyncClient`, which sets this."""

    @abstractmethod
    def publish(
        self,
        subject: str,
        value: Payload | None,
        *,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
    ) -> Coroutine[Any, Any, Any]: ...

    @abstractmethod
    async def list_streams(
        self, feeding_subject: str = "", *, internal: bool = False
    ) -> list[Stream]: ...

    @abstractmethod
    def _tracked(self, consumer: AsyncConsumer) -> AsyncConsumer: ...

    async def process(
        self,
        source: str,
        handler: Handler,
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
        stop_event: asyncio.Event | None = None,
        handle_signals: bool = True,
    ) -> Processed:
        """Call `handler` for each record, up to `concurrency` at a time; records of one key one
        after the other, in order. Returns at `stop`, on SIGINT or SIGTERM, or when `stop_event` is
        set: what is being handled ends, and what is done is committed.

        source: a stream, or a group of streams. handler: a coroutine function that takes a Message
        and returns None, an Output or a list of Outputs, which are published before the record
        counts as done. cursor, start, stop, read_from, on_reset, key_deserializer,
        value_deserializer: as in `consume`. group, instance, session_timeout, on_assigned,
        on_revoked: as in `consume_group`. Either `cursor` or `group` is needed.

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
        none does.
        """

        async def attempt(message: Message) -> list[Output]:
            returned = handler(deserializers.apply(message))
            return outputs_of(await returned if inspect.isawaitable(returned) else returned)

        deserializers = Deserializers(key_deserializer, value_deserializer)
        processor = await self.processor(
            source,
            attempt,
            options_of(
                cursor,
                group,
                concurrency,
                retries,
                retry_delay,
                dead_letter,
                outstanding_max,
                outstanding_bytes,
            ),
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
        with stopping_on_signals(_soon(processor.stop), wanted=handle_signals):
            return await run_until(processor, None if stop_event is None else stop_event.wait())

    async def processor(
        self,
        source: str,
        attempt: Attempt,
        options: ProcessOptions,
        shared: bool,
        *,
        start: Position,
        stop: Position | None,
        read_from: ReadFrom,
        on_reset: OnReset,
        instance: str,
        session_timeout: float,
        on_assigned: Listener | None,
        on_revoked: Listener | None,
    ) -> Processor:
        """To be run. See `process`."""
        self._check_open()
        if options.dead_letter is not None:
            await self._check_dead_letter(source, options.dead_letter)
        if not shared:
            if instance or on_assigned is not None or on_revoked is not None:
                raise InvalidRequestError("instance, on_assigned and on_revoked are for groups")
            consumer = self._reader.consume(
                source,
                start,
                stop,
                read_from=read_from,
                cursor=self._consumer_cursor(options.name, source, on_reset, False),
            )
            found: Source = CursorSource(self._tracked(consumer))
            return Processor(found, attempt, self.publish, options)
        if stop is not None:
            raise InvalidRequestError("a group has no stop: say cursor=…, or stop_event=…")
        listeners = _Listeners(on_assigned, on_revoked)
        member = self.consume_group(
            source,
            options.name,
            instance=instance,
            start=start,
            read_from=read_from,
            session_timeout=session_timeout,
            auto_commit=False,
            on_reset=on_reset,
            on_assigned=listeners.assigned,
            on_revoked=listeners.revoked,
        )
        listeners.processor = Processor(GroupSource(member), attempt, self.publish, options)
        return listeners.processor

    async def _check_dead_letter(self, source: str, subject: str) -> None:
        listening = await self.list_streams(subject)
        if not listening:
            raise NoStreamError(f"no stream listens on {subject!r}: dead letters would be lost")
        for stream in listening:
            if source in (stream.name, stream.full_name, stream.group):
                raise InvalidRequestError(
                    f"stream {stream.full_name!r} listens on {subject!r}: dead letters would come "
                    "back to the handler; choose a subject that it does not listen on"
                )


class _Listeners:
    """Between a group's member and a processor: a stream that goes is first let end."""

    processor: Processor

    def __init__(self, on_assigned: Listener | None, on_revoked: Listener | None) -> None:
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._told: set[str] = set()

    async def assigned(self, names: Sequence[str]) -> None:
        self._told.update(names)
        await tell(self._on_assigned, names)

    async def revoked(self, names: Sequence[str]) -> None:
        consumers = await self.processor.let_go(names)
        told = [name for name in names if name in self._told]
        self._told.difference_update(told)
        if told:
            await tell(self._on_revoked, told)
        await self.processor.gone(consumers)


def options_of(
    cursor: str | None,
    group: str | None,
    concurrency: int,
    retries: int,
    retry_delay: float,
    dead_letter: str | None,
    outstanding_max: int,
    outstanding_bytes: int,
) -> ProcessOptions:
    """Raises InvalidRequestError."""
    name = cursor if group is None else group
    if (cursor is None) == (group is None) or name is None:
        raise InvalidRequestError("say either cursor=NAME or group=NAME")
    for what, number, least in (
        ("concurrency", concurrency, 1),
        ("retries", retries, 0),
        ("retry_delay", retry_delay, 0),
        ("outstanding_max", outstanding_max, 1),
        ("outstanding_bytes", outstanding_bytes, 1),
    ):
        if number < least:
            raise InvalidRequestError(f"{what} is {number}; it must be at least {least}")
    return ProcessOptions(
        name, concurrency, retries, retry_delay, dead_letter, outstanding_max, outstanding_bytes
    )


def _soon(stop: Callable[[], None]) -> Callable[[], object]:
    """Called in a signal handler, it stops in the loop."""
    return partial(asyncio.get_running_loop().call_soon_threadsafe, stop)


async def run_until(processor: Processor, told: Coroutine[Any, Any, object] | None) -> Processed:
    """Run it; stop it once `told` has returned."""

    async def stop(told: Coroutine[Any, Any, object]) -> None:
        await told
        processor.stop()

    stopping = None if told is None else asyncio.create_task(stop(told))
    try:
        return await processor.run()
    finally:
        if stopping is not None:
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
