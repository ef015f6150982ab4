"""How suspicions are handled: the node reads its own file, and marks the damage that it finds."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    RecordsDamagedError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.inspection import BadRange, Inspected
from jetstream_server.replication.drivers import healing
from jetstream_server.replication.drivers.healing import Healing
from jetstream_server.replication.drivers.scrub import Scrub
from jetstream_server.replication.drivers.segment_repair import SegmentRepair
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.grpc.digests import read_checked
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk
from tests.support.loops import on_loop
from tests.support.node import Node, read_values
from tests.support.rot import rot


class NoRepair:
    async def repair(self, replica: Replica, base_offset: int) -> int:
        return 0

    async def close(self) -> None: ...


@asynccontextmanager
async def healed(
    tmp_path: Path, disk: Disk | None = None, *, is_restarted: bool = False
) -> AsyncIterator[tuple[Healing, Replica, Path]]:
    """A node with a stream of several segments, the first of them sealed. is_restarted: after a
    clean stop, so that no index is in memory."""
    node = Node(tmp_path / "streams", segment_bytes=2000, disk=disk)
    stream = _filled(node).stream
    if is_restarted:
        node.replicas.close()
        node.cluster.register(0)
        node.open(clean=True)
    replicas = node.replicas
    healing_ = Healing(cast(SegmentRepair, NoRepair()), node.disk, ThreadPoolExecutor(1))
    node.begin(Listeners(roles=(healing_,), healer=healing_))
    replica = node.replica(stream)
    healing_.start()
    try:
        yield healing_, replica, sorted((tmp_path / "streams").rglob("*.log"))[0]
    finally:
        await healing_.close()
        replicas.close()


def _filled(node: Node) -> Replica:
    node.start()
    replica = node.create()
    for number in range(40):
        node.append(replica, b"value %d" % number)
    return replica


async def check_a_word_alone_marks_nothing(tmp_path: Path) -> None:
    async with healed(tmp_path) as (healing_, replica, _):
        for offset in (0, 3, 17, 39, 40, 1 << 60):
            await healing_.examined(replica, offset)
        healing_.suspect(replica, 5, whole=True)
        await healing_.examined(replica, 6)
        assert not replica.log.damage.is_damaged
        assert replica.log.lost_range is None
        assert healing_.ranges_found == 0


@on_loop
async def test_a_word_alone_marks_nothing(tmp_path: Path) -> None:
    await check_a_word_alone_marks_nothing(tmp_path)


@on_loop
async def test_mutant_that_believes_a_word_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def believe(disk: object, seen: Inspected, *rest: int) -> list[BadRange]:
        return [BadRange(seen.base_offset, seen.base_offset, seen.base_offset + 1, 0, 8, "hearsay")]

    monkeypatch.setattr(healing, "inspect", believe)
    monkeypatch.setattr(healing, "inspect_at", believe)
    with pytest.raises(AssertionError):
        await check_a_word_alone_marks_nothing(tmp_path)


@on_loop
async def test_what_is_bad_is_marked_before_whoever_reported_it_is_answered(
    tmp_path: Path,
) -> None:
    async with healed(tmp_path) as (healing_, replica, segment):
        bad = rot(segment)
        await healing_.examined(replica, bad.base_offset)
        assert replica.log.lost_range == (bad.base_offset, bad.next_offset)
        with pytest.raises(RecordsDamagedError, match="no other replica") as told:
            replica.read(bad.base_offset, 1 << 20)
        assert not told.value.retriable
        assert (told.value.start_offset, told.value.end_offset) == replica.log.lost_range
        after = read_values(replica, bad.next_offset)
        assert after[0] == b"value %d" % bad.next_offset
        assert healing_.ranges_found == 1


@on_loop
async def test_a_read_that_fails_is_reported_and_is_to_be_tried_again(tmp_path: Path) -> None:
    async with healed(tmp_path) as (healing_, replica, segment):
        bad = rot(segment, in_header=True)
        suspected = asyncio.Event()
        suspect = healing_.suspect

        def noting(replica: Replica, offset: int, *rest: Any, **named: Any) -> None:
            suspect(replica, offset, *rest, **named)
            suspected.set()

        healing_.suspect = noting  # type: ignore[method-assign]
        with pytest.raises(UnavailableError, match="is inspecting its file"):
            replica.read(bad.base_offset, 1 << 20)
        await healing_.examined(replica, bad.base_offset)
        assert suspected.is_set()
        assert replica.log.lost_range is not None


@on_loop
async def test_without_a_descriptor_left_nothing_is_suspected_and_nothing_found_bad(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    async with healed(tmp_path, disk) as (healing_, replica, segment):
        found = replica.read(3, 1)
        assert found is not None
        disk.fail("pread", ".log", errno.EMFILE)
        with pytest.raises(UnavailableError, match="no file descriptor left"):
            replica.read(3, 1)
        with pytest.raises(StorageError):
            await read_checked(replica, 39, 1 << 20)
        assert not healing_._suspicions
        with ThreadPoolExecutor(1) as thread:
            scrub = Scrub(cast(ReplicaManager, [replica]), disk, thread, bytes_per_second=1 << 30)
            await scrub._scrub(replica, replica.log.damage.segments()[0])
        assert not healing_._suspicions
        healing_.suspect(replica, 3, whole=True)
        await healing_.examined(replica, 3)
        assert not replica.log.damage.is_damaged

        disk.heal()
        bad = rot(segment)
        await healing_.examined(replica, bad.base_offset)
        assert replica.log.lost_range == (bad.base_offset, bad.next_offset)


@on_loop
async def test_an_append_that_cannot_read_the_end_of_its_log_has_it_inspected(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    async with healed(tmp_path, disk, is_restarted=True) as (healing_, replica, _):
        last = replica.log.damage.segments()[-1]
        disk.fail("read_file", last.index_path, errno.EIO)
        disk.fail("pread", last.path, errno.EIO)
        with pytest.raises(UnavailableError, match=r"nothing was stored.* is inspecting its file"):
            replica.append(batch(b"refused"))
        assert not replica.log.offline_reason
        await healing_.examined(replica, replica.log.log_end_offset)
        assert replica.log.lost_range == (last.base_offset, 40)
        assert replica.append(batch(b"stored")) == 40


@on_loop
async def test_an_append_without_a_descriptor_left_has_nothing_inspected(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    async with healed(tmp_path, disk, is_restarted=True) as (healing_, replica, _):
        disk.fail("read_file", ".index", errno.EMFILE)
        disk.fail("pread", ".log", errno.EMFILE)
        with pytest.raises(UnavailableError, match=r"nothing was stored.* no file descriptor left"):
            replica.append(batch(b"refused"))
        assert not healing_._suspicions
        disk.heal()
        assert replica.append(batch(b"stored")) == 40


@on_loop
async def test_marks_that_cannot_be_checked_for_lack_of_a_descriptor_are_checked_later(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    async with healed(tmp_path, disk) as (healing_, replica, segment):
        bad = rot(segment)
        await healing_.examined(replica, bad.base_offset)
        disk.fail("pread", ".log", errno.EMFILE)
        healing_._inspected.clear()
        await healing_._repair_replica(replica)
        assert replica.log.lost_range == (bad.base_offset, bad.next_offset)
        assert replica not in healing_._inspected


@on_loop
async def test_what_is_bad_at_the_end_of_a_log_is_sealed_off(tmp_path: Path) -> None:
    """So that a start does not have to look at it to know where the log ends."""
    async with healed(tmp_path) as (healing_, replica, _):
        last = sorted(tmp_path.rglob("*.log"))[-1]
        bad = rot(last, at=0.0)
        await healing_.examined(replica, bad.base_offset)
        assert replica.log.lost_range == (bad.base_offset, bad.next_offset)
        assert sorted(tmp_path.rglob("*.log"))[-1] != last


@on_loop
async def test_what_retention_removes_is_not_repaired(tmp_path: Path) -> None:
    """Its epochs may be forgotten: the true records would seem to contradict the log."""
    async with healed(tmp_path) as (healing_, replica, _):
        asked = []

        async def repair(_: Replica, base_offset: int) -> int:
            asked.append(base_offset)
            raise UnavailableError("nobody has it")

        healing_._repair.repair = repair  # type: ignore[method-assign]
        for each in sorted(tmp_path.rglob("*.log"))[:2]:
            await healing_.examined(replica, rot(each).base_offset)
        replica.log.flush()
        first, second = replica.log.damage.segments()[:2]
        replica.stream = replace(replica.stream, replicas=(NodeId(0), NodeId(1)))
        replica.log.log_start_offset = second.base_offset
        await healing_._repair_replica(replica)
        assert asked == [second.base_offset]
        assert {bad.base_offset for bad in replica.log.damage.ranges} == {
            first.base_offset, second.base_offset
        }  # fmt: skip


@on_loop
async def test_a_segment_that_is_cut_while_it_is_inspected_is_inspected_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a log whose marks are unknown would count as inspected."""
    async with healed(tmp_path) as (healing_, replica, _):
        log = replica.log
        last = log.damage.segments()[-1]
        bad = rot(sorted(tmp_path.rglob("*.log"))[-1], at=0.0)
        log.damage.is_unknown = True

        def inspect(disk: Disk, seen: Inspected) -> list[BadRange]:
            found = inspected(disk, seen)
            if seen.base_offset == last.base_offset and not last.cuts:
                log.truncate(log.log_end_offset - 1)
            return found

        inspected = healing.inspect
        monkeypatch.setattr(healing, "inspect", inspect)
        await healing_._repair_replica(replica)
        assert log.lost_range == (bad.base_offset, bad.next_offset)


@on_loop
async def test_what_nobody_else_has_keeps_no_later_segment_from_its_repair(tmp_path: Path) -> None:
    async with healed(tmp_path) as (healing_, replica, _):
        asked = []

        async def repair(_: Replica, base_offset: int) -> int:
            asked.append(base_offset)
            raise UnavailableError(f"nobody has offset {base_offset}")

        healing_._repair.repair = repair  # type: ignore[method-assign]
        for each in sorted(tmp_path.rglob("*.log"))[:3]:
            await healing_.examined(replica, rot(each).base_offset)
        replica.stream = replace(replica.stream, replicas=(NodeId(0), NodeId(1)))
        first, second, third = (bad.base_offset for bad in replica.log.damage.ranges)
        for _ in range(4):
            await healing_._repair_replica(replica)
        assert asked == [first, second, third, first]
