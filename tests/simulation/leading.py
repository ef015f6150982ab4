"""The leader's driver: publishers through the shipped ingest, followers' fetches, the lease.

A delivery is taken, and an answer given, only while the session lease holds: without it the node
is as good as unsubscribed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    JetstreamError,
    NotEnoughReplicasAfterAppendError,
    NotLeaderError,
    StorageError,
    StorageFullError,
    UnknownEpochError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.acks import AckPolicy
from jetstream_server.ingest.delivery import Delivery
from jetstream_server.ingest.stand_by import StandBy
from jetstream_server.ingest.stream import Bounds, StreamIngest
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.messages import Answer, FetchRequest, Records
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas
from tests.simulation.disk import Killed

if TYPE_CHECKING:
    from tests.simulation.process import Process

WAIT_US = 400_000
WALL_CLOCK_US = 1_000_000
"""When the simulation begins."""
FETCH_BYTES = 1_500
"""A few batches: followers that are behind need several rounds."""
_ACK = re.compile(rb"PUB _INBOX\.(\d+) \d+\r\n(\{.*?\})\r\n")
POLICY = AckPolicy(("_INBOX.>",))
REFUSALS = (NotLeaderError, FencedEpochError, UnknownEpochError, InvalidRequestError)


class Leading:
    """What a process does while it leads, and while it thinks so."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._ingest: StreamIngest | None = None
        self._sid = 0
        self._parked: dict[int, tuple[FetchRequest, int, int]] = {}
        """By follower: its request, the high watermark it knows, and until when it waits."""

    # The role.

    def begin(self) -> None:
        process = self._process
        if process.failed:
            return
        self._ingest = StreamIngest(
            _replica(process),
            cast(Replicas, self),
            POLICY,
            Bounds(pending_acks_max=1_000, uncommitted_bytes_max=1 << 20),
            self._say,
        )
        handing_over = process.handing_over
        stand_by = handing_over.take_stand_by()
        if stand_by is not None and self.speaks() and self._adopt(self._ingest, stand_by):
            self._sid = handing_over.sid
        else:
            self._sid = process.next_sid()

    def _adopt(self, ingest: StreamIngest, stand_by: StandBy) -> bool:
        """As ingest.py does: what came since the old leader listened no more is stored first."""
        checker = self._process.cluster.checker
        checker.acts(self._process)
        replies = [reply for kept in stand_by._kept or () for reply in kept.replies if reply]
        replica = _replica(self._process)
        is_stored = stand_by.store(ingest, replica.stream.leader_epoch, replica.log.log_end_offset)
        for reply in replies:
            checker.stored_by_stand_by(self._process, int(reply.rpartition(b".")[2]))
        self._world.count("kept for the leader" if is_stored else "kept in vain")
        if self._process.alive:
            self._process.request_flush()
        return is_stored

    def end(self) -> None:
        """Not the leader any more: whatever is pending is dropped in silence."""
        if self._ingest is not None:
            self._ingest.drop()
            self._ingest = None
        self._parked.clear()
        self._process.handing_over.is_quiet = False

    def fell_below_minimum(self) -> None:
        ingest = self._ingest
        if ingest is not None and ingest.pending_count:
            self._world.count("indeterminate nack")
            if self.speaks():
                ingest.fail(NotEnoughReplicasAfterAppendError("the ISR fell below its minimum"))

    def failed(self, error: StorageError) -> None:
        """The disk refused: what is not committed yet may never be, here."""
        ingest, self._ingest = self._ingest, None
        if ingest is not None:
            if self.speaks():
                ingest.fail(UnknownOutcomeError(f"stored, perhaps not durably: {error.message}"))
            ingest.drop()

    def metadata_changed(self) -> None:
        self._process.propose_changes()
        self._wake()

    # Publishers.

    @property
    def sid(self) -> int:
        """The subscription on which NATS delivers to this process now; 0: on none."""
        process, handing_over = self._process, self._process.handing_over
        if process.stopping:
            return 0
        if self._ingest is None:
            return handing_over.sid if handing_over.stands_by else 0
        hears = not handing_over.is_quiet and process.machine.hears_nats and self.speaks()
        return self._sid if hears else 0

    @property
    def pending_count(self) -> int:
        """Batches whose acknowledgements wait for the commit."""
        return 0 if self._ingest is None else self._ingest.pending_count

    def on_publish(self, sid: int, ids: list[int], asking: list[bool]) -> None:
        """Messages that nobody repeats, as they were read from the socket."""
        replies = [
            b"_INBOX.%d" % number if asks else b"" for number, asks in zip(ids, asking, strict=True)
        ]
        cluster = self._process.cluster
        values, blocks = cluster.values(ids), cluster.header_blocks(ids)
        self.on_delivery(Delivery(sid, [b"orders"] * len(ids), replies, values, blocks))

    def on_delivery(self, delivery: Delivery) -> None:
        process, ingest = self._process, self._ingest
        if process.stopping:
            return
        if not self.speaks():
            self._world.count("lease lapsed on delivery")
            process.handing_over.silence()
            return
        if ingest is None:
            stand_by = process.handing_over.stand_by_of
            if stand_by is not None and delivery.sid == process.handing_over.sid:
                stand_by.deliver(delivery)
            return
        if delivery.sid != self._sid:
            self._world.count("on the way when unsubscribed")
            return
        process.cluster.checker.acts(process)
        ingest.deliver(delivery)
        if process.alive:
            process.request_flush()
            self._wake()

    def now_us(self) -> int:
        """What ingest calls of `Replicas`."""
        return self._world.now

    def append(self, replica: Replica, batch: EncodedBatch) -> int:
        """What ingest calls of `Replicas`."""
        process, end_offset = self._process, replica.log.log_end_offset
        try:
            base_offset = replica.append(batch, WALL_CLOCK_US + self._world.now, self._world.now)
        except StorageFullError:
            self._world.count("leader's disk full")
            raise
        except StorageError as error:
            process.fail(error)
            raise
        except Killed:
            if replica.log.log_end_offset > end_offset:  # It died while it noted the new end.
                process.cluster.checker.leader_appended(process, replica, end_offset, batch)
            raise
        process.cluster.checker.leader_appended(process, replica, base_offset, batch)
        if self._world.trace is not None:
            process.note(f"appends [{base_offset}, {replica.log.log_end_offset})")
        if not replica.counts_flushed:
            replica.moved()
        return base_offset

    def committed(self) -> None:
        if self._ingest is not None:
            if self.speaks():
                self._ingest.committed()
            else:
                self._world.count("lease lapsed on commit")
        self._wake()

    def lease_renewed(self) -> None:
        if self._ingest is not None and self.speaks():
            self._ingest.committed()

    def speaks(self) -> bool:
        """Whether the session lease holds."""
        return self._process.lease.holds(self._world.now)

    def _say(self, protocol: bytes) -> bool:
        """Acks and nacks on their way to NATS."""
        if not self._process.alive:
            return False
        for match in _ACK.finditer(protocol):
            self._process.cluster.publishers.answered(
                self._process, int(match.group(1)), match.group(2)
            )
        return True

    def retain(self) -> None:
        """Retention: remove segments that are committed as a whole."""
        process = self._process
        replica = process.replica
        if replica is None or replica.leadership is None:
            return
        try:
            before = replica.log.log_start_offset
            if replica.log.delete_segments_before(replica.high_watermark) > before:
                self._world.count("retention")
        except StorageFullError:
            pass
        except StorageError as error:
            process.fail(error)

    # Followers.

    def on_fetch(self, follower: int, request: FetchRequest, known_high_watermark: int) -> None:
        process = self._process
        replica = process.replica
        if replica is None:
            return
        self._parked.pop(follower, None)
        try:
            answer = replica.fetch(request, self._world.now, FETCH_BYTES)
        except REFUSALS as error:
            self._refused(error)
            return
        process.propose_changes()
        if _is_worth_sending(answer, known_high_watermark):
            self._send(follower, answer)
        elif process.replica is not None and process.replica.leadership is not None:
            self._parked[follower] = (request, known_high_watermark, self._world.now + WAIT_US)

    def _refused(self, error: JetstreamError) -> None:
        self._world.count(f"fetch refused: {error.code}")

    def tick(self) -> None:
        for follower, (request, _, until) in list(self._parked.items()):
            if self._world.now >= until:
                self._answer_parked(follower, request, -1)

    def _wake(self) -> None:
        """Followers that wait hear of records and of a high watermark at once."""
        for follower, (request, known, _) in list(self._parked.items()):
            self._answer_parked(follower, request, known)

    def _answer_parked(self, follower: int, request: FetchRequest, known: int) -> None:
        try:
            answer = _replica(self._process).answer_again(request, FETCH_BYTES)
        except REFUSALS as error:
            self._parked.pop(follower, None)
            self._refused(error)
            return
        if _is_worth_sending(answer, known):
            self._parked.pop(follower, None)
            self._send(follower, answer)

    def _send(self, follower: int, answer: Answer) -> None:
        slice_ = answer.slice if isinstance(answer, Records) else None
        # Zero-copy: the bytes are read when the socket has room, not when they were chosen.
        cluster = self._process.cluster
        delay = cluster.faults.scenario.send_delay_us(self._process, follower, answer)
        is_late = self._world.chance(cluster.profile.late_sends) and not cluster.faults.healing
        if not delay and slice_ is not None and is_late:
            delay = self._world.between(500, 700_000)
        if delay:
            self._world.later(delay, self._process, self._send_bytes, follower, answer, slice_)
        else:
            self._send_bytes(follower, answer, slice_)

    def _send_bytes(self, follower: int, answer: Answer, slice_: LogSlice | None) -> None:
        process, data = self._process, b""
        if slice_ is not None:
            disk = process.machine.disk
            if not disk.exists(slice_.path):
                return
            if slice_.is_gone:
                # It was compacted since it was chosen: everything is answered anew.
                if process.replica is not None and process.replica.leadership is not None:
                    self._answer_parked(follower, answer.asked, -1)
                return
            data = disk.pread(slice_.path, slice_.position, slice_.length)
            if self._world.chance(0.01):
                data = self._damaged(data)
        process.cluster.network.send(process.node_id, follower, "on_answer", answer, data)

    def _damaged(self, data: bytes) -> bytes:
        at = self._world.between(0, len(data) - 1) if data else 0
        if self._world.chance(0.5):
            return data[:at]
        damaged = bytearray(data)
        damaged[at : at + 1] = bytes([damaged[at] ^ 0x10]) if data else b""
        return bytes(damaged)


def _replica(process: Process) -> Replica:
    assert process.replica is not None
    return process.replica


def _is_worth_sending(answer: Answer, known_high_watermark: int) -> bool:
    return (
        not isinstance(answer, Records)
        or answer.slice is not None
        or answer.standing.high_watermark > known_high_watermark
    )
