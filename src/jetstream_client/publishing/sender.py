"""The sending end of a batched publisher: one task on the client's event loop.

It takes batches from the `RecordAccumulator`, encodes them, sends the ones that `InFlightBatches`
chooses, and passes it the answers. Encoding is the only work per record, with a handful of calls
per batch.

A batch is an envelope (docs/protocol.md, "Envelopes") with an ack inbox. It has a NATS reply
subject as well, so that NATS answers at once when there is no subscriber. If a stream of the
subject has `acks: envelope` it has none, because a request-reply service on the subject must not
take the batch for a request.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from jetstream_client._closing import ClientClosedError, end_tasks
from jetstream_client._log import logger
from jetstream_client.publishing.ack import Ack
from jetstream_client.publishing.in_flight import Done, InFlightBatches, Sending
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.record_accumulator import Batch, RecordAccumulator
from jetstream_client.publishing.subject_routes import (
    Expectation,
    Place,
    SubjectRoute,
    SubjectRoutes,
)
from jetstream_client.publishing.ways import AutoWay, DirectWay, NatsWay, Way, check_via
from jetstream_client.transport.data_plane import DataPlane
from jetstream_client.values.headers import HeadersLike
from jetstream_client.values.records import columns_of, one_a_record, record_of
from jetstream_client.values.type_variables import S
from jetstream_client.values.types import Value, Via
from jetstream_protocol.ack_cluster import SIGN
from jetstream_protocol.batch import HEADER_BYTES
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    InternalError,
    InvalidRequestError,
    JetstreamError,
    NoStreamError,
    StreamPausedError,
    UnavailableError,
)

_T = TypeVar("_T")
Compression = Literal["zstd", "lz4"]
Serializer: TypeAlias = Callable[[S], Value | None]
"""Turns what a program publishes into the bytes of a value or key."""

BATCH_BYTES = 1024 * 1024
"""As librdkafka's. NATS takes a little less in one message by default (max_payload). With large
values the batches in flight, five at most, are what one fsync of the server covers."""
BATCH_BYTES_MAX = 16 * 1024 * 1024
"""What a server accepts uncompressed; NATS rarely takes more than 1 MiB."""
NATS_PAYLOAD_BYTES = 1024 * 1024
"""What NATS takes in one message by default."""
BUFFER_BYTES = 32 * 1024 * 1024
LINGER_SECONDS = 0.005
DELIVERY_SECONDS = 60.0

_MARGIN_BYTES = 1024
"""For a batch's envelope and columns, and for what incompressible bytes gain when compressed."""

_ROUTE_SECONDS = 5.0
"""How often the registry is asked whether other streams listen on the subject now."""

_ROUTE_SECONDS_MAX = 60.0
"""The same where none has listened for long, and nobody sends."""

_STALE_SECONDS = 0.2
"""How soon it is asked after an unknown stream has answered."""

_FAILED_MAX = 100
"""Failures are remembered for `flush`, which raises the first one that no caller has seen. Of more
than so many that are not reported yet, the first ones and the last are remembered."""

_NO_STREAM = NoStreamError, InvalidRequestError, StreamPausedError
"""Errors of the registry's answer: no stream takes batches now."""

_COMPRESSIONS = {None: 0, "zstd": int(Flags.ZSTD), "lz4": int(Flags.LZ4)}


@dataclass(frozen=True, slots=True)
class PublisherOptions:
    """See AsyncClient.publisher. Raises InvalidRequestError."""

    linger: float = LINGER_SECONDS
    max_bytes: int = BATCH_BYTES
    compression: Compression | None = None
    acks: str | Sequence[str] = "all"
    delivery_timeout: float = DELIVERY_SECONDS
    buffer_bytes: int = BUFFER_BYTES
    producer_id: int | None = None
    first_sequence: int = 0
    value_serializer: Serializer[Any] | None = None
    via: Via = "nats"
    key_serializer: Serializer[Any] | None = None

    def record(
        self, value: Any, key: Any, headers: HeadersLike | None
    ) -> tuple[bytes | None, bytes | None, bytes]:
        """See record_of. None stays None: a tombstone, or no key."""
        value = _serialized(self.value_serializer, value)
        return record_of(value, _serialized(self.key_serializer, key), headers)

    def columns(
        self, values: Iterable[Any], keys: Iterable[Any] | None
    ) -> tuple[Sequence[bytes | None], Sequence[bytes | None] | None]:
        """See columns_of."""
        values = _column("value", self.value_serializer, values)
        return columns_of(
            values, None if keys is None else _column("key", self.key_serializer, keys)
        )

    def __post_init__(self) -> None:
        if self.compression not in _COMPRESSIONS:
            raise InvalidRequestError(
                f"invalid compression {self.compression!r}: say 'zstd' or 'lz4'"
            )
        check_via(self.via)
        if self.linger < 0 or self.delivery_timeout <= 0:
            raise InvalidRequestError("linger must be at least 0, delivery_timeout greater than 0")
        if not 0 < self.max_bytes <= BATCH_BYTES_MAX or self.buffer_bytes <= 0:
            raise InvalidRequestError(
                f"max_bytes must be 1 to {BATCH_BYTES_MAX}, buffer_bytes greater than 0"
            )
        if not 0 <= (self.producer_id or 0) < 2**63 or not 0 <= self.first_sequence < 2**31:
            raise InvalidRequestError("producer_id must fit into 63 bits, first_sequence into 31")


def _serialized(serializer: Serializer[Any] | None, given: Any) -> Any:
    return given if serializer is None or given is None else serializer(given)


def _column(what: str, serializer: Serializer[Any] | None, given: Iterable[Any]) -> Iterable[Any]:
    if serializer is None:
        return given
    return [_serialized(serializer, each) for each in one_a_record(what, given)]


class Sender:
    """Belongs to the event loop that creates it, and starts at once; `stop` ends it.

    place: what to send on, and who answers, from the registry's last answer. max_payload: the most
    bytes that one message, or one frame, may have. find_place: the same as `place` in what the
    registry tells later; None: the subject's own. data_plane: for options that say "direct" or
    "auto". buffer: where callers add records.
    """

    def __init__(
        self,
        plain: PlainPublisher,
        routes: SubjectRoutes,
        subject: str,
        options: PublisherOptions,
        place: Place,
        max_payload: int,
        find_place: Callable[[SubjectRoute], Place] | None = None,
        data_plane: DataPlane | None = None,
    ) -> None:
        self._plain = plain
        self._routes = routes
        self._subject = subject
        self._options = options
        self._target, self._route = place
        self._find_place = find_place
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._wanted = asyncio.Event()
        self._failed: list[Batch] = []
        self._trouble = ""
        self._room: list[asyncio.Future[None]] = []
        self.buffer = RecordAccumulator(
            batch_bytes=self._batch_bytes(max_payload),
            buffer_bytes=options.buffer_bytes,
            linger=options.linger,
            delivery_timeout=options.delivery_timeout,
            clock=self._loop.time,
            wake=self._wake,
            thread=self._loop_thread,
        )
        self._compression = _COMPRESSIONS[options.compression]
        self._may_pass: JetstreamError | None = None
        """The failure with which it waits, instead of ending for good."""
        self._in_flight = self._new_in_flight()
        self._route_asked = self._loop.time()
        self._looking: asyncio.Task[None] | None = None
        self._ends_with: JetstreamError = ClientClosedError(
            "the event loop of the client has ended before the client was closed"
        )
        self._way = self._new_way(data_plane)
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._stopped)

    def _batch_bytes(self, max_payload: int) -> int:
        """The largest batch for a connection that takes so much in one message."""
        fits = max_payload - HEADER_BYTES - _MARGIN_BYTES - len(self._subject)
        return min(self._options.max_bytes, self._options.buffer_bytes, fits)

    def _new_in_flight(self) -> InFlightBatches:
        fixed = self._options.producer_id
        expected: tuple[Expectation, ...] = ()
        try:
            expected = self._route.wanted_of_batches(self._subject, self._options.acks)
        except _NO_STREAM as error:  # One stream of a keyed group: the others' senders go on.
            self._may_pass = error
            self.buffer.end(error)
        in_flight = InFlightBatches(
            expected,
            one_is_enough=self._options.acks == "any",
            producer_id=secrets.randbits(63) if fixed is None else fixed,
            sequence=self._options.first_sequence,
            new_id=(lambda: secrets.randbits(63)) if fixed is None else None,
        )
        in_flight.failure = self._may_pass
        in_flight.known, in_flight.cluster = self._route.names, self._route.cluster
        return in_flight

    def _new_way(self, data_plane: DataPlane | None) -> Way:
        wants, via = self._in_flight.wants, self._options.via
        if data_plane is None or via == "nats":
            return NatsWay(self._plain, wants, self._on_answer, self._on_refusal)
        direct = DirectWay(data_plane, self._subject, wants, self._on_direct_answer)
        if via == "direct":
            return direct
        nats = NatsWay(self._plain, wants, self._on_answer, self._on_refusal)
        return AutoWay(direct, nats, self._in_flight.is_first, self._route)

    @property
    def is_well(self) -> bool:
        """Whether records that are added now are likely to be stored soon."""
        return self._in_flight.failure is None and not self._trouble

    @property
    def batches(self) -> list[Batch]:
        """The sealed or sent batches without an outcome, in order."""
        return [*self._in_flight.batches, *self.buffer.sealed()]

    def limit(self, max_payload: int) -> None:
        """The connection is another one, and takes so many bytes in one message."""
        self.buffer.batch_bytes = self._batch_bytes(max_payload)

    def raise_failure(self) -> None:
        """Raise the first failure since the last call that no caller has seen."""
        failed, self._failed = self._failed, []
        for batch in failed:
            if not batch.asked:
                batch.future.result()

    async def patiently(self, put: Callable[[], _T | None]) -> _T:
        """What `put` returns once there is room. Raises UnavailableError when there is none within
        the delivery timeout."""
        if found := put():
            return found
        timeout = self._options.delivery_timeout
        try:
            async with asyncio.timeout(timeout):
                while not (found := put()):
                    turn = self._loop.create_future()
                    self._room.append(turn)
                    await turn
        except TimeoutError as error:
            raise no_room_error(timeout) from error
        return found

    async def stop(self, error: JetstreamError) -> None:
        """End at once: batches that are not stored fail with `error`, those that may be stored with
        UnknownOutcomeError. Idempotent."""
        self._ends_with = error
        try:
            await end_tasks(self._task, self._looking)
        finally:  # Also cancelled: every record has an outcome.
            self._end(error)
            self._way.close()

    def _wake(self) -> None:
        """From any thread, with the buffer locked."""
        if threading.get_ident() == self._loop_thread:
            self._wanted.set()
        else:
            self._loop.call_soon_threadsafe(self._wanted.set)

    async def _run(self) -> None:
        while True:
            now = self._loop.time()
            self._settle(self._in_flight.expire(now, self._way.why_lost))
            self._settle(
                [Done(batch, _never_sent_error()) for batch in self.buffer.take_expired(now)]
            )
            while self._in_flight.has_room and (batch := self.buffer.take(now)) is not None:
                self._in_flight.add(batch)
            for sending in self._in_flight.due(now):
                if self._in_flight.wants(sending):
                    await self._send(sending)
            self._say_trouble()
            if self._in_flight.failure is not None and not self._in_flight.batches:
                if self._in_flight.failure is not self._may_pass:
                    return
                await self._until_it_passes()
                continue
            self._look_for_streams(now)
            await self._wait()

    async def _wait(self) -> None:
        """Wait until there is something to do: an answer, a record, or a deadline."""
        looking = self._looking is not None and not self._looking.done()
        moments = [
            self._in_flight.next_time(),
            None if looking else self._next_look(),
            self.buffer.next_time(has_room=self._in_flight.has_room),
        ]
        soonest = min((moment for moment in moments if moment is not None), default=None)
        if soonest is None:
            await self._wanted.wait()
        elif soonest > self._loop.time():
            timer = self._loop.call_at(soonest, self._wanted.set)
            await self._wanted.wait()
            timer.cancel()
        else:
            await asyncio.sleep(0)
        self._wanted.clear()

    async def _send(self, sending: Sending) -> None:
        batch = sending.batch
        try:
            encoded = batch.encode(self._subject.encode(), self._compression)
            encoded.set_producer(sending.producer_id, sending.sequence)
            # Batches before this one have earlier deadlines.
            deadline = self._in_flight.deadline
            self._say_trouble()
            place = Place(self._target, self._route)
            await self._way.send(sending, encoded, place, deadline)
        except JetstreamError as error:
            self._settle(
                self._in_flight.not_sent(sending.token, error, self._loop.time(), random.random())
            )

    def _on_answer(self, token: str, payload: bytes | None) -> None:
        now, chance = self._loop.time(), random.random()
        token = token.partition(SIGN)[0]
        if payload is None:
            unheard = UnavailableError(
                f"nobody listens at the moment: {self._route.why_no_listener}"
            )
            self._settle(self._in_flight.not_sent(token, unheard, now, chance))
            self._route_asked = min(self._route_asked, now - _ROUTE_SECONDS + _STALE_SECONDS)
        else:
            self._settle(self._in_flight.answered(token, payload, now, chance))
        self._say_trouble()
        self._wanted.set()

    def _on_direct_answer(
        self, token: str, answer: Ack | tuple[str, JetstreamError], count: int
    ) -> None:
        now, chance = self._loop.time(), random.random()
        self._settle(self._in_flight.answer_received(token, answer, count, now, chance))
        self._say_trouble()
        self._wanted.set()

    def _say_trouble(self) -> None:
        """Log when the trouble begins, changes and ends."""
        trouble, before = self._in_flight.trouble, self._trouble
        if not trouble and self._in_flight.batches:
            trouble = self._way.why_lost
        if trouble == before:
            return
        self._trouble = trouble
        if trouble:
            logger.warning("publishing to %r: %s; trying again", self._subject, trouble)
            self._plain.events.failed(UnavailableError(trouble))
        else:
            logger.info("publishing to %r goes on", self._subject)

    def _on_refusal(self, subject: str, error: JetstreamError) -> None:
        """NATS forbids the subject. Any other error goes away by itself, or never does. Rights may
        be given: each record fails until they are."""
        if subject and subject == self._target.lower():
            if self._options.producer_id is None:
                self._may_pass = error
            self._end(error)
            self._wanted.set()

    def _look_for_streams(self, now: float) -> None:
        """Ask the registry now and then, and when an unexpected stream answers. This runs beside
        the sending, because deadlines pass also while no server answers.
        """
        due = self._next_look()
        if due is not None and now >= due and (self._looking is None or self._looking.done()):
            self._route_asked = now
            self._looking = self._loop.create_task(self._adopt_streams())

    def _next_look(self) -> float | None:
        if self._in_flight.failure is not None:
            return None
        if self._in_flight.stale:
            return self._route_asked + _STALE_SECONDS
        return self._route_asked + _ROUTE_SECONDS if self._in_flight.batches else None

    async def _adopt_streams(self) -> None:
        try:
            route = await self._latest_route()
            expected = route.wanted_of_batches(self._subject, self._options.acks)
        except _NO_STREAM as error:
            # An attempt that is on its way still has its answer to come.
            if self._options.producer_id is None:
                self._may_pass = error
            self._settle(self._in_flight.fail(error))
            self._tell()
        except JetstreamError:
            # No server answers at the moment; what is in flight has its own deadline.
            return
        else:
            self._know(route)
            self._settle(self._in_flight.adopt(expected))
        self._wanted.set()

    def _know(self, route: SubjectRoute) -> None:
        self._route = route
        self._in_flight.known, self._in_flight.cluster = route.names, route.cluster

    async def _until_it_passes(self) -> None:
        """All has failed, and callers get the error, because no stream took records: it was deleted
        or paused. Return once one does. Asks now and then, and when somebody wants to send. Whether
        NATS still forbids the subject, only the next records can tell."""
        patience = _ROUTE_SECONDS
        while True:
            self._wanted.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._wanted.wait()
            patience = min(2 * patience, _ROUTE_SECONDS_MAX)
            await asyncio.sleep(_STALE_SECONDS)
            with suppress(JetstreamError):
                route = await self._latest_route()
                expected = route.wanted_of_batches(self._subject, self._options.acks)
                break
        self._know(route)
        self._in_flight.begin_anew(expected)
        self.buffer.begin_anew()

    async def _latest_route(self) -> SubjectRoute:
        """The senders of a keyed group share what the registry tells."""
        if self._find_place is None:
            return await self._routes.ask(self._subject)
        known = None if self._in_flight.stale else self._routes.known(self._subject)
        return self._find_place(known or await self._routes.ask(self._subject)).route

    def _stopped(self, task: asyncio.Task[None]) -> None:
        """Neither the end of the event loop, as that of `asyncio.run`, nor a bug of ours must leave
        callers waiting for ever."""
        if task.cancelled():
            self._end(self._ends_with)
        elif (error := task.exception()) is not None:
            self._end(InternalError(f"the publisher's sender failed: {error!r}"))

    def _settle(self, finished: Sequence[Done]) -> None:
        failure = self._in_flight.failure
        if failure is not None:
            # Take nothing more before callers hear of the failure.
            finished = [*finished, *(Done(batch, failure) for batch in self.buffer.end(failure))]
        for batch, error in finished:
            whole = batch.finish(error)
            if whole is not None and whole.future.exception() is not None:
                self._note_failed(whole)
            self.buffer.release(batch)
        if finished:
            self._tell()

    def _note_failed(self, batch: Batch) -> None:
        if len(self._failed) >= _FAILED_MAX:
            self._failed = [each for each in self._failed if not each.asked]
        if len(self._failed) < _FAILED_MAX:
            self._failed.append(batch)
        elif not batch.asked:
            self._failed[-1] = batch  # Callers may yet see those before it.

    def _tell(self) -> None:
        """Wake everyone that waits for room or for the end."""
        waiting, self._room = self._room, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def _end(self, error: JetstreamError) -> None:
        self._settle(self._in_flight.end(error))
        self._tell()


def no_room_error(timeout: float) -> UnavailableError:
    return UnavailableError(f"the publisher's buffer is full, and has been for {timeout:g} s")


def _never_sent_error() -> UnavailableError:
    return UnavailableError("the batch waited too long for those before it and was never sent")
