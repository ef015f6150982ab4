"""A node keeps its streams within their limits, on a real disk."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from jetstream_protocol.errors import OffsetOutOfRangeError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.commands import LAKE_LEVEL, AlterStream, SetStreamAccess
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import LakeMark, StreamSettings
from jetstream_server.replication.core.log_config import log_config_for
from jetstream_server.replication.drivers import retention as retention_module
from jetstream_server.replication.drivers.healing import Healing
from jetstream_server.replication.drivers.retention import RETRY_US, Retention
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop

HOUR = 3_600_000_000
VALUE = bytes(1000)


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "ROUND_SECONDS", 0.005)


class NoRepair:
    async def close(self) -> None: ...


@asynccontextmanager
async def keeping(folder: Path, **options: Any) -> AsyncIterator[Node]:
    """A node whose retention runs, and inspects what is suspected."""
    node = Node(folder / "streams", segment_bytes=2500, **options)
    replicas = node.open()
    retention = Retention(wall_clock=node.clocks.wall)
    healing = Healing(cast(SegmentRepair, NoRepair()), node.disk, ThreadPoolExecutor(1))
    node.begin(Listeners(roles=(retention, healing), healer=healing))
    retention.start()
    healing.start()
    try:
        yield node
    finally:
        await retention.close()
        await healing.close()
        replicas.close()


def create(node: Node, **config: Any) -> Replica:
    """A stream without a minimum segment size of its own: the node's segments are tiny."""
    replica = node.create(config=config)
    replica.log.configure(LogConfig(segment_bytes=2500, segment_age_us=config.get("max_age_us")))
    return replica


def files(node: Node, replica: Replica) -> list[str]:
    folder = node.folder / str(replica.stream.id)
    return sorted(path.name for path in folder.glob("*.log"))


@on_virtual_loop
async def test_beyond_max_bytes_the_oldest_segments_go(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node, max_bytes=5000)
        for _ in range(20):
            node.append(replica, VALUE)
        await eventually(lambda: replica.log.size_bytes < 5000 + 2500)
        assert replica.log.size_bytes >= 5000
        start = replica.log.log_start_offset
        assert 10 < start < 18
        await eventually(lambda: files(node, replica)[0] == f"{start:020d}.log")
        with pytest.raises(OffsetOutOfRangeError) as caught:
            replica.read(start - 1, 1000)
        assert (caught.value.log_start_offset, caught.value.high_watermark) == (start, 20)


@on_virtual_loop
async def test_beyond_max_messages_the_oldest_segments_go(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node, max_messages=5)
        for _ in range(20):
            node.append(replica, VALUE)
        await eventually(lambda: replica.log.log_start_offset > 12)
        assert replica.log.log_start_offset <= 15


@on_virtual_loop
async def test_old_records_go_even_if_nothing_is_published_any_more(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node, max_age_us=HOUR)
        for _ in range(5):
            node.append(replica, VALUE)
        node.clocks.advance(HOUR - 10)
        node.append(replica, VALUE)
        node.clocks.advance(20)
        await eventually(lambda: replica.log.log_start_offset == 4)
        node.clocks.advance(HOUR)

        def nothing_left() -> bool:
            node.flushes.run()  # The segment that was sealed by age awaits its flush.
            return replica.log.log_start_offset == 6

        await eventually(nothing_left)
        await eventually(lambda: files(node, replica) == [f"{6:020d}.log"])
        assert node.append(replica, b"next") == 6


@on_virtual_loop
async def test_what_is_not_flushed_or_not_committed_stays(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node, max_messages=1)
        for _ in range(6):
            node.append(replica, VALUE, flush=False)
        requested = len(node.flushes.waiting)
        assert requested == 1
        node.flushes.waiting.clear()
        # A visit asks for the flush of sealed segments; without one, it leaves them alone.
        await eventually(lambda: len(node.flushes.waiting) == 1)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 0
        node.flushes.run()
        await eventually(lambda: replica.log.log_start_offset >= 4)


@on_virtual_loop
async def test_a_follower_removes_only_what_limits_do_not_keep(tmp_path: Path) -> None:
    """Whatever its leader's log start: that one may have lost records."""
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(10):
            node.append(replica, VALUE)
        replica.leadership = None  # As one of several, led elsewhere.
        replica.leader_log_start_offset = 7

        def alter(**config: Any) -> None:
            stream = replace(replica.stream, config=replace(replica.stream.config, **config))
            replica.stream = stream
            node.replicas._services.listeners.role_changed(replica)

        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 0, "without limits nothing goes"
        alter(max_messages=8)
        await eventually(lambda: replica.log.log_start_offset == 2)
        alter(max_messages=1)
        await eventually(lambda: replica.log.log_start_offset == 6)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 6, "what the leader keeps is kept"
        replica.leader_log_start_offset = 8
        await eventually(lambda: files(node, replica)[0] == f"{8:020d}.log")
        alter(max_messages=0)
        replica.leader_log_start_offset = 10
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 8, "limits that were removed justify nothing more"


@on_virtual_loop
async def test_a_follower_removes_what_the_lake_holds_and_no_more(tmp_path: Path) -> None:
    """Its metadata says what that is; its leader need not have removed it."""
    async with keeping(tmp_path, level=LAKE_LEVEL) as node:
        replica = create(node, lake=True, local_max_bytes=1)
        for _ in range(10):
            node.append(replica, VALUE)
        replica.leadership = None  # As one of several, led elsewhere.
        replica.leader_log_start_offset = 9
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 0, "the lake holds nothing"
        replica.leader_log_start_offset = 0
        replica.stream = replace(replica.stream, lake=LakeMark(0, 5, 0, "table", 1))
        await eventually(lambda: replica.log.log_start_offset == 4)
        replica.stream = replace(replica.stream, lake=LakeMark(0, 8, 0, "table", 2))
        replica.high_watermark = 6  # A lossy election has cut the log, say.
        await eventually(lambda: files(node, replica)[0] == f"{6:020d}.log")


def told_to_purge(node: Node, replica: Replica, offset: int, leader_epoch: int) -> None:
    """As if the metadata said so."""
    replica.stream = replace(replica.stream, purged_offset=offset, purged_epoch=leader_epoch)
    node.replicas._services.listeners.role_changed(replica)


@on_virtual_loop
async def test_what_is_purged_goes_also_from_the_middle_of_a_segment(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(7):
            node.append(replica, VALUE)
        told_to_purge(node, replica, 5, replica.stream.leader_epoch)
        await eventually(lambda: replica.log.log_start_offset == 5)
        await eventually(lambda: files(node, replica) == [f"{4:020d}.log", f"{6:020d}.log"])
        assert replica.read(5, 1) is not None
        with pytest.raises(OffsetOutOfRangeError):
            replica.read(4, 1)
        assert node.append(replica, b"next") == 7


@on_virtual_loop
async def test_a_log_that_is_purged_as_a_whole_takes_no_room(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(3):
            node.append(replica, VALUE)
        told_to_purge(node, replica, 3, replica.stream.leader_epoch)

        def is_empty() -> bool:
            node.flushes.run()
            return files(node, replica) == [f"{3:020d}.log"]

        await eventually(is_empty)
        assert (replica.log.log_start_offset, replica.log.size_bytes) == (3, 0)
        assert node.append(replica, b"next") == 3


@on_virtual_loop
async def test_a_follower_purges_what_its_leader_has_purged(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(10):
            node.append(replica, VALUE)
        replica.leadership = None
        replica.leader_log_start_offset = 0
        told_to_purge(node, replica, 7, replica.stream.leader_epoch)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 0, "its leader has not"
        replica.leader_log_start_offset = 9
        await eventually(lambda: replica.log.log_start_offset == 7)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 7, "nobody has purged what the leader lacks besides"


@on_virtual_loop
async def test_what_a_later_leader_has_stored_at_purged_offsets_stays(tmp_path: Path) -> None:
    """As after an unclean election, which cut the log below what was purged."""
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(4):
            node.append(replica, VALUE)
        epoch = replica.stream.leader_epoch
        replica.stream = replace(replica.stream, leader_epoch=epoch + 1)
        for _ in range(4):
            node.append(replica, VALUE, flush=False)
        assert replica.log.epochs.epoch_at(4) == epoch + 1
        told_to_purge(node, replica, 8, epoch)
        node.flushes.run()
        await eventually(lambda: replica.log.log_start_offset == 4)
        await asyncio.sleep(0.05)
        assert replica.log.log_start_offset == 4


def create_other(node: Node) -> Replica:
    replica = node.create("other", "other", config={"max_messages": 1})
    replica.log.configure(LogConfig(segment_bytes=2500))
    return replica


@pytest.mark.parametrize("access", [{}, {"readonly": True}, {"paused": True}])
@on_virtual_loop
async def test_limits_take_effect_when_they_are_altered(
    tmp_path: Path, access: dict[str, bool]
) -> None:
    """Also on a stream that takes no records now."""
    async with keeping(tmp_path, level=FeatureLevel(SetStreamAccess.level)) as node:
        replica = create(node)
        for _ in range(10):
            node.append(replica, VALUE)
        node.cluster.do(SetStreamAccess(stream_id=replica.stream.id, **access))
        node.apply()
        stream = replica.stream
        node.cluster.do(
            AlterStream(
                stream_id=stream.id, stream_epoch=stream.stream_epoch, config={"max_messages": 2}
            )
        )
        node.apply()
        await eventually(lambda: replica.log.log_start_offset == 8)


@on_virtual_loop
async def test_a_restart_begins_where_retention_left_the_log(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node, max_messages=1)
        for _ in range(9):
            node.append(replica, VALUE)
        await eventually(lambda: replica.log.log_start_offset == 8)
        node.restart()
        assert node.replica(replica.stream).log.log_start_offset == 8


@on_virtual_loop
async def test_what_was_found_for_a_log_that_was_cut_meanwhile_is_not_done(tmp_path: Path) -> None:
    async with keeping(tmp_path) as node:
        replica = create(node)
        for _ in range(9):
            node.append(replica, VALUE)
        retention, _ = node.replicas._services.listeners.roles
        assert isinstance(retention, Retention)
        late = retention_module._Finding(log_start_offset=8, seal=False, due_us=None)
        seen = retention_module._look(replica)
        replica.log.truncate(4)
        replica.high_watermark = 4
        retention._act(replica, seen, late)
        assert replica.log.log_start_offset == 0


@on_virtual_loop
async def test_streams_without_limits_are_not_even_looked_at(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.open()
    retention = Retention(wall_clock=node.clocks.wall)
    node.begin(Listeners(roles=(retention,)))
    node.create("plain", "plain")
    limited = node.create("limited", "limited", config={"max_bytes": 10})
    assert list(retention._visited) == [limited]
    node.delete(limited)
    assert not retention._visited
    await retention.close()
    replicas.close()


@on_virtual_loop
async def test_a_disk_that_fails_to_remove_takes_the_log_offline_and_no_other(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    async with keeping(tmp_path, disk=disk) as node:
        other = create_other(node)
        replica = create(node, max_messages=1)
        disk.fail("remove", f"{replica.stream.id}/{0:020d}.log", errno.EIO)
        for _ in range(6):
            node.append(replica, VALUE)
        await eventually(lambda: replica.log.offline_reason != "")
        for _ in range(6):
            node.append(other, VALUE)
        await eventually(lambda: other.log.log_start_offset >= 4)


@asynccontextmanager
async def unreadable(folder: Path, error: int) -> AsyncIterator[tuple[Node, Replica, FaultyDisk]]:
    """A node that has to remove five records, the oldest of which the disk does not give."""
    disk = FaultyDisk(OsDisk())
    async with keeping(folder, disk=disk) as node:
        replica = create(node)
        for _ in range(6):
            node.append(replica, VALUE)
        disk.fail("pread", f"{0:020d}.log", error)
        settings = replace(replica.stream.config, max_messages=1)
        replica.stream = replace(replica.stream, config=settings)
        node.replicas._services.listeners.role_changed(replica)
        yield node, replica, disk


@on_virtual_loop
async def test_an_oldest_segment_that_the_disk_refuses_to_read_is_said_inspected_and_removed(
    tmp_path: Path,
) -> None:
    with capture_logs() as logs:
        async with unreadable(tmp_path, errno.EIO) as (node, replica, _):
            await eventually(lambda: replica.log.damage.is_damaged)
            assert replica.log.lost_range == (0, 2)
            node.clocks.advance(RETRY_US)
            await eventually(lambda: replica.log.log_start_offset >= 4)
            await eventually(lambda: files(node, replica)[0] == f"{4:020d}.log")
            path = f"{replica.log.directory}/{0:020d}.log"
    (stuck,) = [line for line in logs if line["event"] == "retention_stuck"]
    assert stuck["file"] == path
    assert os.strerror(errno.EIO) in stuck["reason"]


@on_virtual_loop
async def test_a_segment_that_no_descriptor_is_left_for_is_said_and_not_inspected(
    tmp_path: Path,
) -> None:
    with capture_logs() as logs:
        async with unreadable(tmp_path, errno.EMFILE) as (node, replica, disk):
            await eventually(lambda: bool(logs) and logs[-1]["event"] == "retention_stuck")
            read = disk.count("pread", f"{0:020d}.log")
            await asyncio.sleep(0.05)
            assert disk.count("pread", f"{0:020d}.log") == read, "it waits, and nothing inspects"
            disk.heal()
            node.clocks.advance(RETRY_US)
            await eventually(lambda: replica.log.log_start_offset >= 4)
            assert not replica.log.damage.is_damaged
    assert sum(line["event"] == "retention_stuck" for line in logs) == 1


@on_virtual_loop
async def test_a_segment_that_cannot_be_read_is_not_read_again_for_every_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    find = retention_module._find

    def finding(log: CommitLog, *rest: Any) -> Any:
        read.append(log.log_end_offset)
        return find(log, *rest)

    async with unreadable(tmp_path, errno.EMFILE) as (node, replica, disk):
        monkeypatch.setattr(retention_module, "_find", finding)
        for _ in range(3):
            node.clocks.advance(RETRY_US)
            before = len(read)
            await eventually(lambda before=before: len(read) > before)  # type: ignore[misc]
            for _ in range(5):
                node.append(replica, VALUE)
                await asyncio.sleep(0.01)
            assert len(read) == before + 1
        disk.heal()
        replica.healed()
        await eventually(lambda: replica.log.log_start_offset >= 4)


class EmptyingDisk(FaultyDisk):
    """Empties a log when its first segment is about to be read."""

    replica: Replica | None = None

    def pread(self, path: str, position: int, length: int) -> bytes:
        replica = self.replica
        if replica is not None and path.endswith(f"{0:020d}.log"):
            self.replica = None
            replica.log.reset(6)
        return super().pread(path, position, length)


@on_virtual_loop
async def test_of_a_segment_that_was_removed_while_it_was_read_nothing_is_said(
    tmp_path: Path,
) -> None:
    disk = EmptyingDisk(OsDisk())
    with capture_logs() as logs:
        async with keeping(tmp_path, disk=disk) as node:
            disk.replica = replica = create(node, max_messages=1)
            for _ in range(6):
                node.append(replica, VALUE)
            await eventually(lambda: replica.log.log_start_offset == 6)
            await asyncio.sleep(0.05)
    assert not [line for line in logs if line["event"] == "retention_stuck"]


def test_segments_are_sealed_as_limits_need_and_as_the_user_says() -> None:
    base = LogConfig(segment_bytes=1 << 28)

    def config(**settings: Any) -> LogConfig:
        return log_config_for(base, StreamSettings.with_defaults(1, **settings))

    assert config() == base
    assert config(max_bytes=8 << 20).segment_bytes == 1 << 20
    assert config(max_bytes=10).segment_bytes == 64 * 1024
    assert config(max_bytes=10, segment_bytes=1 << 20).segment_bytes == 1 << 20
    assert config(max_age_us=HOUR).segment_age_us == HOUR // 8
    assert config(max_age_us=HOUR, compact=True).segment_age_us == HOUR // 8
    assert config(compact=True).segment_age_us == HOUR
    assert config(compact=True, segment_age_us=5 * HOUR).segment_age_us == 5 * HOUR
    assert config(max_messages=80_000).segment_offsets == 10_000
    assert config(max_messages=10).segment_offsets == 1024
