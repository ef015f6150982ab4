"""The lake: what is copied there, what that counts for, and what leaves the disks for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_server.lake.sweep import Sweeper
from jetstream_server.metadata.state import lake_decisions, stream_decisions
from jetstream_server.replication.core import lake_bounds
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import LeaderSnapshot
from jetstream_server.replication.drivers import retention, uploading
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.long_poll import LongPoll
from tests.simulation.laked import Outlives
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import LAKED

# What is copied, and what counts.


@mutant(kind=LAKED)
def uploads_beyond_the_high_watermark(patches: Patches) -> None:
    """What is flushed is copied, committed or not."""
    patches.set(uploading, "_bound", lambda replica: replica.log.flushed_offset)


@mutant(kind=LAKED)
def uploads_what_is_not_flushed(patches: Patches) -> None:
    """What is committed is copied, although it may be in memory alone."""
    patches.set(uploading, "_bound", lambda replica: replica.high_watermark)


@mutant(kind=LAKED)
def commits_without_comparing(patches: Patches) -> None:
    """A leader's table counts, whichever it was made from and wherever its records begin."""
    patches.set(lake_decisions, "_check_mark", lambda stream, command: None)


# What leaves a disk.


@mutant(kind=LAKED)
def removes_before_the_commit(patches: Patches) -> None:
    """Local limits count for what the lake does not hold yet."""
    look = retention._look

    def early(replica: Replica) -> Any:
        bound = min(replica.high_watermark, replica.log.flushed_offset)
        return replace(look(replica), lake_bound=bound)

    patches.set(retention, "_look", early)


# Below its end the lake decides.


@mutant(Outlives, kind=LAKED)
def trusts_a_shorter_log(patches: Patches) -> None:
    """A leader whose log ends before the lake does goes on there, and gives offsets again."""
    patches.set(lake_bounds, "begin_after_lake", lambda stream, log: False)


# Where a stream begins.


@mutant(kind=LAKED)
def tells_followers_the_lake_s_start(patches: Patches) -> None:
    """A new copy is to begin where the stream does, and its leader has nothing there."""
    snapshot = LeaderState.snapshot

    def of_the_stream(self: LeaderState) -> LeaderSnapshot:
        start = lake_bounds.start_offset(self.stream, self._log)  # type: ignore[arg-type]
        return replace(snapshot.fget(self), log_start_offset=start)  # type: ignore[attr-defined]

    patches.set(LeaderState, "snapshot", property(of_the_stream))


@mutant(kind=LAKED)
def tells_readers_the_log_s_start(patches: Patches) -> None:
    """What has left the disk is out of range."""
    patches.set(lake_bounds, "check_in_log", lambda stream, log, node_id, offset: None)
    patches.set(lake_bounds, "start_offset", lambda stream, log: log.log_start_offset)
    look = LongPoll.look

    def in_the_log(self: LongPoll, replica: Replica, position: Any) -> Any:
        lake, self.lake = self.lake, None
        try:
            return look(self, replica, position)
        finally:
            self.lake = lake

    patches.set(LongPoll, "look", in_the_log)


@mutant(kind=LAKED)
def forgets_purges_in_the_lake(patches: Patches) -> None:
    """What was purged is gone from the logs only."""
    patches.set(stream_decisions, "purged", lambda stream, offset: stream.lake)


# What lies in the store.


@mutant(kind=LAKED)
def sweeps_fresh_objects(patches: Patches) -> None:
    """What no table names goes at once, also if it is about to be committed."""
    begin = Sweeper.__init__

    def without_grace(self: Sweeper, table: Any, store: Any, grace_us: int) -> None:
        begin(self, table, store, 0)

    patches.set(Sweeper, "__init__", without_grace)
