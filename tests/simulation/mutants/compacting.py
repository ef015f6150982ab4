"""Compaction: what may go, and when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.compaction.log_compaction import LogCompaction
from jetstream_server.log.compaction.rewrite_pass import Task
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.replication.core.follower import FollowerState
from jetstream_server.replication.drivers import compaction
from jetstream_server.replication.replica import Replica
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import COMPACTED
from tests.simulation.scenarios import Collapses, Returns


@mutant(kind=COMPACTED)
def compacts_beyond_the_high_watermark(patches: Patches) -> None:
    """What supersedes a record is not committed itself, and is truncated later."""

    def flushed_only(replica: Replica) -> Any:
        return replica.log.compaction.sources(replica.log.flushed_offset)

    patches.set(compaction, "_sources", flushed_only)


@mutant(kind=COMPACTED)
def removes_tombstones_without_grace(patches: Patches) -> None:
    """A tombstone goes with the first pass after the one that removed what it deletes."""

    def at_once(self: CompactionState, now_us: int, grace_us: int) -> int:
        return self.cleaned_to

    patches.set(CompactionState, "tombstones_below", at_once)


@mutant(kind=COMPACTED)
def counts_the_grace_time_from_the_last_pass(patches: Patches) -> None:
    """The grace time of all that a pass has seen counts from the first pass there ever was."""

    def since_the_first(self: CompactionState, now_us: int, grace_us: int) -> int:
        over = self.passes and self.passes[0][0] + grace_us <= now_us
        return max(end for _, end in self.passes) if over else 0

    patches.set(CompactionState, "tombstones_below", since_the_first)


@mutant(kind=COMPACTED)
def takes_all_for_mapped(patches: Patches) -> None:
    """A pass whose map of keys was full takes the whole log for clean: tombstones go later while
    older records of their keys stay."""
    finish = LogCompaction.finish

    def as_if_mapped(self: LogCompaction, task: Task, state: CompactionState) -> None:
        end = task.sources[-1].next_offset
        passes = (*state.passes[:-1], (state.passes[-1][0], end))
        finish(self, task, replace(state, cleaned_to=end, passes=passes))

    patches.set(LogCompaction, "finish", as_if_mapped)


@mutant(kind=COMPACTED)
def keeps_what_tombstones_deleted(patches: Patches) -> None:
    """A follower that was away longer than the grace time goes on where it stood."""
    patches.set(FollowerState, "_missed_tombstones", lambda self, standing: False)


@mutant(Returns, kind=COMPACTED)
def hides_which_tombstones_a_copy_lacks(patches: Patches) -> None:
    """A leader whose log is a copy says nothing of the tombstones that it never had."""
    own = property(lambda self: self.compaction.state.tombstones_gone_below)
    patches.set(CommitLog, "tombstones_gone_below", own)


@mutant(Collapses, kind=COMPACTED)
def forgets_which_gaps_are_committed(patches: Patches) -> None:
    """A leader whose high watermark is behind the gaps of its log brings nobody back in sync."""
    patches.set(Replica, "_know_gaps", lambda self: None)
