"""The decisions of a stream's leader: what is in sync, what is committed (docs/replication.md).

    fetch ──────────> refuse · diverging · out of range · serve, and record the position
    fetch, moved, update ──> the high watermark may rise
    propose ────────> a change of the ISR, when one is due; settle ──> its outcome

No I/O, no clock: the log is only read, and callers pass times (µs, monotonic).

Invariants.
* The high watermark never falls, never passes the position of any replica that may be in sync
  (`InSyncReplicas.maximal`), and does not move while the committed ISR is below its minimum.
* With flush `group` a position is the *flushed* offset, the leader's own included; otherwise it is
  the log end.
* **safety** A log that is offline has no position, the leader's own included.
* **safety** Observers are followed, and never counted: neither the high watermark nor the ISR
  depends on them.
* **safety** Records of earlier epochs are committed only once this epoch is noted on disk.
  Otherwise a power failure could leave no trace of it, and a log of an epoch in between, which
  lacks them, would be taken for the newest one (unclean_election.py).
* A member joins only from a position at or beyond both the high watermark and the start of this
  epoch: then it holds everything that any earlier leader committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from jetstream_protocol.errors import (
    FencedEpochError,
    InvalidRequestError,
    NotEnoughReplicasError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_protocol.types import MonotonicUs, NodeId
from jetstream_server.metadata.state.commands import ChangeIsr
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.messages import (
    INCOMPLETE,
    NO_RECORD,
    Diverging,
    FetchRequest,
    LeaderSnapshot,
    LogView,
    OutOfRange,
)
from jetstream_server.replication.core.pending_isr import InSyncReplicas, Outcome
from jetstream_server.replication.core.progress import (
    ANY_EPOCH,
    NO_POSITION,
    NOT_AHEAD,
    FollowerProgress,
)

REPLICA_LAG_MAX_US = 10_000_000
"""A follower that has not caught up for this long leaves the ISR. Longer than a slow disk or a
pause of its process, shorter than publishers wait for acknowledgements."""

SLEEP_US = 1_000_000
"""`tick` is called several times a second. A longer gap means that this process did not run, or
that nothing had to be checked (`is_settled`)."""

NO_INCARNATION = -1
"""The incarnation of a node that has not registered yet."""


class LeaderState:
    """One leadership of one stream, in one leader epoch.

    The log's epoch cache holds the epoch already.
    """

    __slots__ = (
        "_followers", "_in_sync", "_is_unnoted", "_lag_max_us", "_log", "_node_id", "_nodes",
        "_ticked_at_us",
        "epoch_start_offset", "high_watermark", "stream",
    )  # fmt: skip

    def __init__(
        self,
        *,
        stream: StreamMetadata,
        node_id: int,
        nodes: Mapping[NodeId, NodeMetadata],
        log: LogView,
        high_watermark: int,
        now_us: MonotonicUs,
        lag_max_us: int = REPLICA_LAG_MAX_US,
        notes_epoch: bool = False,
    ) -> None:
        """notes_epoch: the caller sees to it that `log.led_epoch` follows if `must_note_epoch`."""
        self.stream = stream
        self.high_watermark = high_watermark
        self.epoch_start_offset = log.log_end_offset
        is_known = self.knows_end or log.log_start_offset == log.log_end_offset
        is_due = notes_epoch and len(stream.replicas) > 1 and not log.offline_reason
        self._is_unnoted = is_due and not is_known
        self._node_id = NodeId(node_id)
        self._nodes = nodes
        self._log = log
        self._lag_max_us = lag_max_us
        self._ticked_at_us = now_us
        self._in_sync = InSyncReplicas(stream)
        self._followers: dict[NodeId, FollowerProgress] = {}
        self._track_followers()

    def limit_lag(self, lag_max_us: int) -> None:
        """From now on a follower that has not caught up for this long leaves the ISR."""
        self._lag_max_us = lag_max_us

    # State.

    @property
    def isr(self) -> tuple[NodeId, ...]:
        """The committed ISR, as applied here."""
        return self._in_sync.agreed

    @property
    def can_commit(self) -> bool:
        """Whether the committed ISR has reached its minimum."""
        return len(self._in_sync.agreed) >= self.stream.config.min_insync_replicas

    @property
    def counts_flushed(self) -> bool:
        return self.stream.config.flush == "group"

    @property
    def snapshot(self) -> LeaderSnapshot:
        log, stream = self._log, self.stream
        gone = log.tombstones_gone_below if stream.was_compacted else 0
        return LeaderSnapshot(self.high_watermark, log.log_start_offset, stream.stream_epoch, gone)

    def position_of(self, follower: NodeId) -> int:
        """The position of a follower, if it counts; else NO_POSITION. For `describe`."""
        progress = self._followers.get(follower)
        return NO_POSITION if progress is None else progress.position

    def lag_of(self, follower: NodeId, now_us: MonotonicUs) -> tuple[int, int]:
        """How far a follower is behind: records, and µs. For metrics."""
        progress, log = self._followers[follower], self._log
        records = log.log_end_offset - max(progress.position, log.log_start_offset)
        return (records, now_us - progress.caught_up_at_us) if records > 0 else (0, 0)

    @property
    def copied_below(self) -> int:
        """The offset below which every follower that is heard has this log. Compaction waits with
        the tombstones after it: without them a copy that is under way would have to begin anew
        (`FollowerState.decide`), and a slow one would never end."""
        log = self._log
        under_way = (
            progress.position
            for progress in self._followers.values()
            if not progress.is_silent and progress.position > log.log_start_offset
        )
        return min(under_way, default=log.log_end_offset)

    def damaged_of(self, follower: NodeId) -> tuple[int, int] | None:
        """The first offsets that the follower's disk has lost, as it reports. For `describe`."""
        progress = self._followers.get(follower)
        return None if progress is None else progress.damaged

    def check_can_append(self) -> None:
        """Raise NotEnoughReplicasError while ack level `all` cannot be promised."""
        if not self.can_commit:
            raise NotEnoughReplicasError(
                f"too few replicas are in sync: {len(self._in_sync.agreed)}, and "
                f"{self.stream.config.min_insync_replicas} are needed; "
                "wait for a replica to catch up"
            )

    @property
    def knows_end(self) -> bool:
        """Whether it is known here what earlier leaders committed (KIP-207). The high watermark may
        be below that until then: to say that it is the end would be wrong."""
        return self.high_watermark >= self.epoch_start_offset

    @property
    def seeks_end(self) -> bool:
        """Whether it is about to find that out. With too few replicas in sync it does not soon."""
        return not self.knows_end and self.can_commit

    @property
    def must_note_epoch(self) -> bool:
        """Whether this epoch must be noted on disk before anything is committed."""
        if self._is_unnoted:
            self._is_unnoted = self._log.led_epoch.leader_epoch != self.stream.leader_epoch
        return self._is_unnoted

    @property
    def is_followed(self) -> bool:
        """Whether every member of the ISR has cut off what contradicts this log. Until then one of
        them may be elected, and commit records that earlier leaders sent it: then this node, which
        may not have heard of it, must not tell their readers that they do not exist."""
        return self._held_by_all(self.epoch_start_offset) == self.epoch_start_offset

    def check_end(self) -> None:
        """Raise UnavailableError until the end of what is committed is known."""
        if not self.knows_end:
            needed = self.stream.config.min_insync_replicas
            raise UnavailableError(
                f"node {self._node_id} has just begun to lead stream {self.stream.name!r} and does "
                f"not know yet where its committed records end: {needed} replicas must be in sync "
                f"(now {len(self._in_sync.agreed)}) and say what they hold; try again"
            )

    # Followers.

    def fetch(self, request: FetchRequest, now_us: MonotonicUs) -> Diverging | OutOfRange | None:
        """Handle a follower's request. Returns None if its log agrees with this one. Its position
        then counts, unless the follower has left the ISR without knowing, or its copy is not
        complete.

        Raises FencedEpochError, UnknownEpochError, InvalidRequestError: nothing is recorded then.
        """
        progress = self.check(request)
        progress.damaged, progress.cannot_append = request.damaged, request.cannot_append
        problem = self.compare(request)
        if problem is None and request.stream_epoch >= progress.counts_from:
            if request.incarnation != progress.incarnation:
                progress.renew(request.incarnation, now_us)
            counted = request.fetch_offset
            if self.counts_flushed:
                counted = min(counted, request.flushed_offset)
            is_ahead = request.stream_epoch > self.stream.stream_epoch
            reported_ahead = request.stream_epoch if is_ahead else NOT_AHEAD
            progress.fetched(counted, self._log.log_end_offset, now_us, reported_ahead)
            self._advance()
        elif (
            problem is None
            and request.stream_epoch == INCOMPLETE
            # If the follower is a member, this is an old request that arrived late.
            and request.follower not in self._in_sync.maximal
        ):
            progress.copied(request.incarnation, request.fetch_offset, now_us)
        return problem

    def compare(self, request: FetchRequest) -> Diverging | OutOfRange | None:
        """Compare a follower's position with this log (KIP-279). Changes nothing."""
        log = self._log
        if (
            request.last_epoch == log.epochs.latest_epoch
            and log.log_start_offset < request.fetch_offset <= log.log_end_offset
        ):
            return None  # The usual case: nothing below decides otherwise.
        if request.fetch_offset < log.log_start_offset:
            return OutOfRange(request, self.snapshot)
        if request.last_epoch == NO_RECORD:
            # An empty log agrees with any log, if its position lies within that log.
            beyond = request.fetch_offset > log.log_end_offset
            return OutOfRange(request, self.snapshot) if beyond else None
        if request.fetch_offset == log.log_start_offset:
            # Nothing of the follower's log is in this one. **safety** The follower may keep its
            # log only if it is known to end as this log did there: otherwise it could keep records
            # that were not committed.
            before = log.epochs.epoch_at(request.fetch_offset - 1)
            return None if request.last_epoch == before else OutOfRange(request, self.snapshot)
        if log.epochs.begin_at_or_after(request.last_epoch, request.fetch_offset):
            # Compaction has removed the first records after the log start, and this log is a copy
            # that never had them. **safety** The record before the position may have been of a
            # later epoch than the follower's.
            return OutOfRange(request, self.snapshot)
        epoch, end_offset = log.epochs.end_offset_for(request.last_epoch, log.log_end_offset)
        if epoch < request.last_epoch or end_offset < request.fetch_offset:
            return Diverging(request, self.snapshot, epoch, end_offset)
        return None

    def check(self, request: FetchRequest) -> FollowerProgress:
        """The follower that sent the request. Raises the errors of `fetch`."""
        leader_epoch = self.stream.leader_epoch
        if request.leader_epoch < leader_epoch:
            raise FencedEpochError(f"leader epoch {request.leader_epoch}; it is {leader_epoch}")
        if request.leader_epoch > leader_epoch:
            raise UnknownEpochError(
                f"leader epoch {request.leader_epoch} is not known here yet, only {leader_epoch}"
            )
        progress = self._followers.get(request.follower)
        if progress is None:
            raise InvalidRequestError(f"node {request.follower} holds no copy of this stream")
        known = max(progress.incarnation, self._incarnation_of(request.follower))
        if request.incarnation < known:
            raise FencedEpochError(
                f"node {request.follower} is in incarnation {known}, not {request.incarnation}"
            )
        return progress

    # The leader's own log, and the metadata.

    def moved(self) -> bool:
        """Note that the own log grew or was flushed. Returns whether the high watermark rose."""
        return self._advance()

    def update(self, stream: StreamMetadata, nodes: Mapping[NodeId, NodeMetadata]) -> bool:
        """Apply newer metadata of this leadership. Returns whether the high watermark rose."""
        assert stream.leader_epoch == self.stream.leader_epoch, "that is another leadership"
        has_changed = stream.stream_epoch != self.stream.stream_epoch
        self.stream = stream
        self._nodes = nodes
        self._track_followers()
        for follower, progress in self._followers.items():
            if has_changed and follower not in stream.isr:
                progress.left(stream.stream_epoch)
            progress.learnt(stream.stream_epoch)
        self._in_sync.update(stream)
        return self._advance()

    def _track_followers(self) -> None:
        """Track all other copies as followers. A reassignment changes them."""
        stream, known = self.stream, self._followers
        self._followers = {
            replica: known.get(replica)
            or FollowerProgress(
                self._incarnation_of(replica),
                self._ticked_at_us,
                counts_from=ANY_EPOCH if replica in stream.isr else stream.stream_epoch,
            )
            for replica in stream.copies
            if replica != self._node_id
        }

    def _advance(self) -> bool:
        log = self._log
        own = log.flushed_offset if self.counts_flushed else log.log_end_offset
        high_watermark = self._held_by_all(own)
        if high_watermark <= self.high_watermark:
            return False  # The usual case, with several replicas.
        if not self.can_commit or log.offline_reason:
            return False
        if self._is_unnoted and self.must_note_epoch:
            return False
        self.high_watermark = high_watermark
        return True

    def _held_by_all(self, offset: int) -> int:
        """How far, up to `offset`, the positions of the others that may be in sync reach."""
        for member in self._in_sync.maximal:
            if member != self._node_id:
                position = self._followers[member].position
                if position < offset:
                    offset = position
        return offset

    def hear(self, follower: NodeId, *, is_silent: bool) -> None:
        """Note that a follower's node has fallen silent or is heard again (liveness.py)."""
        if follower in self._followers:
            self._followers[follower].is_silent = is_silent

    # The ISR.

    def tick(self, now_us: MonotonicUs) -> None:
        """Let time pass: called several times a second. Ignores time in which this process
        paused."""
        slept_us = now_us - self._ticked_at_us
        for progress in self._followers.values():
            if slept_us > SLEEP_US:
                progress.excuse(slept_us, now_us)
            progress.ticked(self._log.log_end_offset, now_us)
        self._ticked_at_us = now_us

    def is_settled(self, now_us: MonotonicUs) -> bool:
        """Whether time alone changes nothing. Then `tick` and `propose` can wait for an append, a
        fetch of a replica that is out of sync, or new metadata."""
        if not self._in_sync.may_propose(now_us):
            return False
        log_end_offset, agreed = self._log.log_end_offset, self._in_sync.agreed
        for replica, progress in self._followers.items():
            if replica in agreed and progress.position < log_end_offset:
                return False
        return self._members_due(now_us) == agreed

    def _members_due(self, now_us: MonotonicUs) -> tuple[NodeId, ...]:
        """The replicas that should be in sync.

        A silent replica leaves as long as enough others remain to commit. Otherwise this leader is
        probably the one cut off, and its followers must be able to replace it.
        """
        isr = tuple(replica for replica in self.stream.replicas if self._belongs(replica, now_us))
        heard = tuple(replica for replica in isr if not self._is_silent(replica))
        return heard if len(heard) >= self.stream.config.min_insync_replicas else isr

    def _is_silent(self, replica: NodeId) -> bool:
        return replica != self._node_id and self._followers[replica].is_silent

    def propose(self, now_us: MonotonicUs) -> ChangeIsr | None:
        """The change of the ISR to propose, if one is due. `settle` must follow.

        If the same object is returned again, propose it again under its first command id.
        """
        retried = self._in_sync.retry(now_us)
        if retried is not None:
            return retried
        if not self._in_sync.may_propose(now_us):
            return None
        isr = self._members_due(now_us)
        if isr == self._in_sync.agreed:
            return None
        change = ChangeIsr(
            stream_id=self.stream.id,
            leader=self._node_id,
            leader_epoch=self.stream.leader_epoch,
            stream_epoch=self.stream.stream_epoch,
            isr=isr,
            incarnations=tuple(self._counted_incarnation_of(member) for member in isr),
        )
        self._in_sync.propose(change)
        return change

    def settle(self, change: ChangeIsr, outcome: Outcome, now_us: MonotonicUs) -> bool:
        """Take the outcome of a proposal. Returns whether the high watermark rose."""
        self._in_sync.settle(change, outcome, now_us)
        return self._advance()

    def _belongs(self, replica: NodeId, now_us: MonotonicUs) -> bool:
        if replica == self._node_id:
            return True
        progress = self._followers[replica]
        if replica in self._in_sync.agreed:
            return not self._lags(progress, now_us)
        return self._may_join(replica, progress) and not self._lags(progress, now_us)

    def _lags(self, progress: FollowerProgress, now_us: MonotonicUs) -> bool:
        return progress.lags(self._log.log_end_offset, now_us, self._lag_max_us)

    def _may_join(self, replica: NodeId, progress: FollowerProgress) -> bool:
        node = self._nodes.get(replica)
        return (
            node is not None
            and not node.fenced
            and not node.draining
            and node.incarnation == progress.incarnation
            and progress.counts
            and not progress.is_silent
            and progress.position >= max(self.high_watermark, self.epoch_start_offset)
        )

    def _counted_incarnation_of(self, member: NodeId) -> int:
        """The incarnation whose position counts; for an unknown member, the one in the metadata."""
        if member == self._node_id or member in self._in_sync.agreed:
            return self._incarnation_of(member)
        return self._followers[member].incarnation

    def _incarnation_of(self, node_id: NodeId) -> int:
        node = self._nodes.get(node_id)
        return node.incarnation if node is not None else NO_INCARNATION
