"""What becomes of the folders of streams that the metadata does not know."""

import errno
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.types import NodeId
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.data_folder import DataFolder
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.changes import StreamChanged, StreamCreated, StreamForgotten
from jetstream_server.metadata.state.commands import DeleteStream
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.found_logs import open_log
from jetstream_server.replication.unknown_streams import UnknownStreams
from tests.support.clocks import WALL_US, FakeClocks
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk
from tests.unit.metadata.cluster import Cluster

WEEK_US = 7 * 86_400_000_000
A_WEEK_AGO = WALL_US - WEEK_US
"""When something was set aside that may be deleted by now."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    disk = OsDisk()
    folder = DataFolder.open(disk, str(tmp_path), node_id=0)
    yield folder
    folder.close()
    disk.close()


def names(folder: DataFolder, where: str) -> list[str]:
    return sorted(os.listdir(Path(folder.path, where)))


def test_what_is_missing_from_the_metadata_is_set_aside_and_never_deleted(
    folder: DataFolder,
) -> None:
    Path(folder.path, "streams", "99").mkdir()
    Path(folder.path, "quarantine", f"98.{A_WEEK_AGO}").mkdir()
    UnknownStreams(folder, Cluster(nodes=1).registry, FakeClocks().wall, lost_through=0).sort_out(
        ""
    )
    assert names(folder, "streams") == []
    assert [name.split(".")[0] for name in names(folder, "quarantine")] == ["98", "99"]


def test_what_the_metadata_says_was_deleted_is_deleted_a_week_after_it_was_set_aside(
    folder: DataFolder,
) -> None:
    cluster = Cluster(nodes=1)
    stream = cluster.create(replicas=(0,))
    cluster.do(DeleteStream(stream_id=stream.id))
    Path(folder.path, "streams", str(stream.id)).mkdir()
    for at_us in (A_WEEK_AGO, A_WEEK_AGO + 1):
        Path(folder.path, "quarantine", f"{stream.id}.{at_us}").mkdir()
    UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0).sort_out("")
    assert names(folder, "streams") == []
    assert names(folder, "quarantine") == [
        f"{stream.id}.{A_WEEK_AGO + 1}",
        f"{stream.id}.{WALL_US}",
    ]


def test_a_start_that_found_something_missing_sets_nothing_aside(folder: DataFolder) -> None:
    Path(folder.path, "streams", "99").mkdir()
    UnknownStreams(folder, Cluster(nodes=1).registry, FakeClocks().wall, lost_through=0).sort_out(
        "4 bytes were cut off the journal"
    )
    assert names(folder, "streams") == ["99"]
    assert names(folder, "quarantine") == []


@pytest.mark.parametrize("live", [False, True])
def test_what_comes_back_is_taken_back(folder: DataFolder, live: bool) -> None:
    cluster = Cluster(nodes=1)
    stream = cluster.create(replicas=(0,))
    set_aside = max(stream.created_at_us, WALL_US)
    Path(folder.path, "quarantine", f"{stream.id}.{set_aside}").mkdir()
    unknown = UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0)
    if live:
        unknown.apply(StreamCreated(stream))
    else:
        unknown.sort_out("")
    assert names(folder, "streams") == [str(stream.id)]
    assert names(folder, "quarantine") == []


def test_a_stream_that_comes_back_to_a_running_node_finds_nothing_of_before(
    folder: DataFolder,
) -> None:
    """Files that could not be deleted, or that a start left where they were."""
    cluster = Cluster(nodes=2)
    here = cluster.create(replicas=(0, 1))
    elsewhere = replace(here, replicas=(NodeId(1),))
    Path(folder.path, "streams", str(here.id)).mkdir()
    unknown = UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0)
    unknown.apply(StreamChanged(here, replace(here, stream_epoch=7)))
    unknown.apply(StreamChanged(here, elsewhere))
    assert names(folder, "streams") == [str(here.id)], "its log may be open"
    unknown.apply(StreamChanged(elsewhere, here))
    assert names(folder, "streams") == []
    assert names(folder, "quarantine") == [f"{here.id}.{WALL_US}"]
    unknown.apply(StreamChanged(elsewhere, here))


@pytest.mark.parametrize("lost", ["folder", "folder of all streams"])
def test_what_was_set_aside_does_not_pass_for_the_newer_copy_that_the_disk_lost(
    tmp_path: Path, lost: str
) -> None:
    """The stream moved away while the node was down, and back while it ran."""
    disk = OsDisk()
    folder = DataFolder.open(disk, str(tmp_path), node_id=0)
    cluster = Cluster(nodes=2)
    here = cluster.create(replicas=(0, 1))
    elsewhere = replace(here, replicas=(NodeId(1),))
    record = RunRecord(boot_id="boot")

    def opened() -> CommitLog:
        directory = folder.stream_directory(here.id)
        log, _ = open_log(
            disk, here, directory, LogConfig(), record, clean=True, is_only_replica=False
        )
        return log

    def run(records: int) -> None:
        log = opened()
        for _ in range(records):
            log.append(batch(b"a"), leader_epoch=1, timestamp_us=WALL_US)
        log.close(clean=True)

    def unknown() -> UnknownStreams:
        wall = FakeClocks().wall
        return UnknownStreams(folder, cluster.registry, wall, lost_through=record.lost_through)

    run(1)
    cluster.registry.streams[here.id] = elsewhere
    unknown().sort_out("")
    cluster.registry.streams[here.id] = here
    unknown().apply(StreamChanged(elsewhere, here))
    run(5)
    if lost == "folder":
        shutil.rmtree(folder.stream_directory(here.id))
    else:
        shutil.rmtree(tmp_path / "streams")
        (tmp_path / "streams").mkdir()
        record = record.streams_lost(cluster.registry.revision)
    unknown().sort_out("")
    log = opened()
    assert log.log_end_offset == 0
    assert "reached to offset 5" in log.offline_reason or "was lost" in log.offline_reason
    assert names(folder, "quarantine") == [f"{here.id}.{WALL_US}", f"{here.id}.{WALL_US}.offsets"]
    folder.close()
    disk.close()


@pytest.mark.parametrize("live", [False, True])
def test_what_cannot_be_taken_back_is_not_to_be_opened_and_keeps_nothing_else_from_it(
    tmp_path: Path, live: bool
) -> None:
    disk = FaultyDisk(OsDisk())
    folder = DataFolder.open(disk, str(tmp_path), node_id=0)
    cluster = Cluster(nodes=1)
    streams = [cluster.create(name, name, replicas=(0,)) for name in ("bad", "good", "new")]
    bad, good, _ = streams
    for stream in (bad, good):
        (tmp_path / "quarantine" / f"{stream.id}.{max(stream.created_at_us, WALL_US)}").mkdir()

    def settle() -> None:
        unknown = UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0)
        if live:
            for stream in streams:
                unknown.apply(StreamCreated(stream))
        else:
            unknown.sort_out("")

    disk.fail("rename", f"/{bad.id}.{max(bad.created_at_us, WALL_US)}", errno.EIO)
    settle()
    disk.heal()
    assert list(folder.unsettled) == [bad.id]
    assert f"taking stream {bad.id} back: " in folder.unsettled[bad.id].message
    assert str(good.id) in names(folder, "streams")
    settle()
    assert not folder.unsettled
    assert names(folder, "streams") == [str(bad.id), str(good.id)]
    folder.close()


def test_a_stream_whose_remains_cannot_be_set_aside_is_not_to_be_opened(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    folder = DataFolder.open(disk, str(tmp_path), node_id=0)
    cluster = Cluster(nodes=2)
    here = cluster.create(replicas=(0, 1))
    elsewhere = replace(here, replicas=(NodeId(1),))
    (tmp_path / "streams" / str(here.id)).mkdir()
    unknown = UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0)
    disk.fail("rename", "", errno.EIO)
    unknown.apply(StreamChanged(elsewhere, here))
    assert list(folder.unsettled) == [here.id]
    disk.heal()
    unknown.apply(StreamChanged(elsewhere, here))
    assert not folder.unsettled
    folder.close()


@pytest.mark.parametrize(("isr", "is_deleted"), [((0, 1), True), ((1,), True), ((0,), False)])
def test_an_older_copy_is_deleted_after_a_week_if_another_node_is_in_sync(
    folder: DataFolder, isr: tuple[int, ...], is_deleted: bool
) -> None:
    cluster = Cluster(nodes=2)
    stream = cluster.create(replicas=(0, 1))
    cluster.registry.streams[stream.id] = replace(stream, isr=tuple(map(NodeId, isr)))
    Path(folder.path, "streams", str(stream.id)).mkdir()
    asides = [f"{stream.id}.{A_WEEK_AGO}", f"{stream.id}.{A_WEEK_AGO + 1}"]
    for name in asides:
        Path(folder.path, "quarantine", name).mkdir()
    UnknownStreams(folder, cluster.registry, FakeClocks().wall, lost_through=0).sort_out("")
    assert names(folder, "streams") == [str(stream.id)]
    assert names(folder, "quarantine") == asides[is_deleted:]


def test_deletions_are_known_after_a_snapshot_and_what_is_only_missing_is_no_deletion() -> None:
    cluster = Cluster(nodes=1)
    deleted = cluster.create("deleted", "deleted", replicas=(0,))
    before = cluster.registry.snapshot()
    cluster.do(DeleteStream(stream_id=deleted.id))
    follower = Cluster(nodes=1)
    missing = follower.create("missing", "missing", replicas=(0,))
    follower.registry.take_changes()
    follower.registry.restore(cluster.registry.snapshot())
    assert list(follower.registry.deleted) == [deleted.id]
    # The same id in both, as another stream: it is that of the deletion.
    assert missing.id == deleted.id
    older = Cluster(nodes=1)
    older.registry.restore(before)
    stranger = older.create("stranger", "stranger", replicas=(0,))
    older.registry.take_changes()
    older.registry.restore(before)
    assert older.registry.take_changes() == [StreamForgotten(stranger)]
    copy = Cluster().registry
    copy.restore(cluster.registry.snapshot())
    mirror = Cluster().registry
    mirror.follow(copy.take_changes(), copy.revision)
    assert mirror.deleted == cluster.registry.deleted
