"""The lake: what is copied there, what that counts for, and what leaves the disks for it."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from dataclasses import replace
from typing import Any

from jetstream_protocol.errors import JetstreamError, UnavailableError, UnknownOutcomeError
from jetstream_server.lake import table
from jetstream_server.lake.reader import LakeReader
from jetstream_server.lake.sweep import Sweeper
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state import lake_decisions, stream_decisions
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core import follower, lake_bounds
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import LeaderSnapshot
from jetstream_server.replication.drivers import retention, uploading
from jetstream_server.replication.drivers.sweeping import Sweeping
from jetstream_server.replication.drivers.uploading import Uploading
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.long_poll import LongPoll
from tests.simulation.lake_store import SimulatedStore, Table
from tests.simulation.mutants.installing import Patches, mutant
from tests.simulation.runner import LAKED
from tests.simulation.scenarios.laking import (
    CommitsTooLate,
    Diverges,
    LateCommits,
    Outlives,
    SweepsAlone,
    Unheard,
)

UNKNOWN = (UnavailableError, UnknownOutcomeError)
"""What a proposal raises that may have an effect yet."""


def _store_of(uploading: Uploading) -> SimulatedStore:
    store: SimulatedStore = uploading._work.__self__._store  # type: ignore[attr-defined]
    return store


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


@mutant(CommitsTooLate, kind=LAKED)
def lets_older_epochs_commit(patches: Patches) -> None:
    """What a leader copied counts, although another one leads by now."""
    patches.set(lake_decisions, "check_leader_epoch", lambda stream, leader_epoch: None)


@mutant(LateCommits, kind=LAKED)
def adds_again_after_an_unknown_outcome(patches: Patches) -> None:
    """Who has not heard what came of a commit adds the same records to the table that counts by
    then, as a library that tries again does."""
    commit = Uploading._commit

    async def again(
        self: Uploading, replica: Replica, lake: Any, begin: int, end: int, last_epoch: int,
        location: str, start: int = 0,
    ) -> None:  # fmt: skip
        try:
            await commit(self, replica, lake, begin, end, last_epoch, location, start)
        except UNKNOWN:
            await asyncio.sleep(2)
            store, now = _store_of(self), replica.stream.lake
            if begin == end or not now.location or now.location not in store.objects:
                raise
            added = Table.decode(store.get(location)).objects[-1]
            objects = Table.decode(store.get(now.location)).objects
            both = Table((*objects, added), now.location, now.start)
            store.put(f"{location}.again", both.encode())
            await commit(
                self, replica, now, now.end, max(now.end, end), last_epoch, f"{location}.again"
            )

    patches.set(Uploading, "_commit", again)


@mutant(LateCommits, kind=LAKED)
def deletes_after_an_unknown_outcome(patches: Patches) -> None:
    """Who has not heard what came of a commit takes away what was to be committed."""
    commit = Uploading._commit

    async def tidy(self: Uploading, *arguments: Any) -> None:
        try:
            await commit(self, *arguments)
        except UNKNOWN:
            _store_of(self).delete(arguments[5])
            raise

    patches.set(Uploading, "_commit", tidy)


# What leaves a disk.


@mutant(kind=LAKED)
def removes_before_the_commit(patches: Patches) -> None:
    """Local limits count for what the lake does not hold yet."""
    look = retention._look

    def early(replica: Replica) -> Any:
        bound = min(replica.high_watermark, replica.log.flushed_offset)
        return replace(look(replica), lake_bound=bound)

    patches.set(retention, "_look", early)


@mutant(kind=LAKED)
def counts_unreferenced_objects(patches: Patches) -> None:
    """What was copied leaves the disk, committed or not."""
    commit, look = Uploading._commit, retention._look
    copied: dict[Replica, int] = {}

    async def noted(self: Uploading, replica: Replica, *arguments: Any) -> None:
        copied[replica] = arguments[2]
        await commit(self, replica, *arguments)

    def early(replica: Replica) -> Any:
        found = look(replica)
        bound = min(replica.high_watermark, replica.log.flushed_offset, copied.get(replica, 0))
        return replace(found, lake_bound=max(found.lake_bound, bound))

    patches.set(Uploading, "_commit", noted)
    patches.set(retention, "_look", early)


@mutant(Unheard, kind=LAKED)
def removes_by_the_leader_s_word(patches: Patches) -> None:
    """A follower begins where its leader's log does, although it has not heard that the lake
    reaches there."""
    patches.set(follower.FollowerState, "_is_beyond_lake", lambda self, step, snapshot: False)


@mutant(Unheard, kind=LAKED)
def asks_only_once_for_a_log_s_beginning(patches: Patches) -> None:
    """A follower that cannot begin there yet waits for its leader to say so again."""
    patches.set(follower, "Later", follower.Ignore)


# Below its end the lake decides.


@mutant(Outlives, kind=LAKED)
def trusts_a_shorter_log(patches: Patches) -> None:
    """A leader whose log ends before the lake does goes on there, and gives offsets again."""
    patches.set(lake_bounds, "begin_after_lake", lambda stream, log: False)


@mutant(Diverges, kind=LAKED)
def trusts_a_log_of_another_epoch(patches: Patches) -> None:
    """A leader whose log is long enough goes on, whatever it has before the lake's end."""
    begin = lake_bounds.begin_after_lake

    def by_length(stream: StreamMetadata, log: CommitLog) -> bool:
        return log.log_end_offset < stream.lake.end and begin(stream, log)

    patches.set(lake_bounds, "begin_after_lake", by_length)


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


@mutant(kind=LAKED)
def serves_the_whole_group_s_start(patches: Patches) -> None:
    """What was read of the lake is sent from its beginning, wherever the reader is."""
    find = LakeReader.find

    def from_the_start(self: LakeReader, stream_id: int, offset: int, bytes_max: int) -> Any:
        bases = self._bases.get(stream_id, [])
        at = bisect_right(bases, offset) - 1
        is_here = at >= 0 and find(self, stream_id, offset, bytes_max) is not None
        return find(self, stream_id, bases[at], bytes_max) if is_here else None

    patches.set(LakeReader, "find", from_the_start)


@mutant(kind=LAKED)
def reads_on_the_loop(patches: Patches) -> None:
    """Who has a reader wait looks for its records in the lake at once."""
    load = LakeReader.load

    def at_once(
        self: LakeReader, stream_id: int, location: str, offset: int, done: Any
    ) -> None:  # fmt: skip
        try:
            self._find(location, offset)
        except (OSError, JetstreamError) as error:
            self.failures += isinstance(error, OSError)
        load(self, stream_id, location, offset, done)

    patches.set(LakeReader, "load", at_once)


# What lies in the store.


@mutant(kind=LAKED)
def deletes_objects_first(patches: Patches) -> None:
    """What is to leave the table goes from the store at once, and then from the table."""
    commit = Uploading._commit

    async def at_once(self: Uploading, replica: Replica, lake: Any, *arguments: Any) -> None:
        store = _store_of(self)
        before, after = (
            Table.decode(store.get(each)).objects if each else ()
            for each in (lake.location, arguments[3])
        )
        for each in before:
            if each not in after:
                store.delete(each.name)
        await commit(self, replica, lake, *arguments)

    patches.set(Uploading, "_commit", at_once)


@mutant(SweepsAlone, kind=LAKED)
def sweeps_other_streams(patches: Patches) -> None:
    """What lies beside a stream's folder is taken for a part of it."""

    def listed(self: Sweeper) -> set[str]:
        return {each.name for each in self._store.list("")}

    patches.set(Sweeper, "listed", listed)


@mutant(SweepsAlone, kind=LAKED)
def sweeps_by_an_old_pointer(patches: Patches) -> None:
    """Who believes to lead sweeps by the table that it knows."""

    async def unconfirmed(self: Sweeping, replica: Replica) -> str:
        return replica.stream.lake.location

    patches.set(Sweeping, "_confirmed_location", unconfirmed)


@mutant(kind=LAKED)
def sweeps_fresh_objects(patches: Patches) -> None:
    """What no table names goes at once, also if it is about to be committed."""
    begin = Sweeper.__init__

    def without_grace(self: Sweeper, table: Any, store: Any, grace_us: int) -> None:
        begin(self, table, store, 0)

    patches.set(Sweeper, "__init__", without_grace)


# What max_bytes keeps.


@mutant(kind=LAKED)
def counts_what_is_to_leave(patches: Patches) -> None:
    """An object leaves if the table had `max_bytes` with it, and not without it."""
    count = table.count_leaving

    def one_more(objects: Any, start: int, oldest_us: int, bytes_max: int) -> int:
        gone = count(objects, start, oldest_us, bytes_max)
        is_full = bool(sum(each.length for each in objects[gone:]) >= bytes_max > 0)
        return gone + is_full

    patches.set(table, "count_leaving", one_more)


@mutant(kind=LAKED)
def looks_at_the_size_once(patches: Patches) -> None:
    """A leader looks at the lake's size when it begins, and not when more is there."""
    trim = Uploading._trim

    async def once(self: Uploading, replica: Replica, leader_epoch: Any) -> bool:
        trimmed = self._trimmed.get(replica)
        if trimmed is not None and replica.stream.lake.start <= trimmed.start:
            return False
        return await trim(self, replica, leader_epoch)

    patches.set(Uploading, "_trim", once)
