"""The leader's end of one follower node's connection: takes positions, sends records.

The follower names its streams once and then only the changed ones, so the cost depends on the
active streams. An answer is sent for records, a risen high watermark, a divergence or an error, and
at the latest every KEEP_ALIVE_SECONDS. Per stream, one answer with records is in flight at a time:
the next position acknowledges it.

Copies may be limited: records for a replica that is not in sync and does not keep up wait for their
turn (copy_turns.py). No record waits on which a commit depends: a stream that has too few replicas
in sync to commit is not limited, because its publishers wait for the copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError
from jetstream_protocol.frame_decoder import Frame
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.background import end_tasks
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.net.frame_connection import FrameConnection, UnreadableSliceError
from jetstream_server.net.frame_socket import decode_head
from jetstream_server.replication.core.fixed_layout import (
    ANSWERS_MAX,
    decode_positions,
    encode_answer,
)
from jetstream_server.replication.core.messages import (
    Answer,
    Diverging,
    FetchRequest,
    LeaderSnapshot,
    OutOfRange,
    Records,
    Refused,
    length_of,
)
from jetstream_server.replication.core.wire import (
    POSITIONS_MAX,
    part_to_proto,
    position_from_proto,
)
from jetstream_server.replication.drivers.copy_turns import Copier, CopyTurns
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager

NOTICE_US = 1000
"""How long a risen high watermark waits for records that can carry it. Under load this halves the
frames of a stream that is written one message at a time."""
NOTICE_US_MAX = 8000
"""The same while records come all the time and carry it: each look that finds nothing due doubles
the pause, because it costs a turn of the loop. The first notice that is sent ends that."""
KEEP_ALIVE_SECONDS = 0.4
KEEP_ALIVE_TICKS = 2
"""Several times within the time after which a follower reports its leader."""
FRAME_BYTES = 4 * 1024 * 1024
"""Approximate bytes of a frame, so that a stream that catches up does not delay others."""
BEHIND_MAX = 4
"""So many answers in a row after which a follower still lacked what was committed before: it does
not keep up. One that does, for example an observer under load, lacks the last answer or two."""
REFUSED_MAX = 4 * ANSWERS_MAX
"""Refusals that wait to be sent. With more, nothing is read: a follower that reads nothing must not
fill this node's memory."""


class _Stream:
    """The state of one stream on this connection."""

    __slots__ = (
        "behind", "committed_then", "decided", "is_answered", "notice_at_us", "notice_is_due",
        "replica", "request", "sent",
    )  # fmt: skip

    def __init__(self, replica: Replica, request: FetchRequest) -> None:
        self.replica = replica
        self.request = request
        self.decided: Answer | None = None
        """The answer at the arrival of the position, if there was one."""
        self.is_answered = False
        """Whether records, or a divergence, were sent for that position."""
        self.sent: LeaderSnapshot | None = None
        self.notice_at_us = MonotonicUs(0)
        self.notice_is_due = False
        self.committed_then = replica.high_watermark
        """The high watermark at the previous request."""
        self.behind = BEHIND_MAX if request.fetch_offset < self.committed_then else 0
        """How many requests in a row lacked what was committed then."""

    def note(self, request: FetchRequest) -> None:
        """Take a position, as the latest one."""
        before, self.request = self.request.fetch_offset, request
        if request.fetch_offset < before:  # Its log was cut or emptied.
            self.behind = BEHIND_MAX
        elif request.fetch_offset >= self.committed_then:
            self.behind = 0
        elif request.fetch_offset > before:
            self.behind += 1
        self.committed_then = self.replica.high_watermark

    @property
    def has_all(self) -> bool:
        """Whether the follower has everything, so that there are no records to send."""
        return self.request.fetch_offset == self.replica.log.log_end_offset


class LeaderStream(Copier):
    """Call `run`, which returns when the follower leaves or violates the protocol."""

    def __init__(
        self,
        socket: FrameConnection,
        replicas: ReplicaManager,
        *,
        follower: int,
        incarnation: int,
        copy_turns: CopyTurns,
        monotonic_clock: MonotonicClock,
        fixed_layout: bool = False,
    ) -> None:
        """copy_turns: of this node, for all its followers. fixed_layout: the follower knows it."""
        self._socket = socket
        self._replicas = replicas
        self._follower = follower
        self._incarnation = incarnation
        self._copy_turns = copy_turns
        self._monotonic_clock = monotonic_clock
        self._fixed_layout = fixed_layout
        self._streams: dict[int, _Stream] = {}
        self._ready: dict[int, _Stream] = {}
        self._put_off: dict[int, _Stream] = {}  # in the order of their `notice_at_us`
        self._copies: dict[int, _Stream] = {}  # those that wait for a turn, in their order
        self._copied = -1  # the stream whose turn it is
        self._refused: list[Refused] = []
        self._has_paused = False
        self._notice_timer: asyncio.TimerHandle | None = None
        self._notice_us = NOTICE_US
        self._loop = asyncio.get_running_loop()
        self._gathering = False
        self._taking = False
        self._sending: asyncio.Task[None] | None = None
        self._silent_ticks = 0

    async def run(self) -> None:
        self._replicas.add_progress_listener(self)
        keeping_alive = self._loop.create_task(self._keep_alive())
        keeping_alive.add_done_callback(self._keep_alives_ended)
        try:
            kinds = (Kind.POSITIONS, Kind.FIXED_POSITIONS)[: 1 + self._fixed_layout]
            await self._socket.take_each(self._take, *kinds)
        finally:
            self._replicas.remove_progress_listener(self)
            if self._notice_timer is not None:
                self._notice_timer.cancel()
            await end_tasks(keeping_alive, self._sending)
            self._copy_turns.leave(self)

    def progressed(self, replica: Replica) -> None:
        """Note that there may be something to send for a stream."""
        stream_id = replica.stream.id
        stream = self._streams.get(stream_id)
        if stream is None or stream.is_answered:
            return
        if stream_id in self._copies and self._is_copy(stream):
            return
        if stream.has_all:
            self._wait_for_records(stream_id, stream)
        elif not self._send_newest(stream_id, stream):
            self._ready[stream_id] = stream
            self._send_soon()

    def _send_newest(self, stream_id: int, stream: _Stream) -> bool:
        """Send what was just appended from memory. Returns False, with nothing done, if that is
        not all that the follower lacks, or other answers are due."""
        newest, request, leadership = (
            stream.replica.newest, stream.request, stream.replica.leadership,
        )  # fmt: skip
        if (
            newest is None
            or leadership is None
            or request.fetch_offset != newest.base_offset
            or not self._fixed_layout
            or self._gathering
            or self._taking
            or self._sending is not None
            or self._ready
            or self._refused
            or stream.decided is not None
            or stream.behind >= BEHIND_MAX
        ):
            return False
        try:
            answer = newest.answer(leadership, request)
            if answer is None:
                return False
            stream.sent, frame = answer
            rest = self._socket.start_frame(frame)
        except JetstreamError:
            return False  # The usual way tells the follower.
        except (OSError, EOFError):
            self._socket.shut_down()
            return True
        stream.is_answered, stream.notice_is_due = True, False
        self._put_off.pop(stream_id, None)
        self._silent_ticks = 0
        self._gathering = True
        self._loop.call_soon(self._end_of_iteration)
        if rest is not None:
            self._sending = self._loop.create_task(rest)
            self._sending.add_done_callback(self._sent)
        return True

    def _take(self, frame: Frame) -> bool:
        now_us = self._monotonic_clock()
        if frame.kind == Kind.FIXED_POSITIONS:
            requests = decode_positions(frame.head, self._follower, self._incarnation)
        else:
            requests = self._decode(frame)
        self._taking = True
        for request in requests:
            self._note(request, now_us)
        self._taking = False
        if self._ready or self._refused or self._copies:
            self._send_answers()
        if len(self._refused) > REFUSED_MAX:
            self._has_paused = True
            self._socket.pause_reading()
        return False

    def _decode(self, frame: Frame) -> list[FetchRequest]:
        positions = decode_head(frame, pb.Positions)
        if max(len(positions.positions), len(positions.dropped)) > POSITIONS_MAX:
            raise InvalidRequestError(f"more than {POSITIONS_MAX} positions in a frame")
        for stream_id in positions.dropped:
            self._forget(stream_id)
        for position in positions.positions:
            if position.refused:
                self._replicas.suspect(position.stream_id, position.fetch_offset)
        return [
            position_from_proto(position, self._follower, self._incarnation)
            for position in positions.positions
        ]

    def _note(self, request: FetchRequest, now_us: MonotonicUs) -> None:
        """Count the position at once. The answer follows in its turn."""
        stream_id = request.stream_id
        try:
            replica = self._replicas.led_replica(stream_id)
            answer = replica.fetch(request, now_us)
        except JetstreamError as error:
            self._forget(stream_id)
            self._refused.append(Refused(request, error))
            return
        stream = self._streams.get(stream_id)
        if stream is None:
            stream = self._streams[stream_id] = _Stream(replica, request)
        elif not stream.request.matches(request):
            stream.is_answered = False
        stream.note(request)
        stream.decided = None
        if isinstance(answer, Records) and answer.slice is None:
            if answer.snapshot != stream.sent:
                self._wait_for_records(stream_id, stream, now_us)
        else:
            stream.decided = answer
            self._ready[stream_id] = stream

    def _forget(self, stream_id: int) -> None:
        for table in (self._streams, self._ready, self._put_off, self._copies):
            table.pop(stream_id, None)

    def _send_soon(self) -> None:
        """Send the first answer of a loop iteration at once, the others of the iteration
        together."""
        if not self._gathering and not self._taking:
            self._gathering = True
            self._loop.call_soon(self._end_of_iteration)
            self._send_answers()

    def _end_of_iteration(self) -> None:
        self._gathering = False
        if self._ready or self._refused or self._copies:
            self._send_answers()

    def _send_answers(self, *, keep_alive: bool = False) -> None:
        """Send what is due, as far as the follower accepts it."""
        try:
            while self._sending is None and (self._ready or self._refused or keep_alive):
                parts, slices = self._answers()
                if parts or keep_alive:
                    keep_alive = False
                    self._silent_ticks = 0
                    self._send(parts, slices)
        except (OSError, EOFError, JetstreamError):
            self._socket.shut_down()  # If one task ends, the other one ends too.
            return
        if self._copies and self._sending is None:
            self._copy_turns.wait(self)
        if self._has_paused and len(self._refused) <= REFUSED_MAX:
            self._has_paused = False
            self._socket.resume_reading()

    def _sent(self, sending: asyncio.Task[None]) -> None:
        self._sending = None
        if sending.cancelled():
            return
        if sending.exception() is not None:
            self._socket.shut_down()
        else:
            self._send_answers()

    def _send(self, parts: list[Answer | Refused], slices: list[LogSlice]) -> None:
        try:
            rest = self._socket.start_encoded(*self._encode(parts), slices)
        except UnreadableSliceError as error:
            self._answer_anew(parts, slices, error)
            return
        if rest is not None:
            self._sending = self._loop.create_task(self._finish(rest, parts, slices))
            self._sending.add_done_callback(self._sent)

    def _encode(self, parts: list[Answer | Refused]) -> tuple[Kind, int, bytes]:
        """Kind, correlation and head of a frame with these parts."""
        if self._fixed_layout and parts and all(isinstance(part, Records) for part in parts):
            heads = [encode_answer(each.request, each.snapshot, length_of(each)) for each in parts]  # type: ignore[union-attr]  # records
            return Kind.FIXED_RECORDS, 0, b"".join(heads)
        records = pb.Records(parts=map(part_to_proto, parts))
        return Kind.RECORDS, 0, records.SerializeToString()

    async def _finish(
        self,
        rest: Coroutine[Any, Any, None],
        parts: list[Answer | Refused],
        slices: list[LogSlice],
    ) -> None:
        try:
            await rest
        except UnreadableSliceError as error:
            self._answer_anew(parts, slices, error)

    def _answer_anew(
        self, parts: list[Answer | Refused], slices: list[LogSlice], error: UnreadableSliceError
    ) -> None:
        """Handle a slice that cannot be read: its file was removed, cut or compacted meanwhile, or
        the disk has lost it, or no descriptor is left. Nothing was sent. Refuse only that stream,
        have its file inspected if that may find something, and answer the other streams again."""
        waiting = iter(slices)
        for part in parts:
            slice_ = next(waiting) if length_of(part) else None
            stream_id = part.request.stream_id
            stream = self._streams.get(stream_id)
            if isinstance(part, Refused):
                self._refused.append(part)
            elif (
                stream is not None
                and slice_ is not None
                and slice_ is error.slice
                and not slice_.is_gone
            ):
                self._replicas.suspect(stream_id, slice_.base_offset, error)
                self._forget(stream_id)
                self._refused.append(Refused(stream.request, UnavailableError(error.message)))
            elif stream is not None:
                stream.is_answered, stream.sent = False, None
                self._ready[stream_id] = stream

    async def _keep_alive(self) -> None:
        """Send a keep-alive when nothing else is sent, and check the follower's. Cheaper than a
        timer per frame."""
        received = -1
        while True:
            if self._socket.bytes_received != received:
                received = self._socket.bytes_received
                self._replicas.heard(NodeId(self._follower))
            await asyncio.sleep(KEEP_ALIVE_SECONDS / KEEP_ALIVE_TICKS)
            self._silent_ticks += 1
            if self._silent_ticks >= KEEP_ALIVE_TICKS:
                self._send_answers(keep_alive=True)

    def _keep_alives_ended(self, task: asyncio.Task[None]) -> None:
        """If they failed, end the connection too: the follower would take this node for silent."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            context = {"message": "keep-alives to a follower failed", "exception": error}
            self._loop.call_exception_handler(context)
            self._socket.shut_down()

    def _answers(self) -> tuple[list[Answer | Refused], list[LogSlice]]:
        """Answers for some of the streams that are ready: those of one frame."""
        parts: list[Answer | Refused] = [*self._refused[:ANSWERS_MAX]]
        del self._refused[:ANSWERS_MAX]
        slices: list[LogSlice] = []
        room = FRAME_BYTES
        while self._ready and room > 0 and len(parts) < ANSWERS_MAX:
            stream_id = next(iter(self._ready))
            stream = self._ready.pop(stream_id)
            if self._must_wait(stream_id, stream):
                continue
            try:
                answer = self._answer(stream_id, stream)
            except JetstreamError as error:
                self._forget(stream_id)
                parts.append(Refused(stream.request, error))
                continue
            if answer is None:
                continue
            self._put_off.pop(stream_id, None)
            # In a divergence the follower does not use the leader's state: send it again.
            stream.sent = answer.snapshot if isinstance(answer, Records) else None
            parts.append(answer)
            if not isinstance(answer, Records):
                stream.is_answered = True
            elif answer.slice is not None:
                stream.is_answered = True
                slices.append(answer.slice)
                room -= answer.slice.length
                if self._is_copy(stream):
                    self._copy_turns.sent(answer.slice.length)
        return parts, slices

    def _answer(self, stream_id: int, stream: _Stream) -> Answer | None:
        """The answer to send; None: nothing yet. Raises the errors of `Replica.answer_again`."""
        if stream.is_answered and stream.replica.leadership is not None:
            return None  # The next position shows the result.
        answer, stream.decided = stream.decided, None
        is_due, stream.notice_is_due = stream.notice_is_due, False
        if answer is None:
            if stream.has_all and not is_due:
                self._wait_for_records(stream_id, stream)
                return None
            answer = stream.replica.answer_again(stream.request)
        if isinstance(answer, Records) and answer.slice is None and answer.snapshot == stream.sent:
            return None
        return answer

    def _must_wait(self, stream_id: int, stream: _Stream) -> bool:
        """Whether the stream has to wait for a turn to be copied: it is answered later."""
        if stream_id == self._copied or not self._is_copy(stream):
            self._copies.pop(stream_id, None)
            return False
        if isinstance(stream.decided, Diverging | OutOfRange):
            return False  # Without records.
        self._copies.setdefault(stream_id, stream)  # `_send_answers` queues up.
        return True

    def _is_copy(self, stream: _Stream) -> bool:
        """Whether what the follower lacks is sent as fast as copies may be, and no faster."""
        if stream.behind < BEHIND_MAX or not self._copy_turns.are_limited:
            return False
        leadership = stream.replica.leadership
        return (
            leadership is not None
            and leadership.can_commit
            and self._follower not in leadership.isr
            and not stream.has_all
        )

    def copy_next(self) -> None:
        """Answer the stream that has waited longest, if the follower takes what is sent."""
        if self._sending is not None:
            return  # `_send_answers` queues up once that is sent.
        if self._copies:
            self._copied = stream_id = next(iter(self._copies))
            self._ready = {stream_id: self._copies.pop(stream_id), **self._ready}
        self._send_answers()
        self._copied = -1

    def _wait_for_records(
        self, stream_id: int, stream: _Stream, now_us: MonotonicUs | None = None
    ) -> None:
        """Delay other news, so that records can carry it."""
        if stream_id not in self._put_off:
            now_us = self._monotonic_clock() if now_us is None else now_us
            stream.notice_at_us = MonotonicUs(now_us + NOTICE_US)
            self._put_off[stream_id] = stream
            if self._notice_timer is None:
                self._look_at_notices(self._notice_us)

    def _look_at_notices(self, delay_us: int) -> None:
        self._notice_timer = self._loop.call_later(delay_us / 1e6, self._send_notices)

    def _send_notices(self) -> None:
        """Send news that was delayed long enough."""
        self._notice_timer = None
        now_us = self._monotonic_clock()
        for stream_id, stream in tuple(self._put_off.items()):
            if stream.notice_at_us > now_us:
                break
            del self._put_off[stream_id]
            stream.notice_is_due = True
            self._ready[stream_id] = stream
        if self._ready:
            self._notice_us = NOTICE_US
            self._send_answers()
        else:
            self._notice_us = min(2 * self._notice_us, NOTICE_US_MAX)
        if self._put_off and self._notice_timer is None:
            first = next(iter(self._put_off.values()))
            self._look_at_notices(max(first.notice_at_us - now_us, self._notice_us))
