"""One led stream's way from NATS into the log, and its acks' way back.

    delivery ─> admit ─> encode ─> append ─> pending ─(high watermark rose)─> acks

Invariants.
* **safety** An ack of level `all` is written only for records below the high watermark of the same
  leadership; when the leadership ends its pending acks are dropped in silence.
* What waits is bounded, over all streams together (`Bounds`): beyond, messages that ask for an ack
  are refused with one, and messages that do not are still stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from jetstream_protocol import batch as batches
from jetstream_protocol.errors import (
    JetstreamError,
    MessageTooLargeError,
    PermissionDeniedError,
    StorageError,
    StorageFullError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.ingest.acks import AckFormat, AckPolicy
from jetstream_server.ingest.admission import Admitted, admit
from jetstream_server.ingest.parser import Delivery
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

Write = Callable[[bytes], bool]


@dataclass(slots=True)
class Bounds:
    """What may wait for its commit, over all streams of this node."""

    pending_acks_max: int
    uncommitted_bytes_max: int
    pending_acks: int = 0
    uncommitted_bytes: int = 0

    def reason(self, acks: int) -> str:
        """Why `acks` more may not wait; "" when they may."""
        if self.pending_acks + acks > self.pending_acks_max:
            return f"{self.pending_acks} acknowledgements are pending already"
        if self.uncommitted_bytes > self.uncommitted_bytes_max:
            return f"{self.uncommitted_bytes} bytes are not committed yet"
        return ""


class _Pending(NamedTuple):
    """One appended batch: who hears of it once the high watermark reaches `end_offset`."""

    end_offset: int
    base_offset: int
    replies: list[bytes]
    positions: Sequence[int]
    length: int


class StreamIngest:
    """Lives as long as one leadership of one stream on this node."""

    __slots__ = (
        "_acknowledges", "_bounds", "_format", "_pending", "_policy", "_replicas", "_write",
        "refusal", "replica", "sid",
    )  # fmt: skip

    def __init__(
        self,
        replica: Replica,
        replicas: Replicas,
        policy: AckPolicy,
        bounds: Bounds,
        write: Write,
    ) -> None:
        self.replica = replica
        self.sid = 0
        self.refusal: PermissionDeniedError | None = None
        """Why NATS does not let us subscribe, as far as it said so."""
        self._replicas = replicas
        self._policy = policy
        self._bounds = bounds
        self._write = write
        self._format = AckFormat(replica.stream.name)
        self._acknowledges = replica.stream.config.acks == "reply"
        self._pending: deque[_Pending] = deque()

    def deliver(self, delivery: Delivery) -> None:
        """Store one delivery and answer it now or when it commits; never raises for its content."""
        admitted = admit(delivery, self.replica.stream.name)
        for reply, error in admitted.refused:
            self._nack([reply], error)
        if not admitted.values:
            return
        error_or_none = self._why_not_ack(admitted)
        if error_or_none is not None:
            admitted = self._without_askers(admitted, error_or_none)
        if admitted.values:
            self._append(admitted)

    def _why_not_ack(self, admitted: Admitted) -> JetstreamError | None:
        """Why messages that ask for an ack cannot be taken now; None when they can."""
        asked = len(admitted.replies) - admitted.replies.count(b"")
        if not self._acknowledges or not asked:
            return None
        reason = self._bounds.reason(asked)
        if reason:
            return UnavailableError(f"overloaded, try again: {reason}")
        leadership = self.replica.leadership
        if leadership is not None:
            try:
                leadership.check_can_append()
            except JetstreamError as error:
                return error
        return None

    def _without_askers(self, admitted: Admitted, error: JetstreamError) -> Admitted:
        """Refuse the messages that ask for level `all`; what is left asks for nothing (of that)."""
        self._nack([reply for reply in admitted.replies if reply], error)
        early = {position for position, _ in admitted.early}
        left = Admitted([], [], [], None if admitted.header_blocks is None else [])
        for index, reply in enumerate(admitted.replies):
            if not reply:
                part = admitted.part(index, index + 1)
                if index in early:
                    left.early.append((len(left.values), part.early[0][1]))
                _extend(left, part)
        return left

    def _append(self, admitted: Admitted) -> None:
        encoded = batches.encode(
            admitted.values,
            admitted.subjects,
            keys=admitted.keys,
            header_blocks=admitted.header_blocks,
        )
        count = len(admitted.values)
        if encoded.length > batches.BATCH_BYTES_MAX or count > batches.RECORDS_MAX:
            self._append_in_halves(admitted)
            return
        try:
            base_offset = self._replicas.append(self.replica, encoded)
        except JetstreamError as error:
            self._nack([reply for reply in admitted.replies if reply], error)
            self._nack([reply for _, reply in admitted.early], error)
            return
        if self._acknowledges:
            self._remember(admitted, base_offset, encoded.length)

    def _append_in_halves(self, admitted: Admitted) -> None:
        count = len(admitted.values)
        if count == 1:
            error = MessageTooLargeError(
                f"a message with its headers must fit into {batches.BATCH_BYTES_MAX} bytes"
            )
            self._nack(admitted.replies, error)
            self._nack([reply for _, reply in admitted.early], error)
            return
        self._append(admitted.part(0, count // 2))
        self._append(admitted.part(count // 2, count))

    def _remember(self, admitted: Admitted, base_offset: int, length: int) -> None:
        """Answer level `leader` now, and level `all` once it is committed (perhaps it is)."""
        if admitted.early:
            early = self._policy.select([reply for _, reply in admitted.early])
            self._count_suppressed(early.refused)
            positions = [admitted.early[index][0] for index in early.positions]
            self._ack(early.replies, positions, base_offset)
        replies, positions_all, refused = self._policy.select(admitted.replies)
        self._count_suppressed(refused)
        end_offset = base_offset + len(admitted.values)
        pending = _Pending(end_offset, base_offset, replies, positions_all, length)
        self._pending.append(pending)
        self._bounds.pending_acks += len(replies)
        self._bounds.uncommitted_bytes += length
        self.committed()

    def committed(self) -> None:
        """Answer everything below the high watermark."""
        pending = self._pending
        high_watermark = self.replica.high_watermark
        while pending and pending[0].end_offset <= high_watermark:
            done = pending.popleft()
            self._forget(done)
            if done.replies:
                self._ack(done.replies, done.positions, done.base_offset)

    def _forget(self, pending: _Pending) -> None:
        self._bounds.pending_acks -= len(pending.replies)
        self._bounds.uncommitted_bytes -= pending.length

    def _ack(self, replies: Sequence[bytes], positions: Sequence[int], base_offset: int) -> None:
        if replies:
            self._write(self._format.acks(replies, positions, base_offset))
            self.replica.counters.acks_sent += len(replies)

    def _nack(self, replies: list[bytes], error: JetstreamError) -> None:
        if not self._acknowledges:
            return
        allowed, _, refused = self._policy.select(replies)
        self._count_suppressed(refused)
        if allowed:
            self._write(self._format.nacks(allowed, _for_publishers(error)))
            self.replica.counters.nacks_sent += len(allowed)

    def _count_suppressed(self, count: int) -> None:
        self.replica.counters.acks_suppressed += count

    @property
    def pending_count(self) -> int:
        """Batches that wait for their commit."""
        return len(self._pending)

    def fail(self, error: UnknownOutcomeError) -> None:
        """What waits is appended and perhaps never committed: say that nobody knows."""
        while self._pending:
            pending = self._pending.popleft()
            self._forget(pending)
            self._nack(pending.replies, error)

    def drop(self) -> None:
        """The leadership ended: say nothing, the successor may have acknowledged (design 6)."""
        while self._pending:
            self._forget(self._pending.popleft())


def _for_publishers(error: JetstreamError) -> JetstreamError:
    """Without the names of our files, which are nobody's business beyond NATS."""
    if isinstance(error, StorageFullError):
        return StorageFullError("the disk is full")
    if isinstance(error, StorageError):
        return StorageError("the stream's log takes no appends; its description says why")
    return error


def _extend(left: Admitted, part: Admitted) -> None:
    if part.keys is not None and left.keys is None:
        left.keys = [None] * len(left.values)
    if left.keys is not None:
        left.keys.extend(part.keys or [None])
    left.values.extend(part.values)
    left.subjects.extend(part.subjects)
    left.replies.extend(part.replies)
    if left.header_blocks is not None:
        left.header_blocks.extend(part.header_blocks or [b""])
