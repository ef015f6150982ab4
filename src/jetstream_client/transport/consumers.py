"""Consumers, whose messages several readers share: the calls of readers, and what a program may do
with consumers."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from jetstream_client.transport import wire
from jetstream_client.transport.async_methods import AsyncMethods
from jetstream_client.transport.cluster import describe_cluster
from jetstream_client.transport.control import ControlPlane
from jetstream_client.transport.streams import Streams
from jetstream_client.values.checks import check_text, to_int
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_client.values.durations import Seconds, to_us
from jetstream_client.values.positions import Position
from jetstream_client.values.types import StreamLike
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotFoundError,
    StreamNotFoundError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb

_GRACE_SECONDS: Final = 2.0
"""So much longer than it waits may a leader take to answer."""
_LEADER_SECONDS: Final = 10.0
"""How long the leader's address is taken for granted."""
_LOOKING_SHARE: Final = 0.25
"""Of the client's timeout, to look for the leader."""
_MS_MAX: Final = 2**32 - 1
_US_MAX: Final = 2**63 - 1
_NAME: Final = "the consumer's name"


class Consumers:
    """What readers call: pulls and acknowledgements, at the leader of one stream."""

    def __init__(self, control: ControlPlane, streams: Streams) -> None:
        self._control = control
        self._streams = streams
        self._leaders: dict[int, tuple[float, str]] = {}

    async def pull(self, request: pb.PullMessagesRequest) -> pb.PullMessagesResponse:
        timeout = 2 * (request.wait_ms / 1000 + _GRACE_SECONDS)
        address = await self._leader(request.stream)
        found: pb.PullMessagesResponse
        try:
            found = await self._control.call(
                request,
                what=f"pulling messages of consumer {request.name!r}",
                address=address,
                timeout=timeout,
                share_min=timeout / 2,
            )
        except JetstreamError:
            self._leaders.pop(request.stream.id, None)
            raise
        return found

    async def acknowledge(
        self, request: pb.AcknowledgeMessagesRequest
    ) -> pb.AcknowledgeMessagesResponse:
        """Within the client's timeout."""
        now = asyncio.get_running_loop().time
        begun = now()
        address = await self._leader(request.stream)
        found: pb.AcknowledgeMessagesResponse
        try:
            found = await self._control.call(
                request,
                what=f"acknowledging messages of consumer {request.name!r}",
                changes=True,
                address=address,
                timeout=self._control.timeout - (now() - begun),
            )
        except JetstreamError:
            self._leaders.pop(request.stream.id, None)
            raise
        return found

    async def _leader(self, ref: common_pb2.StreamRef) -> str | None:
        """The leader's address, as far as it is known: others name it."""
        until, address = self._leaders.get(ref.id, (0.0, ""))
        now = asyncio.get_running_loop().time()
        if now < until:
            return address
        try:
            async with asyncio.timeout(self._control.timeout * _LOOKING_SHARE):
                leader = await self._streams.leader_of(ref, self._control.timeout)
                node = (await describe_cluster(self._control)).node(leader)
        except (JetstreamError, TimeoutError):
            return None
        if node is None:
            return None
        self._leaders[ref.id] = now + _LEADER_SECONDS, node.grpc
        return node.grpc


class AsyncConsumers(AsyncMethods):
    """A part of `AsyncClient`, which sets this."""

    _streams: Streams

    async def create_consumer(
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
        description: str | None = None,
    ) -> ConsumerDescription:
        """Create a durable consumer, whose messages several readers share and acknowledge one by
        one; or alter the one that there is. What is None or empty is the default, or stays as it
        is. Returns what it is then.

        start: where a new consumer begins. filter: NATS patterns; none: all messages. ack_wait:
        seconds after which a message that was not acknowledged is delivered again; default: 30.
        backoff: instead, seconds for the first, second, … delivery. max_deliver: how often a
        message is delivered; 0: without end. dead_letter: the subject on which a `queue` publishes
        a message that was delivered so often; "": it is given up. max_ack_pending: how many
        messages may be delivered and not acknowledged; default: 1,000.

        Raises PreconditionFailedError if the consumer that there is has other filters, pushes, or
        acknowledges otherwise; QuotaExceededError.
        """
        request = create_request(
            wire.to_ref(stream),
            name,
            filter,
            ack_wait,
            backoff,
            max_deliver,
            dead_letter,
            max_ack_pending,
            description,
        )
        if start != "earliest":
            request.start_offset = await self.offset_at(stream, start)
        return await create(self._calls, request)

    async def describe_consumer(self, stream: StreamLike, name: str) -> ConsumerDescription:
        """Describe a consumer of a stream. Raises NotFoundError if there is none of the name."""
        check_text(_NAME, name)
        answer: pb.ConsumerDescription = await self._calls.call(
            pb.DescribeConsumerRequest(stream=wire.to_ref(stream), name=name),
            what=f"describing consumer {name!r}",
        )
        return description_of(answer)

    async def list_consumers(self, stream: StreamLike | None = None) -> list[ConsumerDescription]:
        """Describe the consumers of a stream, by name, those of NATS clients among them; without a
        stream those of all streams, for which every node is asked that is alive."""
        if stream is not None:
            return await self._consumers_of(wire.to_ref(stream), None)
        before = await self._leaderships()
        nodes = (await describe_cluster(self._calls)).nodes
        asked = (self._consumers_of(None, node.grpc) for node in nodes if not node.fenced)
        pages = await asyncio.gather(*asked)
        # Neither leader may have told of a stream that has moved meanwhile, or both.
        after = await self._leaderships()
        moved = {each for each, led in after.items() if led != before.get(each)}
        found = [each for page in pages for each in page if each.stream_id not in moved]
        for stream_id in moved:
            with contextlib.suppress(StreamNotFoundError):
                found += await self._consumers_of(wire.to_ref(stream_id), None)
        return sorted(found, key=lambda it: (it.stream, it.name))

    async def _leaderships(self) -> dict[int, tuple[int, int]]:
        """Leader and leader epoch of each stream that has a leader."""
        streams = await self._streams.find()
        return {each.id: (each.leader, each.leader_epoch) for each in streams if each.leader >= 0}

    async def _consumers_of(
        self, stream: common_pb2.StreamRef | None, address: str | None
    ) -> list[ConsumerDescription]:
        """Of the stream; None: of all that the node at that address leads."""
        calls, found, after = self._calls, list[ConsumerDescription](), ""
        while True:
            answer: pb.ListConsumersResponse = await calls.call(
                pb.ListConsumersRequest(stream=stream, after=after),
                what="listing the consumers",
                address=address,
            )
            found += map(description_of, answer.consumers)
            after = answer.next
            if not after:
                return found

    async def delete_consumer(self, stream: StreamLike, name: str) -> None:
        """Delete a consumer, with what it knows of its messages, for good. Raises NotFoundError."""
        found = await self.describe_consumer(stream, name)
        # A repetition of the call must not delete another one that was made meanwhile.
        await self._calls.call(
            pb.DeleteConsumerRequest(
                stream=wire.to_ref(found.stream_id), name=name, created_us=found.created_us
            ),
            what=f"deleting consumer {name!r}",
            done_already=NotFoundError,
            changes=True,
        )

    async def pause_consumer(
        self, stream: StreamLike, name: str, seconds: Seconds
    ) -> ConsumerDescription:
        """Deliver nothing for so many seconds. What is delivered may be acknowledged. Raises
        NotFoundError."""
        return await self._paused(stream, name, to_us("seconds", seconds))

    async def resume_consumer(self, stream: StreamLike, name: str) -> ConsumerDescription:
        """Undo `pause_consumer`. Idempotent. Raises NotFoundError."""
        return await self._paused(stream, name, 0)

    async def _paused(self, stream: StreamLike, name: str, for_us: int) -> ConsumerDescription:
        found = await self.describe_consumer(stream, name)
        answer: pb.ConsumerDescription = await self._calls.call(
            pb.PauseConsumerRequest(
                stream=wire.to_ref(found.stream_id),
                name=name,
                for_us=for_us,
                until_us=min(int(time.time() * 1e6) + for_us, _US_MAX) if for_us else 0,
                created_us=found.created_us,
            ),
            what=f"pausing consumer {name!r}",
            changes=True,
        )
        return description_of(answer)


async def create(calls: ControlPlane, request: pb.CreateConsumerRequest) -> ConsumerDescription:
    answer: pb.ConsumerDescription
    answer = await calls.call(request, what=f"creating consumer {request.name!r}", changes=True)
    return description_of(answer)


def create_request(
    stream: common_pb2.StreamRef,
    name: str,
    filter: str | Sequence[str] = (),
    ack_wait: Seconds | None = None,
    backoff: Sequence[Seconds] = (),
    max_deliver: int | None = None,
    dead_letter: str | None = None,
    max_ack_pending: int | None = None,
    description: str | None = None,
) -> pb.CreateConsumerRequest:
    """Raises InvalidRequestError."""
    for label, number in (("max_deliver", max_deliver), ("max_ack_pending", max_ack_pending)):
        if number is not None and not 0 <= to_int(label, number) < 2**31:
            raise InvalidRequestError(f"{label} must not be negative")
    if isinstance(backoff, str | float | int | timedelta):
        raise TypeError("backoff must be a list of durations, not one of them alone")
    filters = [filter] if isinstance(filter, str) else list(filter)
    texts = {_NAME: name, "the dead letters' subject": dead_letter, "the description": description}
    for what, text in (*texts.items(), *(("the filter", each) for each in filters)):
        if text is not None:
            check_text(what, text)
    return pb.CreateConsumerRequest(
        stream=stream,
        name=name,
        filters=[each for each in filters if each],
        ack_wait_ms=None if ack_wait is None else to_ms("ack_wait", ack_wait),
        backoff_ms=[to_ms("backoff", each) for each in backoff],
        max_deliver=max_deliver,
        dead_letter=dead_letter,
        max_ack_pending=max_ack_pending,
        description=description,
    )


def to_ms(name: str, value: Seconds) -> int:
    """Whole milliseconds, at least one of what is not 0."""
    return min(-(-to_us(name, value) // 1000), _MS_MAX)


def description_of(found: pb.ConsumerDescription) -> ConsumerDescription:
    return ConsumerDescription(
        name=found.name,
        stream=found.stream,
        stream_id=found.stream_id,
        created_us=found.created_us,
        is_durable=found.is_durable,
        is_push=found.is_push,
        ack_policy=found.ack_policy,
        description=found.description,
        filters=tuple(found.filters),
        ack_wait=found.ack_wait_ms / 1000,
        backoff=tuple(each / 1000 for each in found.backoff_ms),
        max_deliver=found.max_deliver,
        dead_letter=found.dead_letter or None,
        max_ack_pending=found.max_ack_pending,
        paused_until=found.paused_until_us / 1_000_000 or None,
        position=found.position,
        ack_floor=found.ack_floor,
        pending=None if found.pending < 0 else found.pending,
        ack_pending=found.ack_pending,
        redelivered=found.redelivered,
        waiting=found.waiting,
        oldest_unacknowledged=found.oldest_unacknowledged_ms / 1000 if found.ack_pending else None,
        redeliveries=found.redeliveries,
        given_up=found.given_up,
    )
