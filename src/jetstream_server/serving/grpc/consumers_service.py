"""The `Consumers` service: for readers that share the messages of a stream; and between nodes,
requests to the leader of a stream, and states to the leader of `__cursors`.

The leader of the stream answers readers. Their right to read was checked by the guard; here,
`commit` for the consumer's name. So nobody reads by, alters or ends what somebody else's NATS
client has made, either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from jetstream_protocol.errors import (
    InvalidRequestError,
    NotFoundError,
    PreconditionFailedError,
    TooManyRequestsError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import consumers_pb2 as pb
from jetstream_protocol.types import MonotonicUs, StreamId
from jetstream_server.clocks import monotonic_clock, wall_clock
from jetstream_server.consumers.collector import Collector
from jetstream_server.consumers.config import ConsumerConfig
from jetstream_server.consumers.consumer import Consumer
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import Consumers
from jetstream_server.consumers.pulls import (
    CONSUMER_DELETED,
    NO_MESSAGES,
    REQUEST_TIMEOUT,
    Pull,
)
from jetstream_server.origins import origin_of_peer
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.acl import Operation
from jetstream_server.serving.grpc.consumer_messages import (
    altered,
    check_shared,
    delivered,
    description_of,
    new_config,
)
from jetstream_server.serving.grpc.consumer_states import ConsumerStates
from jetstream_server.serving.grpc.grpc_loop import Call
from jetstream_server.serving.grpc.response_memory import (
    ANSWER_BYTES_MAX,
    Reservation,
    ResponseMemoryLimiter,
)
from jetstream_server.serving.stream_access import StreamAccess

AnswerFor = Callable[[StreamId, str, str, bytes, int], Awaitable[bytes]]
"""(stream, verb, rest, body, made_at): the answer of this node, which leads the stream."""

PULL_MESSAGES_MAX: Final = 1000
WAIT_MS_MAX: Final = 30_000
ACKS_MAX: Final = 1000
_US_MAX: Final = 2**63 - 1
PAGE: Final = 256

_Kind = pb.AcknowledgeMessagesRequest.Kind


class ConsumersService:
    def __init__(
        self,
        answer_for: AnswerFor | None,
        states: ConsumerStates,
        consumers: Consumers,
        leaderships: Leaderships,
        replicas: ReplicaManager,
        access: StreamAccess,
        outstanding: ResponseMemoryLimiter,
    ) -> None:
        """answer_for: None: this node does not serve the JetStream API."""
        self._answer_for = answer_for
        self._states = states
        self._consumers = consumers
        self._leaderships = leaderships
        self._replicas = replicas
        self._access = access
        self._outstanding = outstanding
        self._numbers = count(1)

    # For readers.

    async def CreateConsumer(
        self, request: pb.CreateConsumerRequest, call: Call
    ) -> pb.ConsumerDescription:
        replica = await self._led(request.stream)
        self._check_commit(call, replica, request.name)
        found = self._consumers.find(replica.stream.id, request.name)
        wanted = new_config(request) if found is None else _altered(found, request)
        if found is None or wanted != found.config:
            await self._consumers.note_change(replica, wanted, call.made_at)
            found = self._consumers.find(replica.stream.id, request.name)
        if found is not None:
            await self._consumers.alter(found, _altered(found, request))
            return await self._described(found)
        replica.check_readable()  # It would begin somewhere else.
        creator = self._access.control.quota_holder(call.identity)
        config = replace(new_config(request), creator=creator)
        start = start_offset(replica.stream, replica.log)
        wanted_at = config.start_sequence - 1
        if wanted_at > replica.high_watermark and replica.leadership is not None:
            replica.leadership.check_end()  # Else what was committed before would be delivered.
        position = min(max(wanted_at, start), replica.high_watermark)
        consumer = await self._leaderships.add(replica, config, position)
        await self._consumers.alter(consumer, _altered(consumer, request))  # Another may have won.
        return await self._described(consumer)

    async def DescribeConsumer(
        self, request: pb.DescribeConsumerRequest, call: Call
    ) -> pb.ConsumerDescription:
        replica = await self._led(request.stream)
        return await self._described(self._find(replica, request.name))

    async def ListConsumers(
        self, request: pb.ListConsumersRequest, call: Call
    ) -> pb.ListConsumersResponse:
        if request.HasField("stream"):
            access = self._access
            stream = access.resolve(call.identity, Operation.DESCRIBE, request.stream)
            replica = await self._led(common_pb2.StreamRef(id=stream.id))
            known = self._consumers.of(replica.stream.id)
            keys = [each.config.name for each in known]
        else:
            await self._leaderships.all_loaded()  # Else those of a new leader would be missing.
            known = self._known_to(call)
            keys = [f"{each.replica.stream.id:020}/{each.config.name}" for each in known]
        page = [at for at, key in enumerate(keys) if key > request.after][: PAGE + 1]
        return pb.ListConsumersResponse(
            consumers=[description_of(known[at]) for at in page[:PAGE]],
            next=keys[page[PAGE - 1]] if len(page) > PAGE else "",
        )

    def _known_to(self, call: Call) -> list[Consumer]:
        """The consumers served here whose streams the caller may describe, by stream and name."""
        may_know: dict[int, bool] = {}
        found = []
        for each in self._consumers:
            stream = each.replica.stream
            if stream.id not in may_know:
                may_know[stream.id] = self._access.knows(call.identity, stream)
            if may_know[stream.id]:
                found.append(each)
        return sorted(found, key=lambda it: (it.replica.stream.id, it.config.name))

    async def DeleteConsumer(
        self, request: pb.DeleteConsumerRequest, call: Call
    ) -> pb.DeleteConsumerResponse:
        replica = await self._led(request.stream)
        self._check_commit(call, replica, request.name)
        consumer = await self._changing(replica, request, call)
        await self._consumers.delete(consumer)
        return pb.DeleteConsumerResponse()

    async def PauseConsumer(
        self, request: pb.PauseConsumerRequest, call: Call
    ) -> pb.ConsumerDescription:
        replica = await self._led(request.stream)
        self._check_commit(call, replica, request.name)
        consumer = await self._changing(replica, request, call)
        until_us = max(0, request.until_us)
        if request.for_us > 0:
            until_us = min(wall_clock() + request.for_us, _US_MAX)
        altered = replace(consumer.config, pause_until_us=until_us, pause_until_ns=0)
        await self._consumers.alter(consumer, altered)
        return await self._described(consumer)

    async def PullMessages(
        self, request: pb.PullMessagesRequest, call: Call
    ) -> pb.PullMessagesResponse:
        if not 1 <= request.messages_max <= PULL_MESSAGES_MAX:
            raise InvalidRequestError(f"messages_max must be from 1 to {PULL_MESSAGES_MAX}")
        wait_ms, name = min(request.wait_ms, WAIT_MS_MAX), request.name
        replica = await self._led(request.stream)
        self._check_commit(call, replica, request.name)
        consumer = self._find(replica, request.name, request.created_us)
        check_shared(consumer.config)
        reply = b" %d" % next(self._numbers)  # No NATS subject has a space.
        expires_us = MonotonicUs(monotonic_clock() + wait_ms * 1000) if wait_ms else None
        pull = Pull(reply, request.messages_max, expires_us=expires_us, no_wait=not wait_ms)
        control, collector = self._access.control, Collector()
        held: Reservation | None = None
        length, is_answered = 0, False
        try:
            consumer.collect(collector, pull)
            with control.while_allowed(
                call.identity, partial(self._check_use, call, replica, name)
            ):
                held = await self._collected(request, call, consumer, collector, pull)
            consumer.withdraw(reply)
            self._check_end(collector, consumer, pull)
            length = sum(each.record.size for each in collector.deliveries)
            await control.pace(call.identity, replica.stream, length)
            is_answered = True
        finally:
            consumer.withdraw(reply)
            if not is_answered:
                for each in collector.deliveries:
                    consumer.refuse(each.record.offset, each.times, 0, None)
                if held is not None:
                    self._outstanding.release(held)
        if held is not None:
            self._outstanding.renew(held, length)
            call.when_ended(partial(self._outstanding.release, held))
        headers_only = consumer.config.headers_only
        return pb.PullMessagesResponse(
            messages=[delivered(each, headers_only=headers_only) for each in collector.deliveries],
            created_us=consumer.created_us,
        )

    async def _collected(
        self,
        request: pb.PullMessagesRequest,
        call: Call,
        consumer: Consumer,
        collector: Collector,
        pull: Pull,
    ) -> Reservation | None:
        """Wait for messages, and return the room that was reserved for them before they were
        delivered; None: the pull has ended without. Raises UnavailableError."""
        control, expires_us = self._access.control, pull.expires_us
        holder = control.quota_holder(call.identity) or origin_of_peer(call.peer)
        wanted = min(request.bytes_max or ANSWER_BYTES_MAX, ANSWER_BYTES_MAX)
        wanted = control.bytes_max(call.identity, wanted)
        while True:
            await collector.changed.wait()
            collector.changed.clear()
            if collector.end:
                return None
            if not collector.needs:
                continue
            count = max(wanted, collector.needs)
            pull.expires_us = None  # There is a message, and the wait for room has its own end.
            held = await self._outstanding.reserve(
                call.peer, count, principal=holder, is_made=False
            )
            pull.expires_us = expires_us
            try:
                collector.open(count)
                consumer.wake()
                await collector.changed.wait()
            except asyncio.CancelledError:
                self._outstanding.release(held)
                raise
            if collector.deliveries:
                return held
            self._outstanding.release(held)  # Another reader was faster.

    @staticmethod
    def _check_end(collector: Collector, consumer: Consumer, pull: Pull) -> None:
        """Raise the error of a pull that was ended without a message."""
        if collector.deliveries:
            return
        if collector.end == NO_MESSAGES:
            check_knows_end(consumer.replica)
            return
        if collector.end == REQUEST_TIMEOUT:
            if not pull.no_wait:
                return
            raise UnavailableError(f"consumer {consumer.config.name!r} is served elsewhere now")
        if collector.end == CONSUMER_DELETED:
            raise _not_found_error(consumer.config.name)
        if collector.end.startswith("409 Exceeded MaxWaiting"):
            raise TooManyRequestsError(f"too many pulls wait at consumer {consumer.config.name!r}")
        raise PreconditionFailedError(
            f"consumer {consumer.config.name!r} refuses the pull: {collector.end[4:]}"
        )

    async def AcknowledgeMessages(
        self, request: pb.AcknowledgeMessagesRequest, call: Call
    ) -> pb.AcknowledgeMessagesResponse:
        if len(request.acknowledgements) > ACKS_MAX:
            raise InvalidRequestError(f"at most {ACKS_MAX} acknowledgements in one call")
        if any(each.kind not in _Kind.values() for each in request.acknowledgements):
            raise InvalidRequestError(
                "an acknowledgement is of a kind that this node does not know"
            )
        replica = await self._led(request.stream)
        self._check_commit(call, replica, request.name)
        consumer = self._find(replica, request.name, request.created_us)
        check_shared(consumer.config)
        stored = asyncio.Event()
        unknown, late = [], []
        last = None
        for place, each in enumerate(request.acknowledgements):
            if not consumer.deliveries.was_delivered(each.offset):
                unknown.append(each.offset)
            elif each.kind == _Kind.NAK:
                delay_us = each.delay_ms * 1000
                if not consumer.refuse(each.offset, each.delivery, delay_us, None):
                    late.append(place)
            elif each.kind == _Kind.IN_PROGRESS:
                if not consumer.extend(each.offset, each.delivery, None):
                    late.append(place)
            else:
                consumer.acknowledge(each.offset, None)
                last = each.offset
        if last is not None:
            consumer.acknowledge(last, stored.set)  # One state holds them all.
            await self._consumers.until_stored(consumer, stored)
        return pb.AcknowledgeMessagesResponse(unknown=unknown, late=late)

    async def _led(self, ref: common_pb2.StreamRef) -> Replica:
        """The replica, if this node leads the stream, once its consumers are known. Raises
        JetstreamError."""
        replica = self._replicas.resolve_led(ref)
        if replica.stream.is_internal:
            raise InvalidRequestError("the server's own streams have no consumers")
        await self._leaderships.loaded(replica)
        return replica

    def _find(self, replica: Replica, name: str, created_us: int = 0) -> Consumer:
        """Raises NotFoundError."""
        consumer = self._consumers.find(replica.stream.id, name)
        if consumer is None or (created_us and consumer.created_us != created_us):
            raise _not_found_error(name)
        return consumer

    async def _changing(
        self,
        replica: Replica,
        request: pb.DeleteConsumerRequest | pb.PauseConsumerRequest,
        call: Call,
    ) -> Consumer:
        """The consumer that a call changes, which is no late copy. Raises NotFoundError,
        UnavailableError."""
        found = self._find(replica, request.name, request.created_us)
        await self._consumers.note_change(replica, found.config, call.made_at)
        return self._find(replica, request.name, request.created_us)

    async def _described(self, consumer: Consumer) -> pb.ConsumerDescription:
        await consumer.feed.count(is_paced=False)
        return description_of(consumer)

    def _check_use(self, call: Call, replica: Replica, name: str) -> None:
        """Raise the errors of `check` unless the caller may still read by that consumer."""
        self._access.control.check(call.identity, Operation.READ, replica.stream)
        self._check_commit(call, replica, name)

    def _check_commit(self, call: Call, replica: Replica, name: str) -> None:
        self._access.check_commit(call.identity, replica.stream, name)

    # Between nodes.

    async def AskConsumers(
        self, request: pb.AskConsumersRequest, call: Call
    ) -> pb.AskConsumersResponse:
        if self._answer_for is None:
            raise PreconditionFailedError(
                "the node that leads this stream has no nats.api_domain, and serves no consumers"
            )
        stream_id = StreamId(request.stream.id)
        answer = await self._answer_for(
            stream_id, request.verb, request.rest, request.body, request.made_at
        )
        return pb.AskConsumersResponse(answer=answer)

    async def LoadConsumers(
        self, request: pb.LoadConsumersRequest, call: Call
    ) -> pb.LoadConsumersResponse:
        return await self._states.load_here(request)

    async def StoreConsumers(
        self, request: pb.StoreConsumersRequest, call: Call
    ) -> pb.StoreConsumersResponse:
        return await self._states.store_here(request)


def _altered(consumer: Consumer, request: pb.CreateConsumerRequest) -> ConsumerConfig:
    """Its configuration with what the request sets. Raises PreconditionFailedError,
    InvalidRequestError."""
    check_shared(consumer.config)
    if request.filters and tuple(request.filters) != consumer.config.filters:
        raise PreconditionFailedError(
            f"consumer {request.name!r} has other filters; they cannot be altered"
        )
    return altered(consumer.config, request)


def check_knows_end(replica: Replica) -> None:
    """**safety** A new leader may not know yet what was acknowledged: it says of nothing that it is
    not there. Raises UnavailableError."""
    leadership = replica.leadership
    if leadership is not None and not leadership.knows_end:
        raise UnavailableError(
            f"the new leader of stream {replica.stream.full_name!r} does not know yet what was "
            "acknowledged"
        )


def _not_found_error(name: str) -> NotFoundError:
    return NotFoundError(f"there is no consumer {name!r} on the stream")
