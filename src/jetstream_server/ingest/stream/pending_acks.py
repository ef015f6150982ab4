"""Answers the publishers of one led stream, at once or after the commit.

    ack, answer, nack ──> written at once, if the reply is allowed
    wait ──> pending, in the order of the log ──(committed)──> answered · failed · dropped

Invariants.
* **safety** A waiting batch is answered only once the high watermark has reached its end, and never
  if the leadership ends first.
* Nothing is written to a reply that the policy does not allow. Such replies are counted.
* Only batches with an answer to give wait. They are counted in `Bounds`, over all streams of the
  node, and each stream has a share that no other can use up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from jetstream_protocol.ack_cluster import mark_in
from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    StorageError,
    StorageFullError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy, Replies
from jetstream_server.ingest.stream.acks import AckFormat, Answer, Direct
from jetstream_server.ingest.stream.admission import Admitted
from jetstream_server.ingest.stream.unpacking import NODE_BYTES_PER_SECOND, Unpacking
from jetstream_server.replication.replica import Replica

Write = Callable[[bytes], bool]


RESERVED: Final = 16
"""One part in this many of each bound is kept for streams that have little waiting, in equal
shares. So a stream that cannot commit, or a hundred, leaves the others theirs."""


@dataclass(slots=True)
class Waiting:
    """What waits for its commit: acknowledgements, and bytes of the batches they are for."""

    pending_acks: int = 0
    uncommitted_bytes: int = 0


@dataclass(slots=True)
class Bounds:
    """Upper bounds on what waits for its commit, over all streams of this node. streams: how many
    it leads. unpacking: what they may unpack, all of them."""

    pending_acks_max: int
    uncommitted_bytes_max: int
    pending_acks: int = 0
    uncommitted_bytes: int = 0
    streams: int = 0
    unpacking: Unpacking = field(default_factory=lambda: Unpacking(NODE_BYTES_PER_SECOND))

    def reason(self, acks: int, length: int, own: Waiting) -> str:
        """Why `acks` more acknowledgements, for messages of `length` bytes, must not wait; "" when
        they may. own: what waits already for their stream."""
        acks_after = self.pending_acks + acks
        acks_kept = self.pending_acks_max // RESERVED
        if (
            acks_after <= self.pending_acks_max - acks_kept
            and 2 * self.uncommitted_bytes <= self.uncommitted_bytes_max
        ):
            return ""  # The usual case.
        bytes_kept = self.uncommitted_bytes_max // RESERVED
        if acks_after <= self.pending_acks_max and (
            own.pending_acks + acks <= acks_kept // self.streams
            and own.uncommitted_bytes + length <= bytes_kept // self.streams
        ):
            return ""
        if acks_after > self.pending_acks_max - acks_kept:
            return f"{self.pending_acks} acknowledgements are pending already"
        if self.uncommitted_bytes > self.uncommitted_bytes_max - bytes_kept:
            return f"{self.uncommitted_bytes} bytes are not committed yet"
        return ""


class PendingAck(NamedTuple):
    """One appended batch, answered once the high watermark reaches `end_offset`.

    answers: the answers with more than the offset of a record.
    """

    end_offset: int
    base_offset: int
    replies: Replies
    length: int
    answers: list[Answer]


class PendingAcks:
    """The pending acks of one leadership of one stream."""

    __slots__ = (
        "_bounds",
        "_cluster",
        "_counters",
        "_format",
        "_is_of_others",
        "_pending",
        "_policy",
        "_replica",
        "_write",
        "waiting",
    )

    def __init__(
        self,
        replica: Replica,
        policy: AckPolicy,
        bounds: Bounds,
        write: Write,
        cluster: str = "",
        is_of_others: Callable[[Replica, str], None] = lambda replica, mark: None,
    ) -> None:
        """cluster: the mark of this one. is_of_others: called when a publisher expects the answers
        of another one, and its mark."""
        self._format = AckFormat(replica.stream.name, cluster)
        self._cluster = cluster
        self._is_of_others = is_of_others
        self._replica = replica
        self._policy = policy
        self._bounds = bounds
        self.waiting = Waiting()
        bounds.streams += 1
        self._counters = replica.counters
        self._write = write
        self._pending: deque[PendingAck] = deque()

    def __len__(self) -> int:
        """The number of batches whose acknowledgements wait for their commit."""
        return len(self._pending)

    # At once.

    def select(self, asking: Delivery | Admitted) -> Replies:
        """The replies that may be answered; the others are not counted yet."""
        return asking.select(self._policy)

    def suppressed(self, replies: Replies) -> None:
        """Count the replies that may not be answered."""
        self._counters.acknowledged(0, replies.refused)

    def allowed_replies(self, asking: Delivery | Admitted) -> Replies:
        """The replies that may be answered; the others are counted."""
        replies = self.select(asking)
        self.suppressed(replies)
        return replies

    def may_answer(self, reply: bytes | Direct) -> bool:
        """Whether that reply may be answered: a producer on its own connection always may."""
        return isinstance(reply, Direct) or bool(self._allowed_of([reply]))

    def _allowed_of(self, replies: list[bytes]) -> Replies:
        allowed_replies = self._policy.select(replies)
        self.suppressed(allowed_replies)
        return allowed_replies

    def ack_early(self, early: Mapping[int, bytes], base_offset: int) -> None:
        """Acknowledge messages of level `leader`. early: their replies, by position."""
        self.ack(self._allowed_of(list(early.values())).at(list(early)), base_offset)

    def ack(self, replies: Replies, base_offset: int) -> None:
        """Acknowledge records. replies: only allowed ones."""
        if len(replies):
            self._send(self._format.acks(replies, base_offset))
            self._counters.acknowledged(len(replies))

    def answer(self, answer: Answer) -> None:
        """Send an answer, whose reply must be allowed."""
        reply, count = answer.reply, answer.record_count
        if isinstance(reply, Direct):
            reply.stored(answer.end_offset - count, count, answer.duplicate)
        else:
            self._send(self._format.answer(answer))
        self._counters.acknowledged(1)

    def refuse(
        self, reply: bytes | Direct, error: JetstreamError, correlation: bytes = b""
    ) -> None:
        """Send the reason why something was not stored, wherever the answer goes."""
        if isinstance(reply, Direct):
            reply.refuse(self._publishers_error(error))
            self._counters.refused(1, error.code)
        else:
            self.nack([reply], error, correlation)

    def nack(self, replies: list[bytes], error: JetstreamError, correlation: bytes = b"") -> None:
        allowed_replies = self._allowed_of(replies)
        if len(allowed_replies):
            nacks = self._format.nacks(
                allowed_replies.to_list(), self._publishers_error(error), correlation
            )
            self._send(nacks)
            self._counters.refused(len(allowed_replies), error.code)

    def nack_all(self, askers: Sequence[tuple[bytes, bytes]], error: JetstreamError) -> None:
        """Refuse messages. askers: reply and correlation id of each, b"" for none."""
        self.nack([reply for reply, correlation in askers if not correlation], error)
        for reply, correlation in askers:
            if correlation:
                self.nack([reply], error, correlation)

    def _publishers_error(self, error: JetstreamError) -> JetstreamError:
        """The error without the names of our files, which publishers must not see. Another replica
        will lead in place of one whose log has failed, if there is one: trying again helps then."""
        if isinstance(error, StorageFullError):
            return StorageFullError("the disk is full")
        if not isinstance(error, StorageError) or _is_theirs(error):
            return error
        stream = self._replica.stream
        if {*stream.isr, *stream.elr} - {self._replica.node_id}:
            return UnavailableError("the leader's log has failed; another replica will lead")
        return StorageError("the stream's log takes no appends; its description says why")

    def _send(self, acks: bytes) -> None:
        """Write answers. Looks at the first of them: publishers of another cluster are noticed
        sooner or later, and many answers cost no more than one."""
        mark = mark_in(acks[4 : acks.find(b" ", 4)])
        if mark and mark != self._cluster and self._cluster:
            self._is_of_others(self._replica, mark)
        self._write(acks)

    # After the commit.

    def wait(self, pending: PendingAck) -> None:
        """Add a batch after those that wait already, if somebody waits for it. `end_offset` never
        falls.

        What no publisher waits for does not count: it may be uncommitted for days, while too few
        replicas are in sync, and it would use up the bounds of all streams."""
        acks = len(pending.replies) + len(pending.answers)
        if acks:
            self._pending.append(pending)
            length, bounds, own = pending.length, self._bounds, self.waiting
            bounds.pending_acks += acks
            bounds.uncommitted_bytes += length
            own.pending_acks += acks
            own.uncommitted_bytes += length

    def committed(self, high_watermark: int) -> None:
        """Answer every batch below the high watermark."""
        pending = self._pending
        while pending and pending[0].end_offset <= high_watermark:
            done = pending.popleft()
            self._forget(done)
            self.give(done)

    def give(self, done: PendingAck) -> None:
        """Answer a batch that is committed. Those before it were answered."""
        self.ack(done.replies, done.base_offset)
        for answer in done.answers:
            self.answer(answer)

    def fail(self, error: UnknownOutcomeError) -> None:
        """Answer the waiting batches with an unknown outcome: they are appended but perhaps never
        committed."""
        while self._pending:
            pending = self._pending.popleft()
            self._forget(pending)
            self.nack(pending.replies.to_list(), error)
            for answer in pending.answers:
                self.refuse(answer.reply, error, answer.correlation)

    def drop(self) -> None:
        """Answer nothing on NATS, because the leadership ended: the new leader may have
        acknowledged already. A producer on its own connection hears nothing from there, so it is
        answered that the outcome is unknown. Call it once."""
        self._bounds.streams -= 1
        error = UnknownOutcomeError("the leader changed before the batch was committed")
        while self._pending:
            pending = self._pending.popleft()
            self._forget(pending)
            for answer in pending.answers:
                if isinstance(answer.reply, Direct):
                    self.refuse(answer.reply, error)

    def _forget(self, pending: PendingAck) -> None:
        acks = len(pending.replies) + len(pending.answers)
        length, bounds, own = pending.length, self._bounds, self.waiting
        bounds.pending_acks -= acks
        bounds.uncommitted_bytes -= length
        own.pending_acks -= acks
        own.uncommitted_bytes -= length


def _is_theirs(error: StorageError) -> bool:
    """Whether the publisher's own bytes are invalid, not a file of ours."""
    return isinstance(error, CorruptBatchError) and not error.file
