"""Retention on a disk that is so full that it cannot note what it removes, as on file systems that
copy what they change."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from jetstream_server.log.commit_log import LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.replication.drivers import retention as retention_module
from jetstream_server.replication.drivers.retention import Retention
from jetstream_server.replication.listeners import Listeners
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually, on_loop
from tests.support.node import Node

VALUE = bytes(1000)


@pytest.fixture(autouse=True)
def rounds_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention_module, "ROUND_SECONDS", 0.005)


@on_loop
@pytest.mark.parametrize(
    ("operation", "path_ends"), [("write", ".offsets"), ("fsync", ".offsets"), ("remove", ".log")]
)
async def test_segments_that_no_room_was_left_to_remove_are_removed_later(
    tmp_path: Path, operation: str, path_ends: str
) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk, segment_bytes=2500)
    replicas = node.open()
    retention = Retention(replicas, wall_clock=node.clocks.wall)
    node.begin(Listeners(roles=(retention,)))
    replica = node.create(config={"max_messages": 1})
    replica.log.configure(LogConfig(segment_bytes=2500))
    folder = node.folder / str(replica.stream.id)
    for _ in range(6):
        node.append(replica, VALUE)
    disk.fail(operation, path_ends, errno.ENOSPC)
    retention.start()
    try:
        await eventually(lambda: replica.log.log_start_offset == 4)
        tried = disk.count(operation, path_ends)
        await eventually(lambda: disk.count(operation, path_ends) > tried)
        assert len(list(folder.glob("*.log"))) == 3
        disk.heal()
        await eventually(lambda: len(list(folder.glob("*.log"))) == 1)
        await eventually(lambda: not replica.log.compaction.waits_for_removals)
        assert replica.log.offline_reason == ""
        tried = disk.count("fsync")
        await asyncio.sleep(0.05)
        assert disk.count("fsync") == tried, "once is enough"
    finally:
        await retention.close()
        replicas.close()


@on_loop
async def test_a_checkpoint_that_finds_no_room_is_not_tried_again_and_again(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk, segment_bytes=2500)
    replicas = node.open()
    retention = Retention(replicas, wall_clock=node.clocks.wall)
    node.begin(Listeners(roles=(retention,)))
    replica = node.create(config={"max_messages": 1})
    replica.log.configure(LogConfig(segment_bytes=2500))
    for _ in range(6):
        node.append(replica, VALUE)
    disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    retention.start()
    try:
        await eventually(lambda: len(list(node.folder.glob("*/*.log"))) == 1)
        await asyncio.sleep(0.05)
        tried = disk.count("write_atomic", "checkpoint")
        await asyncio.sleep(0.05)
        assert disk.count("write_atomic", "checkpoint") == tried
    finally:
        await retention.close()
        replicas.close()
