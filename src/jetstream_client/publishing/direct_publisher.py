"""Publishing one message at a time straight to the leader of each stream on its subject.

The message travels as a batch of one record, without a producer: as on NATS, a publish whose answer
does not come has an unknown outcome, and only a message with an id is sent again then. Each stream
is asked for itself, and again if it refuses for a moment.

With "auto" NATS brings the message where it does not go straight (`SubjectRoute.goes_straight`),
and where the leader cannot be reached while NATS can. **safety** A message that may be stored is
sent by the other way only if it has an id by which the stream recognises it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple

from jetstream_client._closing import end_tasks
from jetstream_client._log import logger
from jetstream_client.publishing.ack import Ack, PublishResult, in_offsets
from jetstream_client.publishing.plain_publisher import (
    PlainPublisher,
    PublishOptions,
    check_options,
    doubtful_error,
    unknown_outcome_error,
)
from jetstream_client.publishing.subject_routes import SubjectRoute, SubjectRoutes
from jetstream_client.publishing.ways import REACH_SECONDS
from jetstream_client.transport.data_connection import DataConnection
from jetstream_client.transport.data_plane import DataPlane, check_takes_batches
from jetstream_client.transport.recent import STREAMS_MAX, Recent
from jetstream_client.transport.retries import next_step
from jetstream_client.values.headers import HeadersLike, outgoing
from jetstream_client.values.records import block_of_pairs, to_bytes, value_to_bytes
from jetstream_client.values.types import Payload, Value
from jetstream_protocol import header_names
from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    PreconditionFailedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

_ANSWER_SECONDS = 2.0
"""A message with an id is sent again after so long without an answer."""

_AVOID_SECONDS = 5.0
"""For so long a leader that could not be reached is not tried while NATS brings messages."""


class _Message(NamedTuple):
    """A publish on its way. repeats: whether it may be sent again though it may be stored.
    or_nats: whether NATS may bring it instead."""

    subject: str
    batch: EncodedBatch
    options: PublishOptions
    deadline: float
    repeats: bool
    or_nats: bool

    def to(self, stream: common_pb2.StreamRef) -> pb.ProduceRequest:
        level, expected = self.options.ack_level, self.options.expected_offset
        return pb.ProduceRequest(
            stream=stream,
            subject=self.subject,
            expected_offset=expected,
            ack_leader=level is not None and level != "all",
        )


class _ByNats(Exception):
    """NATS is to bring the message. is_doubtful: it may be stored already."""

    def __init__(self, *, is_doubtful: bool) -> None:
        super().__init__()
        self.is_doubtful = is_doubtful


class DirectPublisher:
    """Belongs to the event loop it is first used on. plain: publishes by NATS."""

    def __init__(self, plain: PlainPublisher, routes: SubjectRoutes, data_plane: DataPlane) -> None:
        self._plain = plain
        self._routes = routes
        self._data_plane = data_plane
        self._avoided: Recent[int, float] = Recent(STREAMS_MAX)
        self._going: set[asyncio.Task[Ack]] = set()
        """To streams that no publish waits for any more: another one has acknowledged, or the
        publish was cancelled."""

    async def publish(
        self,
        subject: str,
        value: Value | None,
        key: Payload | None,
        headers: HeadersLike | None,
        options: PublishOptions,
        timeout: float,
        *,
        or_nats: bool,
    ) -> PublishResult:
        """See AsyncClient.publish. or_nats: "auto"."""
        batch = _batch_of(subject, value, key, headers, options)
        turns, is_doubtful = self._plain.turns, False
        if not turns.take():
            await turns.wait()
        try:
            deadline = self._plain.home.here().time() + timeout
            route = self._routes.known(subject) or await self._plain.route(subject, deadline)
            if route.group is not None:
                _, route = self._plain.place(route, subject, key, options)
            if not or_nats or route.goes_straight:
                repeats = options.msg_id is not None and route.duplicate_window > timeout
                sent = _Message(subject, batch, options, deadline, repeats, or_nats)
                return await self._publish(sent, route)
        except _ByNats as instead:
            is_doubtful = instead.is_doubtful
        finally:
            turns.pass_on()
        left = deadline - asyncio.get_running_loop().time()
        try:
            return await self._plain.publish(subject, value, key, headers, options, left)
        except JetstreamError as error:
            if is_doubtful and not isinstance(error, UnknownOutcomeError):
                raise doubtful_error(subject, error) from error
            raise

    async def _publish(self, sent: _Message, route: SubjectRoute) -> PublishResult:
        names = [min(each) for each in route.wanted_of_batches(sent.subject, sent.options.acks)]
        stores = [self._store(sent, name, route.ids[name]) for name in names]
        if sent.options.ack_level == "none":
            for store in stores:
                await store
            return PublishResult(sent.subject)
        if len(stores) == 1:
            return PublishResult.of(sent.subject, (await stores[0],))
        acks = await self._all_of(stores, one_is_enough=sent.options.acks == "any")
        return PublishResult.of(sent.subject, acks)

    async def _all_of(
        self, stores: Sequence[Coroutine[Any, Any, Ack]], *, one_is_enough: bool
    ) -> tuple[Ack, ...]:
        tasks = [asyncio.get_running_loop().create_task(each) for each in stores]
        for task in tasks:
            task.add_done_callback(self._has_gone)
        left = set(tasks)
        try:
            while left:
                _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                over = [task for task in tasks if task.done()]
                acks = tuple(task.result() for task in over if task.exception() is None)
                if one_is_enough and acks:
                    return acks
        finally:
            # Not before: closing the client would cancel who waits for them.
            self._going.update(task for task in left if not task.done())
        errors = [error for task in tasks if isinstance(error := task.exception(), JetstreamError)]
        if not errors:
            return acks
        error = next((e for e in errors if isinstance(e, UnknownOutcomeError)), errors[0])
        for ack in acks:
            error.add_note(f"stream {ack.stream!r} has stored the message, at offset {ack.offset}")
        raise error

    def _has_gone(self, task: asyncio.Task[Ack]) -> None:
        self._going.discard(task)
        if not task.cancelled():
            task.exception()  # There may be no caller that waits for it.

    async def _store(self, sent: _Message, name: str, stream_id: int) -> Ack:
        """Send it to one stream until that has an answer. Raises _ByNats, JetstreamError."""
        stream = common_pb2.StreamRef(id=stream_id)
        loop = asyncio.get_running_loop()
        attempt, is_doubtful = 0, False
        while True:
            attempt += 1
            connection = None
            try:
                connection = self._data_plane.producing_now(stream)
                if connection is None:
                    connection = await self._reach(sent, stream)
                return await self._ack_of(connection, sent, name, stream)
            except JetstreamError as error:
                failure = curable = error
            if isinstance(failure, UnknownOutcomeError):
                is_doubtful, failure = True, unknown_outcome_error(sent.subject, failure.message)
                if not sent.repeats:
                    raise failure
                curable = UnavailableError(curable.message)
            if sent.or_nats and curable.retriable:
                is_silent = connection is None or curable is not failure
                if is_silent and self._plain.is_ready():
                    raise _ByNats(is_doubtful=is_doubtful)
            step = next_step(curable, attempt, random.random())
            late = step is None or loop.time() + step.wait >= sent.deadline
            if step is None or late or self._data_plane.is_closed:
                if is_doubtful and not isinstance(failure, UnknownOutcomeError):
                    raise doubtful_error(sent.subject, failure) from failure
                raise failure
            logger.info("publishing to %r: %s; trying again", sent.subject, curable.message)
            self._plain.events.failed(curable)
            await asyncio.sleep(step.wait)

    async def _reach(self, sent: _Message, stream: common_pb2.StreamRef) -> DataConnection:
        """The connection to the leader. Raises _ByNats if NATS is to be taken instead of it."""
        now = asyncio.get_running_loop().time()
        seconds = sent.deadline - now
        if not sent.or_nats:
            connection = await self._data_plane.producing(stream, seconds)
            check_takes_batches(connection)
            return connection
        if (self._avoided.get(stream.id) or 0.0) > now and self._plain.is_ready():
            raise _ByNats(is_doubtful=False)
        try:
            connection = await self._data_plane.producing(stream, min(seconds, REACH_SECONDS))
            check_takes_batches(connection)
        except UnavailableError:
            self._avoided.put(stream.id, now + _AVOID_SECONDS)
            self._data_plane.look_for_leader(stream)
            raise
        except InvalidRequestError:
            raise _ByNats(is_doubtful=False) from None
        return connection

    async def _ack_of(
        self,
        connection: DataConnection,
        sent: _Message,
        name: str,
        stream: common_pb2.StreamRef,
    ) -> Ack:
        batch = sent.batch
        if batch.length > connection.produce_bytes_max:
            raise MessageTooLargeError(
                f"a message of {batch.length} bytes: the server at {connection.address} takes at "
                f"most {connection.produce_bytes_max}"
            )
        answer = connection.produce(sent.to(stream), batch.header, batch.body)
        if sent.options.ack_level == "none":
            answer.add_done_callback(lambda answer: answer.cancelled() or answer.exception())
            return Ack(name, -1)
        until = sent.deadline
        if sent.repeats:
            until = min(until, asyncio.get_running_loop().time() + _ANSWER_SECONDS)
        try:
            async with asyncio.timeout_at(until):
                found = await answer
        except TimeoutError:
            self._data_plane.look_for_leader(stream)
            raise UnknownOutcomeError("no acknowledgement in time") from None
        except PreconditionFailedError as error:
            raise type(error)(in_offsets(error.message, name)) from None
        except JetstreamError as error:
            raise self._data_plane.was_refused(stream, connection, error) from None
        return Ack(name, found.base_offset, found.duplicate)

    async def close(self) -> None:
        """End those that no caller waits for."""
        await end_tasks(*self._going)


def _batch_of(
    subject: str,
    value: Value | None,
    key: Payload | None,
    headers: HeadersLike | None,
    options: PublishOptions,
) -> EncodedBatch:
    """The message as a batch of one. Raises InvalidRequestError."""
    check_options(options)
    pairs = outgoing(headers) if headers else []
    if options.msg_id is not None:
        pairs.append((header_names.MSG_ID, options.msg_id))
    return encode(
        [value_to_bytes(value)],
        subject.encode(),
        keys=None if key is None else [to_bytes("a key", key)],
        header_blocks=[block_of_pairs(pairs)] if pairs else None,
    )
