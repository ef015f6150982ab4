"""The method of `AsyncClient` that calls a handler for each record."""

from __future__ import annotations

import asyncio
import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias, Unpack
from weakref import WeakSet

from jetstream_client._closing import end_tasks
from jetstream_client.clients.async_reading import AsyncReading
from jetstream_client.processing.options import ProcessOptions, ProcessSettings, check_handler
from jetstream_client.processing.outputs import Output, outputs_of
from jetstream_client.processing.processor import Attempt, Processed, Processor
from jetstream_client.processing.signals import stopping_on_signals
from jetstream_client.processing.sources import CursorSource, GroupSource, Source
from jetstream_client.processing.threads import limited
from jetstream_client.reading.byte_budget import ByteBudget
from jetstream_client.reading.group_consumer import Listener, tell
from jetstream_client.reading.messages import Message
from jetstream_client.reading.reader import filter_of
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.types import Payload, Value, Via
from jetstream_protocol.errors import InvalidRequestError, NoStreamError

Handler: TypeAlias = Callable[[Message[Any, Any]], Awaitable[Any] | Any]


class AsyncProcessing(AsyncReading):
    """A part of `AsyncClient`, which sets this."""

    _processors: WeakSet[Processor]

    @abstractmethod
    def publish(
        self,
        subject: str,
        value: Value | None,
        *,
        key: Payload | None = None,
        headers: HeadersLike | None = None,
        msg_id: str | None = None,
        via: Via = "nats",
    ) -> Coroutine[Any, Any, Any]: ...

    async def process(
        self,
        source: str,
        handler: Handler,
        *,
        cursor: str | None = None,
        group: str | None = None,
        stop_event: asyncio.Event | None = None,
        handle_signals: bool = True,
        **settings: Unpack[ProcessSettings],
    ) -> Processed:
        """Call `handler` for each record, several at a time, and records of one key one after the
        other, in order.

        Returns after SIGINT or SIGTERM, after `stop_event` is set, or at `stop`. Then records that
        are being handled end first, and progress is committed. Returns the counts, a `Processed`.

        source: a stream, or a group of streams. handler: a coroutine function that takes a Message
        and returns None, an Output or a list of Outputs, which are published before the record
        counts as done. cursor: the name of the cursor under which progress is kept. group: instead
        of cursor, the consumer group that it joins as a member. settings: see ProcessSettings, for
        example `concurrency=8, retries=3, dead_letter="dead.orders"`. handle_signals: False leaves
        signals alone, as in any thread but the main one.

        The cursor never passes a record that was neither handled nor published as a dead letter, so
        every record is handled at least once. Outputs and dead letters have message ids, so that a
        record that is handled again within the `duplicate_window` of their stream adds nothing.
        docs/consumers.md has more.

        Raises the error that ended it; PreconditionFailedError if another consumer uses the cursor;
        InvalidRequestError if a stream of `source` listens on `dead_letter`; NoStreamError if no
        stream does.

            async def handle(message):
                print(message.value)

            await client.process("orders", handle, cursor="printing", dead_letter="dead.orders")
        """
        check_handler(handler)
        options = ProcessOptions.of(cursor, group, settings)
        deserializers = options.deserializers

        async def attempt(message: Message) -> list[Output]:
            async with limited(options.handler_timeout):
                returned = handler(deserializers.apply(message))
                if inspect.isawaitable(returned):
                    returned = await returned
            return outputs_of(returned)

        processor = await self.processor(source, attempt, options)
        stop = partial(asyncio.get_running_loop().call_soon_threadsafe, processor.stop)
        with stopping_on_signals(stop, wanted=handle_signals):
            return await run_until(processor, None if stop_event is None else stop_event.wait())

    async def processor(self, source: str, attempt: Attempt, options: ProcessOptions) -> Processor:
        """A processor, for `process` to run. attempt: one call of the handler."""
        self._check_open()
        if options.dead_letter is not None:
            await self._check_dead_letter(source, options.dead_letter)

        async def ask(stream_id: int, seconds: float) -> None:
            await self._reader.resolve(stream_id, "earliest", None, options.read_from, seconds)

        def make(source: Source) -> Processor:
            publish = partial(self.publish, via=options.via)
            made = Processor(source, attempt, publish, ask, self.config.timeout, options)
            self._processors.add(made)
            return made

        if not options.is_shared:
            consumer = self._reader.consume(
                source,
                options.start,
                options.stop,
                read_from=options.read_from,
                wanted=filter_of(options.filter, options.key),
                cursor=self._consumer_cursor(options.name, source, options.on_reset, False),
                budget=ByteBudget(options.outstanding_bytes),
            )
            return make(CursorSource(self._tracked(consumer)))
        going = _Going(options.on_revoked)
        member = self.consume_group(
            source,
            options.name,
            instance=options.instance,
            start=options.start,
            read_from=options.read_from,
            filter=options.filter,
            key=options.key,
            session_timeout=options.session_timeout,
            auto_commit=False,
            on_reset=options.on_reset,
            on_assigned=options.on_assigned,
            on_revoked=going.revoked,
        )
        member.budget.bytes_max = options.outstanding_bytes
        going.processor = make(GroupSource(member))
        return going.processor

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


class _Going:
    """Between a group's member and a processor: a stream that goes is first let end."""

    processor: Processor

    def __init__(self, on_revoked: Listener | None) -> None:
        self._on_revoked = on_revoked

    async def revoked(self, names: Sequence[str]) -> None:
        consumers = await self.processor.let_go(names)
        await tell(self._on_revoked, names)
        await self.processor.gone(consumers)


async def run_until(processor: Processor, until: Coroutine[Any, Any, object] | None) -> Processed:
    """Run it; stop it once `until` has returned."""
    processor.has_ended.clear()

    async def stop(until: Coroutine[Any, Any, object]) -> None:
        await until
        processor.stop()

    stopping = None if until is None else asyncio.create_task(stop(until))
    try:
        return await processor.run()
    finally:
        await end_tasks(stopping)
        processor.has_ended.set()
