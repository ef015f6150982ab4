"""The method of `AsyncClient` that shares the messages of a stream among readers."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from jetstream_client.processing.queue import PREFETCH, AsyncQueue
from jetstream_client.transport import wire
from jetstream_client.transport.consumers import (
    AsyncConsumers,
    Consumers,
    create,
    create_request,
)
from jetstream_client.transport.streams import Streams
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_client.values.durations import Seconds, to_seconds
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.positions import Position
from jetstream_client.values.types import Payload, StreamLike, Value, Via


class AsyncQueues(AsyncConsumers):
    """A part of `AsyncClient`."""

    _streams: Streams
    _queues: weakref.WeakSet[AsyncQueue]

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

    def queue(
        self,
        stream: StreamLike,
        name: str,
        *,
        start: Position = "earliest",
        filter: str | Sequence[str] = (),
        ack_wait: Seconds | None = None,
        backoff: Sequence[Seconds] = (),
        max_deliver: int | None = None,
        dead_letter: str | None = None,
        max_ack_pending: int | None = None,
        prefetch: int = PREFETCH,
        max_wait: Seconds | None = None,
        via: Via = "nats",
    ) -> AsyncQueue:
        """Share the messages of a stream with all readers of the same name. Each message goes to
        one of them, and again to any until one has acknowledged it.

        name: of the consumer, which is created when the first reader comes, and is kept when the
        last one goes. NATS clients may read it, too. start, filter, ack_wait, backoff, max_deliver,
        dead_letter, max_ack_pending: as in `create_consumer`. prefetch: how many messages may be
        here that the program was not handed yet: they are kept from other readers. max_wait: the
        iteration ends once no message has come for so many seconds, 0: once none is left to be
        delivered; None: it waits for ever. via: how dead letters are published, as in `publish`.

        A message that was delivered `max_deliver` times goes to `dead_letter`, with the headers
        that dead letters of `process` have.

            async with client.queue("jobs", "mailers", max_deliver=5) as jobs:
                async for message in jobs:
                    print(message.value)
                    await message.ack()
        """
        self._check_open()
        request = create_request(
            wire.to_ref(stream),
            name,
            filter,
            ack_wait,
            backoff,
            max_deliver,
            dead_letter,
            max_ack_pending,
        )
        calls = self._control

        async def begin() -> ConsumerDescription:
            if start != "earliest":
                request.start_offset = await self.offset_at(stream, start)
            return await create(calls, request)

        queue = AsyncQueue(
            Consumers(calls, self._streams),
            begin,
            partial(self.publish, via=via),
            name,
            prefetch,
            to_seconds("max_wait", max_wait),
            calls.timeout,
        )
        self._queues.add(queue)
        return queue
