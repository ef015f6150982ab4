"""A node that has no file descriptor left for a while goes on by itself once it has some."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from jetstream_protocol.errors import UnavailableError
from jetstream_server.disk_errors import NoDescriptorError
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.segment import LogSlice
from jetstream_server.replication import replica as replica_module
from jetstream_server.replication.core.messages import Diverging, LeaderSnapshot, Records
from tests.support.log_batches import stamped, values_of
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually
from tests.support.node import Node, read_values
from tests.support.virtual_time import on_virtual_loop
from tests.unit.replication.test_failed_logs import Bench
from tests.unit.replication.test_retention import VALUE, create, files, keeping


@on_virtual_loop
async def test_a_flush_that_lacks_descriptors_is_made_later_and_commits_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "FLUSH_AGAIN_SECONDS", 0.005)
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    replicas = node.start()
    replica = node.create()
    node.append(replica, b"a")
    disk.fail("fsync", ".log", errno.EMFILE)
    node.append(replica, b"b")
    for _ in range(3):
        await eventually(lambda: bool(node.flushes.waiting))
        node.flushes.run()
    assert (replica.log.offline_reason, replica.high_watermark) == ("", 1)
    assert replica.leadership is not None
    disk.heal()
    await eventually(lambda: bool(node.flushes.waiting))
    node.flushes.run()
    assert replica.high_watermark == 2
    assert read_values(replica) == [b"a", b"b"]
    replicas.close()


@on_virtual_loop
async def test_a_flush_that_lacks_descriptors_is_not_made_for_a_stream_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_module, "FLUSH_AGAIN_SECONDS", 0.005)
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    node.start()
    gone, other = node.create(), node.create("other", "other")
    disk.fail("fsync", ".log", errno.EMFILE)
    for each in (gone, other):
        node.append(each, b"a", flush=False)
    node.flushes.run()
    node.delete(gone)
    await eventually(lambda: bool(node.flushes.waiting))
    assert list(node.flushes.waiting) == [other.log]


@on_virtual_loop
async def test_an_append_that_lacks_descriptors_can_be_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    replicas = node.start()
    replica = node.create()
    node.append(replica, b"a")
    disk.fail("write", ".log", errno.ENFILE)
    with pytest.raises(UnavailableError, match=r"nothing was stored.*no file descriptor left"):
        node.append(replica, b"b")
    disk.heal()
    assert node.append(replica, b"b") == 1
    assert read_values(replica) == [b"a", b"b"]
    replicas.close()


@on_virtual_loop
async def test_segments_whose_removal_lacks_descriptors_are_removed_later(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    async with keeping(tmp_path, disk=disk) as node:
        replica = create(node, max_messages=3)
        for _ in range(3):
            node.append(replica, VALUE)
        disk.fail("fsync", ".offsets", errno.EMFILE)
        before = disk.count("fsync", ".offsets")
        for _ in range(9):
            node.append(replica, VALUE)
        await eventually(lambda: disk.count("fsync", ".offsets") > before + 2)
        start = replica.log.log_start_offset
        assert start > 0
        assert files(node, replica)[0] == f"{0:020d}.log"
        disk.heal()
        await eventually(lambda: files(node, replica)[0] == f"{start:020d}.log")
        assert replica.log.offline_reason == ""


@on_virtual_loop
async def test_a_follower_whose_cut_lacks_descriptors_finishes_it_before_it_appends(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False, values=3)
    replica, now_us = bench.replica, bench.node.clocks.monotonic()
    assert replica.following is not None
    replica.high_watermark = 3  # An unclean election has lost committed records.
    snapshot = LeaderSnapshot(
        high_watermark=1, log_start_offset=0, stream_epoch=replica.stream.stream_epoch
    )
    diverging = Diverging(replica.following.position(), snapshot, 0, 1)
    bench.disk.fail("truncate", ".log", errno.EMFILE)
    with pytest.raises(NoDescriptorError):
        replica.accept(diverging, b"", now_us)
    assert (replica.log.log_end_offset, replica.high_watermark) == (1, 1)
    data = stamped(1, b"new", epoch=replica.stream.leader_epoch)
    records = Records(replica.following.position(), snapshot, LogSlice("f", 0, 8, 1, 2))
    with pytest.raises(NoDescriptorError):
        replica.accept(records, data, now_us)
    bench.disk.heal()
    replica.accept(records, data, now_us)
    assert (replica.log.offline_reason, replica.has_failed) == ("", False)
    assert values_of(replica.log) == [b"0", b"new"]
    bench.replicas.close()
