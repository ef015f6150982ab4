"""The leader's end of one follower node's connection: positions in, records out as they come.

The follower names its streams once and then only those that changed, so the cost follows the
active streams. An answer is sent when there is something to say: records, a risen high watermark,
a divergence, an error; and every KEEP_ALIVE_SECONDS at the latest. Per stream one answer with
records is under way at a time: the next position acknowledges it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.frame_socket import FrameSocket
from jetstream_server.replication.messages import Answer, FetchRequest, Records, Standing
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from jetstream_server.replication.wire import answer_to_proto, error_to_proto, position_from_proto

NOTICE_SECONDS = 0.001
"""How long a risen high watermark waits for records to take it along. Under load they do: that
halves the frames of a stream that is written one message at a time."""
KEEP_ALIVE_SECONDS = 0.4
KEEP_ALIVE_TICKS = 2
"""Several times within the silence after which a follower reports its leader."""
FRAME_BYTES = 4 * 1024 * 1024
"""About how much one frame carries, so that a stream that catches up does not hold others up."""
PARTS_MAX = 256
REFUSED_MAX = 4 * PARTS_MAX
"""Refusals that wait to be sent; with more, nothing is read: a follower that only talks must not
fill our memory."""


class ReplicaSession:
    """`await run()` until the follower leaves or misbehaves."""

    def __init__(
        self,
        socket: FrameSocket,
        replicas: Replicas,
        *,
        follower: int,
        incarnation: int,
        now_us: Callable[[], int],
    ) -> None:
        self._socket = socket
        self._replicas = replicas
        self._follower = follower
        self._incarnation = incarnation
        self._now_us = now_us
        self._asked: dict[int, FetchRequest] = {}
        self._answered: dict[int, FetchRequest] = {}
        self._told: dict[int, Standing] = {}
        self._answers: dict[int, Answer] = {}
        self._refused: list[pb.Records.Part] = []
        self._ready: dict[int, None] = {}
        self._notices: dict[int, None] = {}
        self._due_notices: dict[int, None] = {}
        self._notice_timer: asyncio.TimerHandle | None = None
        self._wake = asyncio.Event()
        self._silent_ticks = 0
        self._written = asyncio.Event()

    async def run(self) -> None:
        self._replicas.progress.add(self)
        keeping_alive = asyncio.get_running_loop().create_task(self._keep_alive())
        writing = asyncio.get_running_loop().create_task(self._write())
        # Neither end goes on without the other.
        writing.add_done_callback(self._writer_ended)
        try:
            while True:
                _, positions = await self._socket.read_frame(Kind.POSITIONS, pb.Positions)
                self._take(positions)
                while len(self._refused) > REFUSED_MAX and not writing.done():
                    self._written.clear()
                    await self._written.wait()
        finally:
            self._replicas.progress.discard(self)
            if self._notice_timer is not None:
                self._notice_timer.cancel()
            keeping_alive.cancel()
            writing.cancel()
            await asyncio.gather(writing, keeping_alive, return_exceptions=True)

    def _writer_ended(self, _: asyncio.Task[None]) -> None:
        self._socket.shut_down()
        self._written.set()

    def progressed(self, replica: Replica) -> None:
        """There is more to say about a stream, perhaps."""
        stream_id = replica.stream.id
        if stream_id in self._asked:
            self._ready[stream_id] = None
            self._wake.set()

    def _take(self, positions: pb.Positions) -> None:
        now_us = self._now_us()
        for stream_id in positions.dropped:
            self._forget(stream_id)
        for position in positions.positions:
            request = position_from_proto(position, self._follower, self._incarnation)
            self._note(request, now_us)
        self._wake.set()

    def _note(self, request: FetchRequest, now_us: int) -> None:
        """Count the position now; the answer follows when its turn comes."""
        stream_id = request.stream_id
        try:
            answer = self._replicas.fetch(request, now_us)
        except JetstreamError as error:
            self._forget(stream_id)
            self._refused.append(error_to_proto(request, error))
            return
        self._asked[stream_id] = request
        self._answers[stream_id] = answer
        self._ready[stream_id] = None

    def _forget(self, stream_id: int) -> None:
        for table in (self._asked, self._answered, self._told, self._answers):
            table.pop(stream_id, None)
        for waiting in (self._ready, self._notices, self._due_notices):
            waiting.pop(stream_id, None)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._silent_ticks >= KEEP_ALIVE_TICKS:
                self._silent_ticks = 0
                await self._socket.send(Kind.RECORDS, 0, pb.Records())
            while self._ready or self._refused:
                records, slices = self._frame()
                if records.parts:
                    self._silent_ticks = 0
                    await self._send(records, slices)
                self._written.set()

    async def _send(self, records: pb.Records, slices: list[LogSlice]) -> None:
        """Raises StorageError, unless a file was removed or compacted since its slice was chosen:
        then nothing was sent, and everything is answered anew."""
        try:
            await self._socket.send_slices(Kind.RECORDS, 0, records, slices)
        except StorageError:
            if not any(slice_.is_gone for slice_ in slices):
                raise
            for part in records.parts:
                if part.HasField("error"):
                    self._refused.append(part)
                elif part.stream_id in self._asked:
                    self._answered.pop(part.stream_id, None)
                    self._told.pop(part.stream_id, None)
                    self._ready[part.stream_id] = None

    async def _keep_alive(self) -> None:
        """Have a sign of life sent where nothing else is; cheaper than a timer for each frame."""
        while True:
            await asyncio.sleep(KEEP_ALIVE_SECONDS / KEEP_ALIVE_TICKS)
            self._silent_ticks += 1
            if self._silent_ticks >= KEEP_ALIVE_TICKS:
                self._wake.set()

    def _frame(self) -> tuple[pb.Records, list[LogSlice]]:
        """Answers for some of the streams that are ready."""
        refused, self._refused = self._refused[:PARTS_MAX], self._refused[PARTS_MAX:]
        records = pb.Records(parts=refused)
        slices: list[LogSlice] = []
        room = FRAME_BYTES
        while self._ready and room > 0 and len(records.parts) < PARTS_MAX:
            stream_id = next(iter(self._ready))
            del self._ready[stream_id]
            request = self._asked[stream_id]
            try:
                answer = self._answer(stream_id, request)
            except JetstreamError as error:
                self._forget(stream_id)
                records.parts.append(error_to_proto(request, error))
                continue
            if not self._is_news(stream_id, request, answer) or self._may_wait(stream_id, answer):
                continue
            self._told[stream_id] = answer.standing
            records.parts.append(answer_to_proto(answer))
            if not isinstance(answer, Records):
                self._answered[stream_id] = request
            elif answer.slice is not None:
                self._answered[stream_id] = request
                slices.append(answer.slice)
                room -= answer.slice.length
        return records, slices

    def _may_wait(self, stream_id: int, answer: Answer) -> bool:
        """Whether an answer without records is put off, for records to take its news along."""
        is_due = stream_id in self._due_notices
        self._due_notices.pop(stream_id, None)
        self._notices.pop(stream_id, None)
        if is_due or not isinstance(answer, Records) or answer.slice is not None:
            return False
        self._notices[stream_id] = None
        if self._notice_timer is None:
            loop = asyncio.get_running_loop()
            self._notice_timer = loop.call_later(NOTICE_SECONDS, self._send_notices)
        return True

    def _send_notices(self) -> None:
        self._notice_timer = None
        self._due_notices |= self._notices
        self._ready |= self._notices
        self._notices.clear()
        self._wake.set()

    def _answer(self, stream_id: int, request: FetchRequest) -> Answer:
        """What was decided when the position came, unless records may have come since."""
        answer = self._answers.pop(stream_id, None)
        if answer is None or (isinstance(answer, Records) and answer.slice is None):
            answer = self._replicas.led(stream_id).answer_again(request)
        return answer

    def _is_news(self, stream_id: int, request: FetchRequest, answer: Answer) -> bool:
        """Whether the follower does not know it yet, nor will when it has read what is sent."""
        answered = self._answered.get(stream_id)
        if answered is not None and answered.asks_the_same(request):
            return False
        if isinstance(answer, Records) and answer.slice is None:
            return answer.standing != self._told.get(stream_id)
        return True
