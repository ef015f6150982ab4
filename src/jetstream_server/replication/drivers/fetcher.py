"""The follower's end of replication: one connection to each node that leads streams followed here.

Positions are sent when they change (records appended, flushed, truncated), only for the changed
streams. Answers are applied to the logs as they arrive. A lost or silent connection is opened again
after short pauses, while there is a stream to follow: after a partition, TCP may need minutes to
send lost packets again. A connection that holds is kept without one: its node may lead again.
A stream that the leader refuses, or whose answer cannot be used, is asked for again after pauses
that grow.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    InvalidRequestError,
    JetstreamError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.encryption import CannotDecryptError
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.frame_connection import Dial, FrameConnection
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.net.node_link import NodeIdentity, connect, greet
from jetstream_server.replication.core.fixed_layout import (
    decode_answers,
    encode_positions,
    has_fixed_layout,
)
from jetstream_server.replication.core.follower import Append, Ignore, Later
from jetstream_server.replication.core.messages import Answer, FetchRequest, Refused, length_of
from jetstream_server.replication.core.wire import (
    POSITIONS_MAX,
    part_from_proto,
    position_to_proto,
)
from jetstream_server.replication.replica import Replica
from jetstream_server.retries import Retries, RetryTimer

RETRY_SECONDS = 0.1
"""Pause after a first refusal or a lost connection: metadata arrives, or a process starts, in about
that time."""
FULL_RETRY_SECONDS = 1.0
RETRY_SECONDS_MAX = 2.0
"""Longest pause of a stream that is refused again and again."""
SILENCE_MAX_US = 1_500_000
"""A leader silent for this long is reported: as long as a session may be silent."""
WATCHES_PER_SILENCE = 3
"""How often within SILENCE_MAX_US the leader is checked and gets a keep-alive: several times before
it counts this node as silent (liveness.py). The positions of replicas that are not in sync are
repeated as often, because the leader may not have been able to count them; not those that it has
refused."""

logger = structlog.get_logger("jetstream.replication")


class Fetcher:
    """Follows one leader node. Owned by the loop; `close` ends it."""

    def __init__(
        self,
        leader: int,
        address: Callable[[], tuple[str, int] | None],
        identity: NodeIdentity,
        *,
        dial: Dial,
        monotonic_clock: MonotonicClock,
        silent: Callable[[list[Replica]], None],
    ) -> None:
        """address: the leader's data plane, None while it is not registered. silent: called when
        the leader has sent nothing for SILENCE_MAX_US, and again after each such time."""
        self._leader = leader
        self._address = address
        self._identity = identity
        self._dial = dial
        self._monotonic_clock = monotonic_clock
        self._silent = silent
        self._following: dict[int, Replica] = {}
        self._has_streams = asyncio.Event()  # to follow
        self._out_of_sync: dict[int, None] = {}  # streams with a replica here that is to join
        self._dirty: dict[int, None] = {}
        self._frames_sent = 0
        self._dropped: list[int] = []
        self._refused: dict[int, str] = {}  # the last refusal for a stream, and its cause
        self._cannot_append: dict[int, None] = {}  # streams that lack room, descriptor or key here
        self._retries: Retries[int] = Retries(RETRY_SECONDS_MAX)
        self._complaints = LogThrottle(lambda: monotonic_clock() / 1e6)
        self._loop = asyncio.get_running_loop()
        self._retry_timer = RetryTimer(self._loop, self._retries, self._retry)
        self._send_due = False
        self._taking = False
        self._knows_fixed_layout = False  # the leader
        self._sending: asyncio.Task[None] | None = None
        self._connection: FrameConnection | None = None
        self._heard_at_us = monotonic_clock()
        self._last_failure = ""
        self._tasks = [
            run_in_background(self._run(), f"fetcher of node {leader}"),
            run_in_background(self._watch(), f"watch over node {leader}"),
        ]

    def follow(self, replica: Replica) -> None:
        """Follow a stream. Call it again when the stream's metadata has changed."""
        stream = replica.stream
        if self._retries.waits(stream.id):
            # At once: the refusal may have been for the earlier metadata. The leader has answered
            # this position, so it must be asked to answer it again.
            self._retries.forget(stream.id)
            self._dropped.append(stream.id)
        if not self._following and self._connection is None:
            self._heard_at_us = self._monotonic_clock()  # Nothing was expected of it before.
        self._following[stream.id] = replica
        self._has_streams.set()
        node_id = self._identity.node_id
        if node_id in stream.replicas and node_id not in stream.isr:
            self._out_of_sync[stream.id] = None
        else:
            self._out_of_sync.pop(stream.id, None)
        self.touch(stream.id)

    def drop(self, stream_id: int) -> None:
        if self._following.pop(stream_id, None) is not None:
            self._out_of_sync.pop(stream_id, None)
            self._dirty.pop(stream_id, None)
            self._refused.pop(stream_id, None)
            self._cannot_append.pop(stream_id, None)
            self._retries.forget(stream_id)
            self._dropped.append(stream_id)
            if not self._following:
                self._has_streams.clear()
            self._send_soon()

    def touch(self, stream_id: int) -> None:
        """Note that the stream's position has changed, or must be sent again."""
        if stream_id in self._following:
            self._dirty[stream_id] = None
            self._send_soon()

    def request_again(self, stream_id: int) -> None:
        """Request another answer to the same position: the last answer was not applied."""
        if stream_id in self._following:
            self._dropped.append(stream_id)
            self.touch(stream_id)

    async def close(self) -> None:
        self._retry_timer.cancel()
        await end_tasks(*self._tasks)

    # The connection.

    async def _run(self) -> None:
        while True:
            await self._has_streams.wait()
            try:
                await self._connect_and_follow()
            except (OSError, EOFError, TimeoutError, JetstreamError) as error:
                self._note_failure(error)
            await asyncio.sleep(RETRY_SECONDS)

    def _note_failure(self, error: Exception) -> None:
        reason = str(error) or ("it hung up" if isinstance(error, EOFError) else "it is silent")
        if reason != self._last_failure:
            self._last_failure = reason
            logger.warning("leader_unreachable", leader=self._leader, reason=reason)

    async def _connect_and_follow(self) -> None:
        address = self._address()
        if address is None:
            raise UnavailableError(f"node {self._leader} is not registered")
        connection = await connect(self._dial, address)
        try:
            self._knows_fixed_layout = await greet(connection, self._identity, self._leader)
            self._last_failure = ""
            self._heard_at_us = self._monotonic_clock()
            self._dropped.clear()
            self._retries.clear()
            self._dirty = dict.fromkeys(self._following)
            self._connection = connection
            self._send_positions()
            kinds = (Kind.RECORDS, Kind.FIXED_RECORDS)[: 1 + self._knows_fixed_layout]
            await connection.take_each(self._take_all, *kinds)
        finally:
            self._connection = None
            for replica in self._following.values():
                replica.closeness.lost()
            await end_tasks(self._sending)
            connection.close()

    def _send_soon(self) -> None:
        """Send after all changes of this loop iteration."""
        if not self._send_due and not self._taking and self._sending is None:
            self._send_due = True
            self._loop.call_soon(self._send_positions)

    def _send_positions(self, *, keep_alive: bool = False) -> None:
        """Send the changed positions, as far as the leader accepts them."""
        self._send_due = False
        connection = self._connection
        if connection is None:
            return
        try:
            while self._sending is None and (self._dirty or self._dropped or keep_alive):
                keep_alive = False
                self._frames_sent += 1
                rest = connection.start_frame(frames.encode(*self._positions()))
                if rest is not None:
                    self._sending = self._loop.create_task(rest)
                    self._sending.add_done_callback(self._sent)
        except OSError:
            connection.shut_down()

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if sending.cancelled():
            return
        if sending.exception() is None:
            self._send_positions()
        elif self._connection is not None:
            self._connection.shut_down()

    def _positions(self) -> tuple[Kind, int, bytes]:
        """Kind, correlation and head of the frame with the next positions."""
        positions: list[FetchRequest] = []
        is_fixed = self._knows_fixed_layout and not self._dropped
        while self._dirty and len(positions) < POSITIONS_MAX:
            stream_id = next(iter(self._dirty))
            del self._dirty[stream_id]
            position = self._following[stream_id].position()
            if position is not None:
                if stream_id in self._cannot_append:
                    position = replace(position, cannot_append=True)
                positions.append(position)
                is_fixed &= has_fixed_layout(position) and stream_id not in self._refused
        if is_fixed:
            return Kind.FIXED_POSITIONS, 0, encode_positions(positions)
        message = pb.Positions(dropped=self._dropped[:POSITIONS_MAX])
        del self._dropped[:POSITIONS_MAX]
        for position in positions:
            sent = position_to_proto(position)
            sent.refused = position.stream_id in self._refused
            message.positions.append(sent)
        return Kind.POSITIONS, 0, message.SerializeToString()

    # Answers.

    def _take_all(self, frame: Frame) -> bool:
        self._heard_at_us = self._monotonic_clock()
        tail = frame.tail
        parts = self._decode(frame)
        self._taking = True
        # A slice of all bytes of a `bytes`, and any slice of a memoryview, copies nothing.
        batches = tail if isinstance(tail, bytes) else memoryview(tail)
        position = 0
        try:
            for part in parts:
                end = position + length_of(part)
                if end > len(tail):
                    raise InvalidRequestError("an answer shorter than its parts")
                self._take(part, bytes(batches[position:end]))
                position = end
        finally:
            self._taking = False
            self._send_positions()
        return False

    def _decode(self, frame: Frame) -> Sequence[Answer | Refused]:
        node_id, incarnation = self._identity.node_id, self._identity.incarnation
        if frame.kind == Kind.FIXED_RECORDS:
            return decode_answers(frame.head, len(frame.tail), node_id, incarnation)
        records = decode_head(frame, pb.Records)
        return [part_from_proto(part, node_id, incarnation) for part in records.parts]

    def _take(self, answer: Answer | Refused, data: bytes) -> None:
        stream_id = answer.request.stream_id
        replica = self._following.get(stream_id)
        if replica is None:
            return
        if isinstance(answer, Refused):
            replica.closeness.lost()
            self._retry_later(stream_id, RETRY_SECONDS)
            return
        was_offline, end_offset = bool(replica.log.offline_reason), replica.log.log_end_offset
        try:
            step = replica.accept(answer, data, self._monotonic_clock())
        except StorageFullError:  # NoDescriptorError is one.
            if replica.log.log_end_offset != end_offset:
                replica.accepted()  # A part of the answer was appended.
            self._lacks_means(stream_id)
            return
        except CannotDecryptError as error:
            self._cannot_decrypt(replica, error)
            return
        except (CorruptBatchError, DivergedError) as error:
            self._refuse(replica, error)
            return
        except StorageError as error:
            if lacks_descriptors(error.__cause__) and not replica.log.offline_reason:
                self._lacks_means(stream_id)  # The log is as good as ever.
            else:
                replica.fail(error)
            return
        self._refused.pop(stream_id, None)
        if isinstance(step, Ignore):
            if isinstance(step, Later):
                self._retry_later(stream_id, RETRY_SECONDS)
            return
        self._retries.forget(stream_id)
        if stream_id in self._cannot_append:
            del self._cannot_append[stream_id]
            self.touch(stream_id)
        is_online_again = was_offline and not replica.log.offline_reason
        if isinstance(step, Append) and not (
            step.has_records or replica.must_confirm_flush or is_online_again
        ):
            return
        replica.accepted()
        self.touch(stream_id)

    def _refuse(self, replica: Replica, error: CorruptBatchError | DivergedError) -> None:
        """Refuse an unusable answer. Bad bytes are reported to the leader, which inspects its
        file."""
        stream_id = replica.stream.id
        if self._refused.get(stream_id) != error.message:
            logger.warning("records_refused", stream=replica.stream.full_name, reason=error.message)
        if isinstance(error, CorruptBatchError) and error.file:
            # This node's own log is bad: the leader cannot say where to truncate it.
            replica.fail(error)
            return
        if isinstance(error, CorruptBatchError):
            self._refused[stream_id] = error.message
        self._retry_later(stream_id, RETRY_SECONDS)

    def _cannot_decrypt(self, replica: Replica, error: CannotDecryptError) -> None:
        """Append nothing. After a restart with the key, fetching continues from here."""
        if self._complaints.is_due("cannot_decrypt", replica.stream.full_name):
            logger.error("cannot_decrypt", stream=replica.stream.full_name, reason=error.message)
        self._lacks_means(replica.stream.id)

    def _lacks_means(self, stream_id: int) -> None:
        """Try again later, and tell the leader, whose commits need not wait for that."""
        if stream_id not in self._cannot_append:
            self._cannot_append[stream_id] = None
            self.touch(stream_id)
        self._retry_later(stream_id, FULL_RETRY_SECONDS)

    def _retry_later(self, stream_id: int, seconds: float) -> None:
        self._retry_timer.refused(stream_id, seconds)

    def _retry(self, stream_ids: list[int]) -> None:
        for stream_id in stream_ids:
            self.request_again(stream_id)

    async def _watch(self) -> None:
        """Report a silent leader, with or without a connection, and close the connection. Send
        keep-alives, and positions that the leader may have missed."""
        received, looked_at_us = 0, self._monotonic_clock()
        while True:
            sent = self._frames_sent
            await asyncio.sleep(SILENCE_MAX_US / 1e6 / WATCHES_PER_SILENCE)
            for stream_id in self._out_of_sync:
                if not self._retries.waits(stream_id):
                    self._dirty[stream_id] = None
            self._send_positions(keep_alive=self._frames_sent == sent)
            now_us = self._monotonic_clock()
            connection = self._connection
            if connection is not None and connection.bytes_received != received:
                received = connection.bytes_received  # A long answer arrives in pieces.
                self._heard_at_us = now_us
            if now_us - looked_at_us > SILENCE_MAX_US:
                self._heard_at_us = (
                    now_us  # After a pause of this process nothing can have been heard.
                )
            looked_at_us = now_us
            if now_us - self._heard_at_us <= SILENCE_MAX_US:
                continue
            self._heard_at_us = now_us
            if connection is not None:
                self._note_failure(TimeoutError())
                connection.shut_down()
            if self._following:
                self._silent(list(self._following.values()))
