"""How a batched publisher's batches reach their streams: as envelopes on NATS, or straight to the
leader of each stream, over its data plane.

    NATS     one message, which every stream on the subject hears; answers at an ack inbox
    direct   one frame to the leader of each stream that is to answer; answers on that connection
    auto     direct where exactly one stream listens and its leader can be reached, else NATS

What to send, and when again, is decided by `InFlightBatches`, for both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from jetstream_client.publishing.ack import Ack, marked
from jetstream_client.publishing.in_flight import Sending
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.record_accumulator import Batch
from jetstream_client.publishing.subject_routes import Place, SubjectRoute
from jetstream_client.publishing.way_choice import WayChoice
from jetstream_client.transport.data_connection import DataConnection, Produced
from jetstream_client.transport.data_plane import DataPlane
from jetstream_protocol import envelope
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb

REACH_SECONDS = 2.0
"""How long a leader is tried to be reached before NATS is taken, if that may be."""


def check_via(via: str) -> None:
    if via not in ("nats", "direct", "auto"):
        raise InvalidRequestError(f"invalid via {via!r}: say 'nats', 'direct' or 'auto'")


class Way(Protocol):
    """Belongs to one sender."""

    @property
    def why_lost(self) -> str:
        """Why no answer can come now; "": one can."""

    async def send(
        self, sending: Sending, encoded: EncodedBatch, place: Place, deadline: float
    ) -> None:
        """Make an attempt. Raises a JetstreamError if nothing was sent."""

    def close(self) -> None:
        """Hear no more answers."""


class NatsWay:
    """wants: whether an attempt is still to be made, after a wait. on_answer: called with the
    attempt's token and the payload; None: there is no subscriber. on_refusal: see
    plain_publisher.Listener."""

    def __init__(
        self,
        plain: PlainPublisher,
        wants: Callable[[Sending], bool],
        on_answer: Callable[[str, bytes | None], None],
        on_refusal: Callable[[str, JetstreamError], None],
    ) -> None:
        self._plain = plain
        self._wants = wants
        self._key = plain.listen(on_answer, on_refusal)

    @property
    def why_lost(self) -> str:
        return self._plain.why_lost

    def is_ready(self) -> bool:
        """Whether it can be taken at once. If not, begins to connect."""
        return self._plain.is_ready()

    async def send(
        self, sending: Sending, encoded: EncodedBatch, place: Place, deadline: float
    ) -> None:
        inbox = await self._plain.connected(deadline)
        if not self._wants(sending):
            return  # It has its outcome, or belongs to another producer by now.
        token = f"{self._key}{sending.token}{marked(place.route)}"
        ack_inbox = (inbox.prefix + token).encode()
        payload = envelope.encode_batch(encoded, ack_inbox=ack_inbox)
        token = "" if place.route.services else token
        await inbox.publish(place.target, payload, token, [], deadline)

    def close(self) -> None:
        self._plain.forget(self._key)


class DirectWay:
    """wants: as in NatsWay. on_answer: called with the attempt's token, what a stream says, and the
    count of records that an ack is for."""

    def __init__(
        self,
        data_plane: DataPlane,
        subject: str,
        wants: Callable[[Sending], bool],
        on_answer: Callable[[str, Ack | tuple[str, JetstreamError], int], None],
    ) -> None:
        self._data_plane = data_plane
        self._subject = subject
        self._wants = wants
        self._on_answer = on_answer
        self._closed = False
        self._opening: asyncio.Task[None] | None = None
        self.why_lost = ""

    def is_ready(self, stream_id: int) -> bool:
        """Whether that stream's leader takes batches now. If there is no connection, begins one."""
        stream = common_pb2.StreamRef(id=stream_id)
        connection = self._data_plane.producing_now(stream)
        if connection is not None:
            return bool(connection.produce_bytes_max)
        if not self._closed and (self._opening is None or self._opening.done()):
            self._opening = asyncio.get_running_loop().create_task(self._open(stream))
        return False

    async def _open(self, stream: common_pb2.StreamRef) -> None:
        with suppress(JetstreamError):
            await self._data_plane.producing(stream, REACH_SECONDS)

    async def send(
        self, sending: Sending, encoded: EncodedBatch, place: Place, deadline: float
    ) -> None:
        for expectation in sending.batch.missing:
            (name,) = expectation  # Streams of a group that is not keyed take no batches.
            stream = common_pb2.StreamRef(id=place.route.ids[name])
            if sending.batch.attempt > 1:
                self._data_plane.look_for_leader(stream)
            try:
                await self._send_to(stream, name, sending, encoded, deadline)
            except JetstreamError as error:
                self.why_lost = error.message
                self._data_plane.look_for_leader(stream)
                self._tell(sending.token, (name, error), 0)

    async def _send_to(
        self,
        stream: common_pb2.StreamRef,
        name: str,
        sending: Sending,
        encoded: EncodedBatch,
        deadline: float,
    ) -> None:
        seconds = deadline - asyncio.get_running_loop().time()
        connection = await self._data_plane.producing(stream, seconds)
        if not self._wants(sending):
            return
        if not connection.produce_bytes_max:
            raise UnavailableError(
                f"the leader at {connection.address} takes no batches from this client now"
            )
        self.why_lost = ""
        request = pb.ProduceRequest(stream=stream, subject=self._subject)
        answer = connection.produce(request, encoded.header, encoded.body)
        answer.add_done_callback(partial(self._answered, sending.token, name, stream, connection))

    def _answered(
        self,
        token: str,
        name: str,
        stream: common_pb2.StreamRef,
        connection: DataConnection,
        answer: asyncio.Future[Produced],
    ) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if error is None:
            found = answer.result()
            offset = found.base_offset + found.record_count - 1
            self._tell(token, Ack(name, offset, found.duplicate), found.record_count)
        elif isinstance(error, JetstreamError):
            shown = self._data_plane.was_refused(stream, connection, error)
            self._tell(token, (name, shown), 0)
        else:
            raise error

    def _tell(self, token: str, answer: Ack | tuple[str, JetstreamError], count: int) -> None:
        if not self._closed:
            self._on_answer(token, answer, count)

    def close(self) -> None:
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()


class AutoWay:
    """Either of them: see way_choice.py. is_first: whether a batch is the first in flight."""

    def __init__(
        self,
        direct: DirectWay,
        nats: NatsWay,
        is_first: Callable[[Batch], bool],
        route: SubjectRoute,
    ) -> None:
        self._direct = direct
        self._nats = nats
        self._is_first = is_first
        self._choice = WayChoice(is_straight=self._may_go_straight(route))

    def _may_go_straight(self, route: SubjectRoute) -> bool:
        return route.goes_straight and all(map(self._direct.is_ready, route.ids.values()))

    @property
    def why_lost(self) -> str:
        return (self._direct if self._choice.is_straight else self._nats).why_lost

    async def send(
        self, sending: Sending, encoded: EncodedBatch, place: Place, deadline: float
    ) -> None:
        now, route = asyncio.get_running_loop().time(), place.route

        def is_ready(straight: bool) -> bool:
            return self._may_go_straight(route) if straight else self._nats.is_ready()

        if self._choice.choose(
            sending,
            is_first=self._is_first(sending.batch),
            goes_straight=route.goes_straight,
            is_ready=is_ready,
            now=now,
        ):
            await self._direct.send(sending, encoded, place, min(deadline, now + REACH_SECONDS))
            return
        if route.goes_straight and not self._nats.is_ready():
            raise UnavailableError(self._nats.why_lost or "NATS is not connected yet")
        try:
            await self._nats.send(sending, encoded, place, deadline)
        except MessageTooLargeError as error:
            if not sending.batch.doubtful:
                raise
            # It cannot be split any more, and goes straight again.
            raise UnavailableError(error.message) from error

    def close(self) -> None:
        self._direct.close()
        self._nats.close()
