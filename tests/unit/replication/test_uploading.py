"""A leader copies committed, flushed records to the lake, and nothing leaves the disk before."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.table import StaticTable
from structlog.testing import capture_logs

from jetstream_protocol.errors import (
    FencedEpochError,
    JetstreamError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_server.lake.folder_store import FolderStore
from jetstream_server.lake.local import LocalLake
from jetstream_server.lake.stores import Listed, StoreOptions
from jetstream_server.lake.table import ListedObject, StreamTable
from jetstream_server.lake.tasks import MarkTask, Task, TrimTask, folder_of
from jetstream_server.lake.worker import copy, mark, trim
from jetstream_server.log.commit_log import LogConfig
from jetstream_server.metadata.state import lake_decisions
from jetstream_server.metadata.state.commands import (
    LAKE_LEVEL,
    AlterStream,
    PurgeStream,
    SetSchema,
)
from jetstream_server.metadata.state.streams import LakeMark
from jetstream_server.replication.core import lake_bounds
from jetstream_server.replication.core.unreadable import InLakeError
from jetstream_server.replication.drivers import retention as retention_module
from jetstream_server.replication.drivers import uploading as uploading_module
from jetstream_server.replication.drivers import worker_process
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.drivers.sweeping import Sweeping
from jetstream_server.replication.drivers.uploading import (
    Copier,
    LakeOptions,
    Uploading,
    offsets_due,
    records_due,
)
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.lake_objects import decode
from tests.support.loops import eventually, on_loop
from tests.support.node import Node, read_values
from tests.support.virtual_time import on_virtual_loop

VALUE = bytes(1000)
GRACE_US = 60_000_000
PROCESS_SECONDS = 200
"""On a busy machine the process that copies, which has the lowest priority, gets little time."""


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "ROUND_SECONDS", 0.005)
    monkeypatch.setattr(uploading_module, "ROUND_SECONDS", 0.005)


class Ground:
    """A node with a stream in the lake. away: the store cannot be reached. bytes_in_time: how long
    an object may be to be copied in time. trims_late: objects do not leave a table in time. tasks:
    what was to be copied. before_commit: is called once an object is stored. trouble: what
    proposing raises; is_late: what was proposed then takes effect before the next proposal."""

    def __init__(self, folder: Path) -> None:
        self.node = Node(folder / "streams", segment_bytes=2500, level=LAKE_LEVEL)
        self.replicas = self.node.open()
        self.trouble: JetstreamError | None = None
        self.is_late = False
        self.late: list[Any] = []
        (folder / "lake").mkdir()
        self.store = FolderStore((folder / "lake").as_uri())
        self.tasks: list[Task] = []
        self.away = False
        self.bytes_in_time = 1 << 30
        self.trims_late = False
        self.before_commit: list[Any] = []
        self.uploading = Uploading(
            self,
            LakeOptions(StoreOptions(""), 1 << 30, 30, 1 << 30),
            cluster_id="cluster",
            monotonic_clock=self.node.clocks.monotonic,
            wall_clock=self.node.clocks.wall,
            work=self.work,
        )
        self.sweeping = Sweeping(
            self, self.node.cluster.registry, LocalLake(self.store), self.uploading.led,
            cluster_id="cluster", grace_seconds=GRACE_US / 1e6,
            monotonic_clock=self.node.clocks.monotonic,
        )  # fmt: skip
        self.retention = Retention(wall_clock=self.node.clocks.wall)
        self.node.begin(Listeners(roles=(self.retention, self.uploading)))

    async def propose(self, command: Any) -> dict[str, Any]:
        if self.trouble is not None:
            self.late += [command] if self.is_late else []
            raise self.trouble
        while self.late:
            self.node.cluster.do(self.late.pop(0))
            self.node.apply()
        result = self.node.cluster.do(command)
        self.node.apply()
        return result

    async def work(self, task: Task | TrimTask | MarkTask) -> dict[str, Any]:
        if isinstance(task, TrimTask):
            if self.trims_late:
                raise TimeoutError
            return trim(task, self.store)
        if isinstance(task, MarkTask):
            return mark(task, self.store)
        self.tasks.append(task)
        if self.away:
            raise OSError(f"storing {task.attempt}: the store is away in {len(self.tasks)}.25ms")
        if task.length > self.bytes_in_time:
            raise TimeoutError
        answer = copy(task, self.store, lambda _: None)
        while self.before_commit:
            self.before_commit.pop()()
        return answer

    def create(self, **config: Any) -> Replica:
        replica = self.node.create(config={"lake": True, **config})
        replica.log.configure(LogConfig(segment_bytes=2500))
        return replica

    def alter(self, replica: Replica, **config: Any) -> None:
        epoch = self.node.cluster.now(replica.stream).stream_epoch
        self.node.cluster.do(
            AlterStream(stream_id=replica.stream.id, stream_epoch=epoch, config=config)
        )
        self.node.apply()

    def start(self) -> None:
        self.uploading.start()
        self.retention.start()

    def fill(self, replica: Replica, count: int = 20, *, flush: bool = True) -> None:
        for _ in range(count):
            self.node.append(replica, VALUE, flush=flush)

    def objects(self, replica: Replica) -> list[ListedObject]:
        location = replica.stream.lake.location
        return StreamTable(self.store, self.store.url, "", {}).objects(location)

    def stored(self, replica: Replica) -> bytes:
        """What the lake holds."""
        return b"".join(decode(self.store.get(each.name)) for each in self.objects(replica))

    def names(self) -> set[str]:
        """What lies in the store."""
        return {each.name for each in self.store.list("")}

    async def sweep(self) -> None:
        """Rounds of a whole grace time."""
        await self.sweeping.round()
        for _ in range(2):
            self.node.clocks.advance(GRACE_US // 2)
            await self.sweeping.round()

    def later(self) -> None:
        """A pause after a failure is over."""
        self.node.clocks.advance(uploading_module.RETRY_US)


@asynccontextmanager
async def ground_at(folder: Path) -> AsyncIterator[Ground]:
    ground = Ground(folder)
    try:
        yield ground
    finally:
        await ground.uploading.close()
        await ground.sweeping.close()
        await ground.retention.close()
        ground.replicas.close()


def local_bytes(replica: Replica) -> bytes:
    data, offset = b"", replica.log.log_start_offset
    while (found := replica.log.read(offset, 1 << 20, replica.high_watermark)) is not None:
        data += replica.log.pread(found)
        offset = found.next_offset
    return data


@on_virtual_loop
async def test_sealed_segments_are_copied_and_leave_only_then(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(local_max_bytes=2500)
        ground.fill(replica)
        before = local_bytes(replica)
        ground.away = True
        ground.start()
        await eventually(lambda: ground.uploading.counters.failures == 1)
        assert "away" in ground.uploading.reason(replica)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 0, "only the disk has them"
        ground.fill(replica, 2)
        before = local_bytes(replica)
        ground.away = False
        ground.later()
        await eventually(lambda: replica.log.log_start_offset >= 16)
        assert not ground.uploading.reason(replica)
        await eventually(lambda: offsets_due(replica) is None)
        lake = replica.stream.lake
        assert lake.start == 0
        assert lake.end >= replica.log.log_start_offset
        stored = ground.stored(replica)
        assert before.startswith(stored)
        assert read_values(replica, replica.log.log_start_offset)
        with pytest.raises(InLakeError):
            replica.read(0, 1)
        assert lake_bounds.start_offset(replica.stream, replica.log) == 0


@on_virtual_loop
async def test_nothing_uncommitted_or_unflushed_is_copied(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(flush="group")
        ground.fill(replica, 6, flush=False)
        assert replica.log.segment_count > 1
        assert offsets_due(replica) is None, "nothing is flushed"
        ground.node.flushes.run()
        assert offsets_due(replica) is not None
        replica.high_watermark = 1
        assert offsets_due(replica) is None, "a segment ends beyond what is committed"
        replica.high_watermark = 2
        due = offsets_due(replica)
        assert due is not None
        found = records_due(replica, due)
        assert found is not None
        assert found.next_offset == 2


@on_virtual_loop
async def test_what_may_still_grow_is_not_copied(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 2)
        assert replica.log.segment_count == 1
        assert offsets_due(replica) is None
        replica.log.seal()
        assert offsets_due(replica) is not None


@on_virtual_loop
async def test_objects_are_as_long_as_the_stream_says(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(lake_object_bytes=64 * 1024)
        replica.log.configure(LogConfig(segment_bytes=1 << 20))
        ground.fill(replica, 200)
        replica.log.seal()
        ground.node.flushes.run()
        replica.flush()
        ground.node.flushes.run()
        ground.start()
        await eventually(lambda: replica.stream.lake.end == 200)
        assert len(ground.tasks) == 4
        assert max(each.length for each in ground.tasks) <= 64 * 1024
        assert ground.stored(replica) == local_bytes(replica)


@on_virtual_loop
async def test_records_wait_since_they_were_sealed(tmp_path: Path) -> None:
    """Also while copies go on, until all that was sealed then is in the lake."""
    async with ground_at(tmp_path) as ground:
        uploading, advance = ground.uploading, ground.node.clocks.advance
        replica = ground.create()
        ground.fill(replica)
        sealed = replica.log.sealed_end
        ground.away = True
        ground.start()
        await eventually(lambda: uploading.counters.failures == 1)
        advance(7_000_000)
        ground.fill(replica)
        assert (uploading.lag_seconds, replica.log.sealed_end > sealed) == (7, True)
        lags: list[tuple[int, float]] = []
        work = ground.work

        async def slowly(task: Task | TrimTask | MarkTask) -> dict[str, Any]:
            if isinstance(task, Task):
                advance(1_000_000)
                lags.append((task.begin, uploading.lag_seconds))
            return await work(task)

        uploading._work = slowly
        ground.away = False
        await eventually(lambda: offsets_due(replica) is None)
        await eventually(lambda: uploading.lag_seconds == 0)
        at = next(at for at, (begin, _) in enumerate(lags) if begin >= sealed)
        assert [lag for _, lag in lags[:at]] == [8 + each for each in range(at)]
        assert [lag for _, lag in lags[at:]] == [1 + each for each in range(len(lags) - at)]
        assert 2 < at < len(lags) - 2
        uploading._work = work
        ground.away = True
        ground.fill(replica)
        await eventually(lambda: uploading.counters.failures == 2)
        advance(3_000_000)
        assert uploading.lag_seconds == 3
        ground.node.delete(replica)
        assert uploading.lag_seconds == 0, "nobody waits for it any more"


@on_virtual_loop
async def test_a_slow_link_gets_smaller_objects(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(lake_object_bytes=256 * 1024)
        replica.log.configure(LogConfig(segment_bytes=1 << 20))
        ground.fill(replica, 250)
        replica.log.seal()
        ground.bytes_in_time = 100 * 1024
        ground.start()
        for count in (1, 2):
            await eventually(lambda: ground.uploading.counters.failures == count)  # noqa: B023
            assert "lake.timeout" in ground.uploading.reason(replica)
            ground.bytes_in_time = 100 * 1024 if count == 1 else 1 << 30
            ground.later()
        await eventually(lambda: replica.stream.lake.end == 250)
        assert [each.length // 65536 for each in ground.tasks[:3]] == [3, 1, 0]
        assert max(each.length for each in ground.tasks[3:]) > 100 * 1024, "whole ones again"


@on_virtual_loop
async def test_a_reason_is_said_once(tmp_path: Path) -> None:
    """The store's own words name another object and another time at each attempt."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica)
        ground.away = True
        with capture_logs() as logs:
            ground.start()
            for count in (1, 2, 3):
                await eventually(lambda: ground.uploading.counters.failures == count)  # noqa: B023
                ground.later()
        assert [each["event"] for each in logs].count("lake_copy_failed") == 1
        assert ground.uploading.reason(replica).endswith(f" in {len(ground.tasks)}.25ms"), (
            "the last one"
        )


@on_virtual_loop
async def test_a_table_that_loses_its_objects_slowly_gets_no_smaller_ones(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(lake_object_bytes=64 * 1024)
        replica.log.configure(LogConfig(segment_bytes=1 << 20))
        ground.fill(replica, 70)
        replica.log.seal()
        ground.start()
        await eventually(lambda: replica.stream.lake.end == 70)
        ground.trims_late = True
        epoch = replica.stream.leader_epoch
        await ground.propose(PurgeStream(stream_id=replica.stream.id, leader_epoch=epoch, offset=1))
        await eventually(lambda: ground.uploading.counters.failures == 1)
        assert "out of the table" in ground.uploading.reason(replica)
        ground.trims_late = False
        ground.later()
        ground.fill(replica, 70)
        replica.log.seal()
        await eventually(lambda: replica.stream.lake.end == 140)
        assert ground.uploading.reason(replica) == ""
        assert max(each.length for each in ground.tasks[-2:]) > 32 * 1024


@pytest.mark.parametrize("trouble", [OSError("no right to delete"), TimeoutError()])
@on_virtual_loop
async def test_a_copy_whose_commit_cannot_be_noted_counts(
    tmp_path: Path, trouble: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses to delete the note of the version before, or takes too long."""

    def refuse(self: StreamTable, location: str, before: str = "") -> None:
        raise trouble

    monkeypatch.setattr(StreamTable, "mark", refuse)
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica)
        ground.start()
        await eventually(lambda: replica.stream.lake.version > 2)
        await eventually(lambda: offsets_due(replica) is None)
        assert ground.uploading.counters.failures == 0
        assert not ground.uploading.reason(replica)
        assert not ground.uploading._shares, "objects stay as long as they were"
        monkeypatch.undo()
        await ground.sweep()
        assert not ground.sweeping.problem(replica.stream.id)
        assert len([each for each in ground.names() if "/committed/" in each]) == 1


@pytest.mark.parametrize("is_late", [False, True])
@on_virtual_loop
async def test_an_unknown_outcome_is_settled_by_the_mark(tmp_path: Path, is_late: bool) -> None:
    """is_late: the commit takes effect, and nobody has heard of it."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica)
        ground.trouble = UnknownOutcomeError("perhaps")
        ground.is_late = is_late
        ground.start()
        await eventually(lambda: ground.uploading.counters.failures == 1)
        ground.trouble = None
        for _ in range(3):
            ground.later()
            await asyncio.sleep(0.03)
        await eventually(lambda: offsets_due(replica) is None)
        end = replica.stream.lake.end
        assert ground.stored(replica) == local_bytes(replica)[: len(ground.stored(replica))]
        objects = ground.objects(replica)
        assert [each.begin for each in objects] == [0, *[each.end for each in objects[:-1]]]
        assert objects[-1].end == end


@on_virtual_loop
async def test_a_leader_that_was_replaced_meanwhile_commits_nothing(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 4)

        def again() -> None:
            ground.node.cluster.register(0, feature_level_max=LAKE_LEVEL)

        ground.before_commit = [again]
        ground.start()
        await eventually(lambda: ground.uploading.counters.failures == 1)
        assert "ended" in ground.uploading.reason(replica)
        assert not ground.node.cluster.now(replica.stream).lake.version


@on_virtual_loop
async def test_purges_reach_the_lake_and_do_not_wait_for_it(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 10)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)

        async def purge(offset: int) -> LakeMark:
            epoch = replica.stream.leader_epoch
            await ground.propose(
                PurgeStream(stream_id=replica.stream.id, leader_epoch=epoch, offset=offset)
            )
            await eventually(lambda: replica.log.log_start_offset >= offset)
            return replica.stream.lake

        assert (await purge(3)).start == 3
        everything = await purge(10)
        assert (everything.start, everything.end) == (10, 10)
        ground.fill(replica, 10)
        await eventually(lambda: replica.stream.lake.end >= 18)
        assert replica.stream.lake.start == 10
        assert ground.stored(replica) == local_bytes(replica)[: len(ground.stored(replica))]


@on_virtual_loop
async def test_what_was_purged_leaves_the_table_and_after_the_grace_time_the_store(
    tmp_path: Path,
) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        objects = ground.objects(replica)
        epoch = replica.stream.leader_epoch
        await ground.propose(
            PurgeStream(stream_id=replica.stream.id, leader_epoch=epoch, offset=objects[2].begin)
        )
        version = replica.stream.lake.version
        await eventually(lambda: replica.stream.lake.version > version)
        assert ground.objects(replica) == objects[2:]
        await ground.sweeping.round()
        assert {each.name for each in objects} < ground.names(), "somebody may read them"
        await ground.sweep()
        left = {each.name for each in objects} & ground.names()
        assert left == {each.name for each in objects[2:]}
        assert ground.sweeping.objects_removed
        assert ground.stored(replica)
        await ground.sweep()
        assert ground.stored(replica), "what the table needs stays for ever"


@on_virtual_loop
async def test_a_lake_that_was_off_is_emptied_and_goes_on_later(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        objects = {each.name for each in ground.objects(replica)}
        # Before the next round finds time to trim.
        ground.node.cluster.do(
            PurgeStream(
                stream_id=replica.stream.id,
                leader_epoch=replica.stream.leader_epoch,
                offset=replica.stream.lake.end,
            )
        )
        ground.alter(replica, lake=False)
        await eventually(lambda: not ground.objects(replica))
        await ground.sweep()
        assert not objects & ground.names(), "what was purged is in the store no more"
        ground.fill(replica)
        later = replica.log.log_end_offset - 4
        replica.log.reset(later)  # As retention would have it.
        replica.high_watermark = later
        with pytest.raises(OffsetOutOfRangeError):
            replica.read(later - 1, 1)
        ground.alter(replica, lake=True)
        ground.fill(replica)
        await eventually(lambda: replica.stream.lake.end > later)
        assert replica.stream.lake.start == later
        assert ground.stored(replica) == local_bytes(replica)[: len(ground.stored(replica))]


@on_virtual_loop
async def test_records_older_than_max_age_leave_the_lake(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(max_age_us=3_600_000_000)
        ground.fill(replica, 10)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        end = replica.stream.lake.end
        ground.node.clocks.advance(3_000_000_000)
        ground.fill(replica, 10)
        await eventually(lambda: offsets_due(replica) is None)
        assert replica.stream.lake.start == 0
        ground.node.clocks.advance(700_000_000)
        ground.fill(replica, 2)
        await eventually(lambda: replica.stream.lake.start >= end)
        start = replica.stream.lake.start
        assert [each.begin for each in ground.objects(replica)][:1] == [start]
        await eventually(lambda: replica.log.log_start_offset >= start)
        assert lake_bounds.start_offset(replica.stream, replica.log) == start


@on_virtual_loop
async def test_objects_beyond_max_bytes_leave_the_lake(tmp_path: Path) -> None:
    """Also of a stream that rests when the limit is set."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 21)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        objects = ground.objects(replica)
        assert len(objects) > 4
        left = sum(each.length for each in objects[-2:])
        ground.alter(replica, max_bytes=left)
        await eventually(lambda: replica.stream.lake.start == objects[-2].begin)
        assert ground.objects(replica) == objects[-2:]
        await eventually(lambda: replica.log.log_start_offset > 0)
        assert replica.log.size_bytes >= left, "a log has its own bytes, and the same limit"
        await eventually(lambda: ground.uploading._trimmed[replica].start == objects[-2].begin)
        trims = ground.uploading._trimmed[replica].at_us
        ground.node.clocks.advance(uploading_module.TRIM_US_MIN)
        await asyncio.sleep(1)
        assert ground.uploading._trimmed[replica].at_us == trims, "nothing has changed"
        ground.fill(replica, 10)
        await eventually(lambda: offsets_due(replica) is None)
        ground.node.clocks.advance(uploading_module.TRIM_US_MIN)
        await eventually(lambda: len(ground.objects(replica)) == 2)


@on_virtual_loop
async def test_what_failed_is_over_once_it_was_done_also_for_a_stream_at_rest(
    tmp_path: Path,
) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create(max_age_us=3_600_000_000)
        ground.fill(replica, 10)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        ground.trims_late = True
        ground.node.clocks.advance(3_700_000_000)
        await eventually(lambda: ground.uploading.streams_failing == 1)
        assert "old objects" in ground.uploading.reason(replica)
        ground.trims_late = False
        ground.later()
        await eventually(lambda: not ground.uploading.reason(replica))
        assert ground.uploading.streams_failing == 0
        assert replica.stream.lake.start == replica.stream.lake.end


@on_virtual_loop
async def test_a_stream_at_rest_with_both_limits_is_looked_at_for_its_age_alone(
    tmp_path: Path,
) -> None:
    """Each look keeps the process that copies, or starts it."""
    looks = []
    async with ground_at(tmp_path) as ground:
        replica = ground.create(max_age_us=8 * 3_600_000_000, max_bytes=1 << 30)
        work = ground.work

        async def noted(task: Task | TrimTask | MarkTask) -> dict[str, Any]:
            looks.extend([task] if isinstance(task, TrimTask) else [])
            return await work(task)

        ground.uploading._work = noted
        ground.fill(replica, 10)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        ground.node.clocks.advance(uploading_module.TRIM_US_MIN)
        end = replica.stream.lake.end
        await eventually(lambda: ground.uploading._trimmed[replica].sized[0] == end)
        before = len(looks)
        for _ in range(60):
            ground.node.clocks.advance(uploading_module.TRIM_US_MIN)
            await asyncio.sleep(1)
        assert len(looks) == before
        ground.node.clocks.advance(3_600_000_000)
        await eventually(lambda: len(looks) == before + 1)


@on_virtual_loop
async def test_a_version_that_came_and_went_between_two_sweeps_has_its_readers(
    tmp_path: Path,
) -> None:
    """It was stored, but its commit came late, and sweeps failed while it counted."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        folder = folder_of("cluster", replica.stream.id, replica.stream.created_at_us)
        ground.store.put(late := f"{folder}/metadata/late", b"x")
        await ground.sweeping.round()
        ground.trouble = UnavailableError("nobody answers")
        ground.node.clocks.advance(GRACE_US * 3 // 4)
        await ground.sweeping.round()
        ground.trouble = None
        ground.node.clocks.advance(GRACE_US // 4)
        await ground.sweeping.round()
        assert late in ground.names(), "who knows since when nobody needs it"
        await ground.sweep()
        assert late not in ground.names()


@on_virtual_loop
async def test_a_sweep_that_somebody_asks_for_keeps_the_rules(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        assert await ground.sweeping.sweep_now(replica, dry_run=False) == []
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        folder = folder_of("cluster", replica.stream.id, replica.stream.created_at_us)
        ground.store.put(lost := f"{folder}/data/lost", b"x")
        assert (lost, GRACE_US) in await ground.sweeping.sweep_now(replica, dry_run=False)
        ground.node.clocks.advance(GRACE_US // 2)
        assert (lost, GRACE_US // 2) in await ground.sweeping.sweep_now(replica, dry_run=False)
        ground.node.clocks.advance(GRACE_US // 2)
        assert (lost, 0) in await ground.sweeping.sweep_now(replica, dry_run=True)
        assert lost in ground.names()
        ground.trouble = FencedEpochError("another leader")
        with pytest.raises(FencedEpochError):
            await ground.sweeping.sweep_now(replica, dry_run=False)
        ground.trouble = None
        assert (lost, 0) in await ground.sweeping.sweep_now(replica, dry_run=False)
        assert lost not in ground.names()


@on_virtual_loop
async def test_a_sweep_during_which_a_copy_is_committed_looks_again(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        before, propose = replica.stream.lake, ground.propose

        async def after_a_copy(command: Any) -> dict[str, Any]:
            ground.propose = propose  # type: ignore[method-assign]
            ground.fill(replica, 20)
            await eventually(lambda: replica.stream.lake.version > before.version)
            return await propose(command)

        ground.propose = after_a_copy  # type: ignore[method-assign]
        swept = [name for name, _ in await ground.sweeping.sweep_now(replica, dry_run=True)]
        version = before.location.rpartition("/")[2]
        assert [each.rpartition("/")[2] for each in swept] == [version], "its marker"


@on_virtual_loop
async def test_a_schema_that_is_set_during_a_copy_counts_for_the_next_object(
    tmp_path: Path,
) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()

        def set_schema(text: str) -> None:
            stream = replica.stream
            command = SetSchema(
                stream_id=stream.id, schema=text, schema_version=stream.schema_version
            )
            ground.node.cluster.do(command)
            ground.node.apply()

        set_schema("a int")
        ground.before_commit.append(lambda: set_schema("b bigint alias a, c string"))
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        assert [each.schema_version for each in ground.tasks[:2]] == [1, 2]
        assert len({each.end for each in ground.tasks}) == len(ground.tasks), "none was refused"
        url = ground.store.url + "/" + replica.stream.lake.location
        rows = StaticTable.from_metadata(url).scan().to_arrow()
        assert rows.column_names[-3:] == ["b", "c", "_error"]
        assert len(rows) == replica.stream.lake.end


@on_virtual_loop
async def test_who_leads_no_more_deletes_nothing(tmp_path: Path) -> None:
    """It knows a table that lacks what its successor has added."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        folder = folder_of("cluster", replica.stream.id, replica.stream.created_at_us)
        ground.store.put(f"{folder}/data/of-the-successor", b"x")
        before = ground.names()
        ground.trouble = FencedEpochError("another leader")
        await ground.sweep()
        assert ground.names() == before
        assert ground.sweeping.failures == 3
        ground.trouble = None
        await ground.sweep()
        assert before - ground.names()


@on_virtual_loop
async def test_a_damaged_table_is_counted_and_nothing_is_deleted(tmp_path: Path) -> None:
    """A manifest that ends too soon raises EOFError, and a task that fails ends the node."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        for path in (tmp_path / "lake").rglob("*.avro"):
            path.write_bytes(path.read_bytes()[:-200])
        before = ground.names()
        await ground.sweep()
        assert ground.sweeping.failures == 3
        assert ground.names() == before


@on_virtual_loop
async def test_the_folder_of_a_deleted_stream_goes(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica, other = ground.create(), ground.node.create("other", "other.>")
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        stream_id, created_us = replica.stream.id, replica.stream.created_at_us
        kept = {
            f"{folder_of('cluster', *each)}/data/x"
            for each in (
                (other.stream.id, other.stream.created_at_us),
                (ground.node.cluster.registry.revision + 100, created_us),  # Not known yet.
                # The metadata was put back from before it was made: it is not deleted, and its id
                # is given again.
                (ground.node.cluster.registry.revision - 1, created_us),
                (stream_id, created_us + 1),
            )
        }
        for name in kept:
            ground.store.put(name, b"x")
        ground.node.delete(replica)
        ground.node.apply()
        await ground.sweep()
        assert ground.names() == kept


class Endless(FolderStore):
    """Its listings do not end."""

    def list(self, prefix: str) -> Iterator[Listed]:
        while True:
            yield Listed(f"{prefix}x", 1)


@on_loop
async def test_a_node_that_stops_does_not_wait_for_a_sweep(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        sweeping = Sweeping(
            ground, ground.node.cluster.registry, LocalLake(Endless(ground.store.url)),
            ground.uploading.led,
            cluster_id="cluster", grace_seconds=1, monotonic_clock=ground.node.clocks.monotonic,
        )  # fmt: skip
        sweep = asyncio.ensure_future(sweeping.round())
        await asyncio.sleep(0.05)
        assert not sweep.done()
        async with asyncio.timeout(60):
            await sweeping.close()
            await sweep
        assert sweeping.failures


@on_virtual_loop
async def test_what_was_committed_is_kept_if_the_metadata_forgets_it(tmp_path: Path) -> None:
    """The metadata is put back from an older copy, and the stream goes on from there."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        older = replica.stream.lake
        ground.fill(replica, 12)
        await eventually(lambda: offsets_due(replica) is None)
        await eventually(lambda: len(marked_versions(ground)) == 1)
        lost = ground.objects(replica)
        newest = replica.stream.lake.location
        await ground.uploading.close()
        ground.node.cluster.registry.streams[replica.stream.id] = replace(
            replica.stream, lake=older
        )
        replica.stream = replace(replica.stream, lake=older)
        assert ground.objects(replica) != lost
        await ground.sweep()
        await ground.sweep()
        assert {each.name for each in lost} < ground.names()
        assert newest in ground.sweeping.problem(replica.stream.id)
        assert StreamTable(ground.store, ground.store.url, "", {}).objects(newest) == lost


def marked_versions(ground: Ground) -> set[str]:
    return {each for each in ground.names() if "/committed/" in each}


def marked(replica: Replica, **values: Any) -> None:
    """As if the metadata said so."""
    lake = LakeMark(location="list", version=1)._replace(**values)
    replica.stream = replace(replica.stream, lake=lake)


@pytest.mark.parametrize(
    ("end", "last_epoch", "begins"),
    [
        pytest.param(4, 0, 0, id="the log has all of it"),
        pytest.param(6, 0, 0, id="the log ends there"),
        pytest.param(9, 0, 9, id="the log is shorter"),
        pytest.param(4, 3, 4, id="the log has another epoch"),
    ],
)
@on_virtual_loop
async def test_below_its_end_the_lake_decides(
    tmp_path: Path, end: int, last_epoch: int, begins: int
) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        marked(replica, end=end, last_epoch=last_epoch)
        lake_bounds.begin_after_lake(replica.stream, replica.log)
        log = replica.log
        assert log.log_start_offset == begins
        assert log.log_end_offset == max(6 if not begins else 0, begins)
        assert not log.offline_reason


@on_virtual_loop
async def test_a_purge_beyond_the_lake_s_end_costs_no_later_record(tmp_path: Path) -> None:
    """The node dies before the purge has reached its log, whose records are of an older epoch than
    the one that purged."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 6)
        marked(replica, end=2)
        lake = lake_decisions.purged(replica.stream, 4)
        marked(replica, **lake._asdict())
        assert not lake_bounds.begin_after_lake(replica.stream, replica.log)
        assert len(read_values(replica, 4)) == 2
        marked(replica, start=4, end=4, last_epoch=3)
        assert lake_bounds.begin_after_lake(replica.stream, replica.log), "it is another log"


@on_virtual_loop
async def test_a_short_log_gives_no_offset_again(tmp_path: Path) -> None:
    """The disk was lost, and the only replica leads again with an empty log."""
    async with ground_at(tmp_path) as ground:
        replica = ground.create(local_max_bytes=2500)
        ground.fill(replica)
        ground.start()
        await eventually(lambda: offsets_due(replica) is None)
        stream, end = replica.stream, replica.stream.lake.end
        replica.log.reset(0)
        replica.retire()
        ground.node.replicas.close()
        ground.node.cluster.register(0, feature_level_max=LAKE_LEVEL)
        ground.node.start()
        again = ground.node.replica(stream)
        assert again.leadership is not None
        assert (again.log.log_start_offset, again.high_watermark) == (end, end)
        assert ground.node.append(again, b"next") == end
        assert read_values(again, end) == [b"next"]


@on_virtual_loop
async def test_readers_go_to_the_lake_before_the_files_do(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 10)
        marked(replica, end=8)
        replica.log.begin_advance(6)
        for _ in range(2):
            with pytest.raises((InLakeError, RecordsDamagedError)) as caught:
                replica.read(0, 1)
            assert caught.type is InLakeError, "nothing is lost"
            assert len(read_values(replica, 6)) == 2
            replica.log.finish_advance()


@on_virtual_loop
async def test_what_both_have_lost_is_said(tmp_path: Path) -> None:
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        replica.log.reset(8)
        replica.high_watermark = 8
        ground.fill(replica, 6)
        marked(replica, end=5)
        with pytest.raises(InLakeError):
            replica.read(4, 1)
        with pytest.raises(RecordsDamagedError) as caught:
            replica.read(5, 1)
        assert (caught.value.start_offset, caught.value.end_offset) == (5, 8)
        with pytest.raises(RecordsDamagedError, match="purge the stream up to offset 8"):
            offsets_due(replica)
        assert read_values(replica, 8)


@on_virtual_loop
async def test_the_process_copies_and_stays_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = [], []
    spawn, clean_up = worker_process.spawn, worker_process.clean_up
    monkeypatch.setattr(
        worker_process, "spawn", lambda module: begun.append(spawn(module)) or begun[-1]
    )
    monkeypatch.setattr(
        worker_process, "clean_up", lambda process: ended.append(process) or clean_up(process)
    )
    async with ground_at(tmp_path) as ground:
        replica = ground.create()
        ground.fill(replica, 4)
        due = offsets_due(replica)
        assert due is not None
        found = records_due(replica, due)
        assert found is not None
        uploading = Uploading(
            ground,
            LakeOptions(StoreOptions(ground.store.url), 1 << 30, PROCESS_SECONDS, 1 << 30),
            cluster_id="cluster", monotonic_clock=ground.node.clocks.monotonic,
            wall_clock=ground.node.clocks.wall,
        )  # fmt: skip
        uploading.role_changed(replica)
        uploading.start()
        try:
            await eventually(lambda: replica.stream.lake.end == found.next_offset, PROCESS_SECONDS)
            await asyncio.sleep(10 * uploading_module.ROUND_SECONDS)
            assert not ended, "to start it takes seconds"

            def has_ended() -> bool:
                ground.node.clocks.advance(uploading_module.IDLE_US)
                return ended == begun

            await eventually(has_ended, PROCESS_SECONDS)
            assert len(begun) == 1
        finally:
            await uploading.close()
        assert ground.stored(replica) == replica.log.pread(found)
        assert asdict(uploading.counters)["objects"] == 1


@pytest.mark.parametrize("is_away", [True, False])
@on_virtual_loop
async def test_who_asks_while_the_store_is_away_may_try_again(
    is_away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = json.dumps({"error": "it took too long", **({"is_away": True} if is_away else {})})
    monkeypatch.setattr(worker_process, "spawn", lambda module: None)

    async def converse(*_: Any) -> str:
        return answer

    copier = Copier(converse)
    task = MarkTask(StoreOptions(""), "cluster/7", "location", "", 0)
    with pytest.raises(UnavailableError if is_away else EOFError, match="it took too long"):
        await copier.work(task)


def test_a_refused_read_may_be_tried_again() -> None:
    assert issubclass(InLakeError, UnavailableError)
