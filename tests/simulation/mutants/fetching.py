"""Fetching, truncation, and the high watermark."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_server.log import validator as incoming
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.replication.core.follower import Append, FollowerState, Step
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import (
    Answer,
    Diverging,
    FetchRequest,
    OutOfRange,
    last_epoch_of,
)
from jetstream_server.replication.core.progress import FollowerProgress
from jetstream_server.replication.drivers.fetcher import Fetcher
from jetstream_server.replication.replica import Replica
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.scenarios import (
    FailingDisks,
    LapsedSessions,
    LateRegistrations,
    Overwritten,
    SlowLeaders,
    Swaps,
)

# Fetching and truncation.


@mutant()
def truncates_to_the_high_watermark(patches: Patches) -> None:
    """A follower cuts its log to its high watermark instead of asking where the logs part."""
    follow = Replica._follow

    def cut(self: Replica) -> None:
        if not self.log.offline_reason:
            self.log.truncate(max(self.high_watermark, self.log.log_start_offset))
        follow(self)

    patches.set(Replica, "_follow", cut)


@mutant()
def compares_offsets_only(patches: Patches) -> None:
    """The leader asks whether the follower's log is longer, not whether it is the same."""

    def compare(self: LeaderState, request: FetchRequest) -> Diverging | OutOfRange | None:
        log = self._log
        if request.fetch_offset < log.log_start_offset:
            return OutOfRange(request, self.snapshot)
        if request.fetch_offset > log.log_end_offset:
            return Diverging(request, self.snapshot, request.last_epoch, log.log_end_offset)
        return None

    patches.set(LeaderState, "compare", compare)


@mutant(Swaps)
def compares_once_only(patches: Patches) -> None:
    """After one diverging round the logs are taken to agree."""
    compare = LeaderState.compare
    seen: dict[tuple[int, int, int], None] = {}

    def once(self: LeaderState, request: FetchRequest) -> Diverging | OutOfRange | None:
        key = id(self), request.follower, request.incarnation
        problem = compare(self, request)
        if isinstance(problem, Diverging):
            within = request.fetch_offset <= self._log.log_end_offset
            if key in seen and within:
                return None
            seen[key] = None
        return problem

    patches.set(LeaderState, "compare", once)


@mutant()
def leads_without_an_epoch_entry(patches: Patches) -> None:
    """A leadership does not begin in the leader's epoch cache."""
    patches.set(CommitLog, "start_epoch", lambda self, leader_epoch: None)


@mutant(Swaps)
def serves_older_leaderships(patches: Patches) -> None:
    """A fetch under an older leader epoch is answered and counted."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        if request.leader_epoch < self.stream.leader_epoch:
            request = replace(request, leader_epoch=self.stream.leader_epoch)
        return check(self, request)

    patches.set(LeaderState, "check", lenient)


@mutant(LapsedSessions)
def serves_newer_leaderships(patches: Patches) -> None:
    """A deposed leader answers those who follow its successor, as if they followed it."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        if request.leader_epoch > self.stream.leader_epoch:
            request = replace(request, leader_epoch=self.stream.leader_epoch)
        return check(self, request)

    fetchers: dict[Replica, dict[Fetcher, None]] = {}
    follow, touch = Fetcher.follow, Fetcher.touch

    def remember(self: Fetcher, replica: Replica) -> None:
        fetchers.setdefault(replica, {})[self] = None
        follow(self, replica)

    def tell_all(self: Fetcher, stream_id: int) -> None:
        """Whoever led before is told as well."""
        replica = self._following.get(stream_id)
        for each in fetchers.get(replica, (self,)) if replica is not None else ():
            touch(each, stream_id)

    patches.set(Fetcher, "follow", remember)
    patches.set(Fetcher, "touch", tell_all)
    patches.set(Fetcher, "drop", lambda self, stream_id: None)
    patches.set(LeaderState, "check", lenient)


@mutant()
def counts_older_incarnations(patches: Patches) -> None:
    """What an earlier run of a follower said still counts, also once it has left the ISR."""
    check = LeaderState.check

    def lenient(self: LeaderState, request: FetchRequest) -> FollowerProgress:
        progress = self._followers.get(request.follower)
        if progress is not None and request.leader_epoch == self.stream.leader_epoch:
            return progress
        return check(self, request)

    def keep(self: FollowerProgress, incarnation: int, now_us: int) -> None:
        self.incarnation = incarnation

    patches.set(LeaderState, "check", lenient)
    renew = FollowerProgress.renew

    def renew_once(self: FollowerProgress, incarnation: int, now_us: int) -> None:
        if hasattr(self, "position"):
            keep(self, incarnation, now_us)
        else:
            renew(self, incarnation, now_us)

    patches.set(FollowerProgress, "renew", renew_once)
    patches.set(FollowerProgress, "left", lambda self, stream_epoch: None)


@mutant(LateRegistrations)
def acts_on_stale_answers(patches: Patches) -> None:
    """A follower does what an answer says although it has moved on since it asked."""

    def same_leadership(self: FetchRequest, other: FetchRequest) -> bool:
        return self.leader_epoch == other.leader_epoch

    patches.set(FetchRequest, "matches", same_leadership)


@mutant(Overwritten)
def appends_batches_of_any_epoch(patches: Patches) -> None:
    """A follower takes batches of epochs above the one it asked under."""
    append = CommitLog.append_replica

    def lenient(self: CommitLog, data: bytes, **rest: Any) -> None:
        append(self, data, **{**rest, "leader_epoch": None})

    patches.set(CommitLog, "append_replica", lenient)


@mutant()
def appends_without_checksums(patches: Patches) -> None:
    """A follower does not check the bytes of a batch."""
    patches.set(incoming, "check_body", lambda *arguments: None)


@mutant(Swaps)
def keeps_empty_epochs(patches: Patches) -> None:
    """A deposed leader keeps the epoch under which it appended nothing, and refuses older ones."""

    def follow(self: Replica) -> None:
        self.following = FollowerState(
            stream=self.stream,
            node_id=self.node_id,
            incarnation=self.incarnation,
            log=self.log,
            high_watermark=self.high_watermark,
            rebuild=self._rebuild,
        )

    patches.set(Replica, "_follow", follow)


@mutant(FailingDisks)
def acknowledges_a_log_it_will_drop(patches: Patches) -> None:
    """A follower whose log is to be rebuilt acknowledges what it holds."""
    position, decide = FollowerState.position, FollowerState.decide

    def claim(self: FollowerState) -> FetchRequest:
        log = self._log
        return replace(
            position(self),
            fetch_offset=log.log_end_offset,
            last_epoch=last_epoch_of(log),
            flushed_offset=log.flushed_offset,
        )

    def drop(self: FollowerState, answer: Answer) -> Step:
        if self._rebuild and answer.request.matches(self.position()):
            answer = OutOfRange(answer.request, answer.snapshot)
        return decide(self, answer)

    patches.set(FollowerState, "position", claim)
    patches.set(FollowerState, "decide", drop)


# The high watermark.


@mutant()
def commits_alone(patches: Patches) -> None:
    """The leader commits what it holds itself."""

    def advance(self: LeaderState) -> bool:
        log = self._log
        own = log.flushed_offset if self.counts_flushed else log.log_end_offset
        rose = self.can_commit and own > self.high_watermark
        self.high_watermark = max(self.high_watermark, own) if rose else self.high_watermark
        return rose

    patches.set(LeaderState, "_advance", advance)


@mutant()
def commits_below_the_minimum(patches: Patches) -> None:
    """The high watermark moves while the ISR is below its minimum."""
    patches.set(LeaderState, "can_commit", property(lambda self: True))


@mutant()
def counts_unflushed_positions(patches: Patches) -> None:
    """Under flush `group` the leader counts what followers only have in memory."""
    fetch = LeaderState.fetch

    def generous(self: LeaderState, request: FetchRequest, now_us: int) -> Any:
        return fetch(self, replace(request, flushed_offset=request.fetch_offset), now_us)

    patches.set(LeaderState, "fetch", generous)


@mutant(SlowLeaders)
def counts_its_own_unflushed_log(patches: Patches) -> None:
    """Under flush `group` the leader counts what it only has in memory itself."""

    def advance(self: LeaderState) -> bool:
        if not self.can_commit:
            return False
        committed = self._log.log_end_offset
        for member in self._in_sync.maximal:
            if member != self._node_id:
                committed = min(committed, self._followers[member].position)
        rose = committed > self.high_watermark
        self.high_watermark = max(self.high_watermark, committed)
        return rose

    patches.set(LeaderState, "_advance", advance)


@mutant()
def believes_the_leaders_high_watermark(patches: Patches) -> None:
    """A follower's high watermark passes its own log end."""
    settle = FollowerState.settle

    def beyond(self: FollowerState, answer: Answer, step: Step) -> bool:
        settle(self, answer, step)
        rose = answer.snapshot.high_watermark > self.high_watermark
        if isinstance(step, Append) and rose:
            self.high_watermark = answer.snapshot.high_watermark
        return rose

    patches.set(FollowerState, "settle", beyond)


@mutant(Swaps)
def takes_the_high_watermark_while_diverging(patches: Patches) -> None:
    """A follower takes the leader's high watermark although the logs are not aligned."""
    settle = FollowerState.settle

    def eager(self: FollowerState, answer: Answer, step: Step) -> bool:
        rose = settle(self, answer, step)
        reached = min(answer.snapshot.high_watermark, self._log.log_end_offset)
        if isinstance(answer, Diverging) and reached > self.high_watermark:
            self.high_watermark = reached
            return True
        return rose

    patches.set(FollowerState, "settle", eager)
