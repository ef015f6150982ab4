"""Retention on a disk that is so full that it cannot note what it removes, as on file systems that
copy what they change."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from jetstream_server.log.disk import OsDisk
from jetstream_server.replication.drivers import retention as retention_module
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually
from tests.support.virtual_time import on_virtual_loop
from tests.unit.replication.test_retention import VALUE, create, files, keeping


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "ROUND_SECONDS", 0.005)


@on_virtual_loop
@pytest.mark.parametrize(
    ("operation", "path_ends"), [("write", ".offsets"), ("fsync", ".offsets"), ("remove", ".log")]
)
async def test_segments_that_no_room_was_left_to_remove_are_removed_later(
    tmp_path: Path, operation: str, path_ends: str
) -> None:
    disk = FaultyDisk(OsDisk())
    async with keeping(tmp_path, disk=disk) as node:
        replica = create(node, max_messages=1)
        for _ in range(6):
            node.append(replica, VALUE)
        disk.fail(operation, path_ends, errno.ENOSPC)
        await eventually(lambda: replica.log.log_start_offset == 4)
        tried = disk.count(operation, path_ends)
        await eventually(lambda: disk.count(operation, path_ends) > tried)
        assert len(files(node, replica)) == 3
        disk.heal()
        await eventually(lambda: len(files(node, replica)) == 1)
        await eventually(lambda: not replica.log.compaction.waits_for_removals)
        assert replica.log.offline_reason == ""
        tried = disk.count("fsync")
        await asyncio.sleep(0.05)
        assert disk.count("fsync") == tried, "once is enough"


@on_virtual_loop
async def test_a_checkpoint_that_finds_no_room_is_not_tried_again_and_again(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    async with keeping(tmp_path, disk=disk) as node:
        replica = create(node, max_messages=1)
        for _ in range(6):
            node.append(replica, VALUE)
        disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
        await eventually(lambda: len(files(node, replica)) == 1)
        await asyncio.sleep(0.05)
        tried = disk.count("write_atomic", "checkpoint")
        await asyncio.sleep(0.05)
        assert disk.count("write_atomic", "checkpoint") == tried
