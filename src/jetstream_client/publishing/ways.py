"""How a batched publisher's batches reach their streams: as envelopes on NATS, or straight to the
leader of each stream, over its data plane.

    NATS     one message, which every stream on the subject hears; answers at an ack inbox
    direct   one frame to the leader of each stream that is to answer; answers on that connection

What to send, and when again, is decided by `InFlightBatches`, for both alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol

from jetstream_client.publishing.ack import Ack, marked
from jetstream_client.publishing.in_flight import Sending
from jetstream_client.publishing.plain_publisher import PlainPublisher
from jetstream_client.publishing.subject_routes import Place
from jetstream_client.transport.data_connection import DataConnection, Produced
from jetstream_client.transport.data_plane import DataPlane
from jetstream_protocol import envelope
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb


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
    attempt's token and the payload; None: nobody listens. on_refusal: see
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
    """wants: as in NatsWay. on_told: called with the attempt's token, what a stream says, and the
    count of records that an ack is for."""

    def __init__(
        self,
        data_plane: DataPlane,
        subject: str,
        wants: Callable[[Sending], bool],
        on_told: Callable[[str, Ack | tuple[str, JetstreamError], int], None],
    ) -> None:
        self._data_plane = data_plane
        self._subject = subject
        self._wants = wants
        self._on_told = on_told
        self._closed = False
        self.why_lost = ""

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
            told = self._data_plane.was_refused(stream, connection, error)
            self._tell(token, (name, told), 0)
        else:
            raise error

    def _tell(self, token: str, answer: Ack | tuple[str, JetstreamError], count: int) -> None:
        if not self._closed:
            self._on_told(token, answer, count)

    def close(self) -> None:
        self._closed = True
