"""All replicas of a node: each opened, led, flushed and closed without harm to another."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    InvalidRequestError,
    JetstreamError,
    NotReplicaError,
    StorageError,
    StorageFullError,
    StreamNotFoundError,
    UnavailableError,
)
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.types import NodeId
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.changes import (
    Change,
    NodeChanged,
    StreamChanged,
    StreamCreated,
    StreamForgotten,
)
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    AlterStream,
    FinishReassignment,
    ReassignStream,
    SetCluster,
    TransferLeader,
)
from jetstream_server.replication import replica_manager as replicas_module
from jetstream_server.replication.listeners import Listeners, ReplicaListener, RoleListener
from jetstream_server.replication.replica import Replica
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually, on_loop
from tests.support.node import Node, read_values
from tests.support.virtual_time import on_virtual_loop


class Listener(ReplicaListener):
    """Notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def leading(self, replica: Replica) -> None:
        self.heard.append(("leading", replica.stream.name))
        replica.on_commit = self._committed

    def stopped_leading(self, replica: Replica) -> None:
        self.heard.append(("stopped", replica.stream.name))

    def _committed(self, replica: Replica) -> None:
        self.heard.append(("committed", replica.stream.name))

    def failed(self, replica: Replica, error: StorageError) -> None:
        self.heard.append(("failed", replica.stream.name))


@on_virtual_loop
async def test_a_stream_lives_from_its_creation_to_its_deletion(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    listener = Listener()
    replicas = node.start(listener)
    replica = node.create("orders")
    node.append(replica, b"a")
    folder = tmp_path / "streams" / str(replica.stream.id)
    assert folder.exists()
    node.delete(replica)
    assert not folder.exists()
    assert len(replicas) == 0
    assert listener.heard == [("leading", "orders"), ("committed", "orders"), ("stopped", "orders")]


@on_virtual_loop
async def test_changes_that_come_at_once_give_no_role_back_that_is_over(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams", nodes=3)
    listener = Listener()
    node.start(listener)
    replica = node.create(replicas=(0, 1, 2))
    node.cluster.do(TransferLeader(stream_id=replica.stream.id, leader=1))
    node.apply()
    listener.heard.clear()
    changes: list[Change] = []
    for leader in (0, 2):
        node.cluster.do(TransferLeader(stream_id=replica.stream.id, leader=leader))
        changes += node.cluster.changes
    known = node.cluster.registry.nodes[NodeId(1)]
    for change in (NodeChanged(known, known), *changes):
        node.replicas.apply(change)
    assert replica.stream == node.cluster.now(replica.stream)
    assert listener.heard == []


@on_virtual_loop
async def test_every_stream_is_there_after_a_restart(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    streams = [node.create(f"s{index}", f"s{index}").stream for index in range(3)]
    for stream in streams:
        node.append(node.replica(stream), stream.name.encode())
    node.restart()
    for stream in streams:
        assert read_values(node.replica(stream)) == [stream.name.encode()]


@on_virtual_loop
async def test_a_log_that_cannot_be_opened_takes_one_stream_offline_and_no_other(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    node.start()
    good, bad = node.create("good", "good").stream, node.create("bad", "bad").stream
    for stream in (good, bad):
        node.append(node.replica(stream), b"a")
    disk.fail("list_directory", f"/{bad.id}", errno.EIO)
    node.restart()
    replica = node.replica(bad)
    assert "Input/output error" in replica.log.offline_reason
    for call in (lambda: replica.read(0, 1 << 20), lambda: node.append(replica, b"b")):
        with pytest.raises(StorageError, match="Input/output error"):
            call()
    node.append(node.replica(good), b"b")
    assert read_values(node.replica(good)) == [b"a", b"b"]


@on_virtual_loop
@pytest.mark.parametrize("replicas", [(0,), (0, 1)])
@pytest.mark.parametrize("live", [False, True])
async def test_a_stream_whose_folder_is_not_in_its_place_is_offline_until_it_is(
    tmp_path: Path, replicas: tuple[int, ...], live: bool
) -> None:
    """An empty log in its place would be trusted, and could be elected."""
    node = Node(tmp_path / "streams", nodes=2)
    node.start()
    other = node.create("other", "other").stream
    stream = node.create(replicas=replicas).stream
    node.unsettled[stream.id] = StorageError("taking stream 5 back: Input/output error")
    if live:
        node.replicas.apply(StreamForgotten(stream))
        node.replicas.apply(StreamCreated(stream))
    else:
        node.restart()
    replica = node.replica(stream)
    assert "taking stream 5 back" in replica.log.offline_reason
    assert replica.needs_rebuild == (len(replicas) > 1)
    with pytest.raises(StorageError, match="taking stream 5 back"):
        replica.read(0, 1 << 20)
    assert not node.replica(other).log.offline_reason
    if len(replicas) > 1:
        assert replica.leadership is None
    else:
        with pytest.raises(StorageError, match="taking stream 5 back"):
            node.append(replica, b"a")
    node.unsettled.clear()
    node.restart()
    assert not node.replica(stream).log.offline_reason


@on_virtual_loop
async def test_a_log_newer_than_the_metadata_takes_one_stream_offline_and_keeps_its_records(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    stream = node.create().stream
    node.append(node.replica(stream), b"a")
    replica = node.replica(stream)
    replica.log.start_epoch(99)
    replica.log.append(batch(b"b"), leader_epoch=99, timestamp_us=0)
    node.restart()
    replica = node.replica(stream)
    assert "leader epoch 99" in replica.log.offline_reason
    assert read_values(replica) == [b"a", b"b"]
    with pytest.raises(StorageError):
        node.append(replica, b"c")


@on_virtual_loop
async def test_of_a_damaged_log_all_is_read_that_lies_before_the_damage(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    stream = node.create(config={"flush": "group"}).stream
    node.append(node.replica(stream), b"flushed")
    node.restart()
    folder = tmp_path / "streams" / str(stream.id)
    checkpoint = (folder / "checkpoint").read_bytes()
    for value in (b"after it", b"damaged", b"later"):
        node.append(node.replica(stream), value)
    node.replicas.close()
    # As after a power failure: what is on record is older, and a block went bad.
    folder.with_name(f"{stream.id}.offsets").unlink()
    (folder / "checkpoint").write_bytes(checkpoint)
    file = folder / f"{0:020d}.log"
    file.write_bytes(file.read_bytes().replace(b"damaged", b"Damaged"))
    node.cluster.register(0)
    node.start()
    replica = node.replica(stream)
    assert replica.log.offline_reason
    assert replica.log.flushed_offset < replica.log.log_end_offset
    assert read_values(replica) == [b"flushed", b"after it"]
    assert replica.leadership is not None
    assert replica.leadership.snapshot.high_watermark == replica.high_watermark == 2


@on_virtual_loop
async def test_a_stream_whose_files_cannot_be_deleted_is_gone_all_the_same(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.start()
    replica = node.create()
    node.append(replica, b"a")
    (tmp_path / "streams" / str(replica.stream.id) / "a folder").mkdir()
    node.delete(replica)
    assert len(replicas) == 0


class WritingDisk(OsDisk):
    """A compaction writes a file to a log's folder whenever another one is removed from it, until
    it is ended."""

    is_ended = True

    def remove(self, path: str) -> None:
        super().remove(path)
        if not self.is_ended:
            Path(path).with_name(f"{0:020d}.log.token.tmp").touch()


class Ending(RoleListener):
    """Ends the compaction of a log that is closed."""

    def __init__(self, disk: WritingDisk) -> None:
        self._disk = disk

    def role_changed(self, replica: Replica) -> None:
        self._disk.is_ended = self._disk.is_ended or replica.closed


@on_virtual_loop
async def test_what_writes_to_a_log_s_folder_is_ended_before_the_folder_is_deleted(
    tmp_path: Path,
) -> None:
    disk = WritingDisk()
    node = Node(tmp_path / "streams", disk=disk)
    node.open()
    node.begin(Listeners(roles=(Ending(disk),)))
    replica = node.create()
    node.append(replica, b"a")
    disk.is_ended = False
    node.delete(replica)
    assert disk.is_ended
    assert not (tmp_path / "streams" / str(replica.stream.id)).exists()


@on_virtual_loop
async def test_below_the_disk_reserve_appends_are_refused_and_reads_go_on(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.start()
    replica = node.create()
    node.append(replica, b"a")
    replicas.refuse_appends("no space")
    with pytest.raises(StorageFullError, match="no space"):
        node.append(replica, b"b")
    assert read_values(replica) == [b"a"]
    replicas.refuse_appends("")
    assert node.append(replica, b"b") == 1


@on_virtual_loop
async def test_a_failed_flush_is_told_to_the_listener_and_commits_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    listener = Listener()
    node = Node(tmp_path / "streams", disk=disk)
    node.start(listener)
    replica = node.create()
    node.append(replica, b"a")
    disk.fail("fsync", ".log", errno.EIO)
    node.append(replica, b"b")
    assert listener.heard[-1] == ("failed", "orders")
    assert replica.high_watermark == 1
    assert "Input/output error" in replica.log.offline_reason


@on_virtual_loop
async def test_interval_flush_syncs_in_rounds_and_only_what_was_appended_to(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.flush_interval_seconds = 0.01
    node.start()
    busy = node.create("busy", "busy", config={"flush": "interval"})
    node.create("idle", "idle", config={"flush": "interval"})
    never = node.create("never", "never", config={"flush": "none"})
    node.append(busy, b"a", flush=False)
    node.append(never, b"a", flush=False)
    await eventually(lambda: bool(node.flushes.waiting))
    assert list(node.flushes.waiting) == [busy.log]
    node.flushes.run()
    assert (busy.log.flushed_offset, never.log.flushed_offset) == (1, 0)
    await asyncio.sleep(0.05)
    assert not node.flushes.waiting


@on_virtual_loop
@pytest.mark.parametrize("flush", ["interval", "group"])
async def test_a_stream_that_is_to_be_flushed_from_now_on_is_flushed_without_another_record(
    tmp_path: Path, flush: str
) -> None:
    node = Node(tmp_path / "streams")
    node.flush_interval_seconds = 0.01
    node.start()
    idle = node.create(config={"flush": "none"})
    node.append(idle, b"a", flush=False)
    epoch = node.cluster.now(idle.stream).stream_epoch
    alter = AlterStream(stream_id=idle.stream.id, stream_epoch=epoch, config={"flush": flush})
    node.cluster.do(alter)
    node.apply()
    await eventually(lambda: bool(node.flushes.waiting))
    node.flushes.run()
    assert idle.log.flushed_offset == 1


@on_virtual_loop
async def test_what_an_idle_stream_left_unflushed_is_flushed_after_the_metadata_forgot_it(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.flush_interval_seconds = 0.01
    node.start()
    stream = node.create(config={"flush": "interval"}).stream
    node.append(node.replica(stream), b"a", flush=False)
    node.replicas.apply(StreamForgotten(stream))
    node.replicas.apply(StreamCreated(stream))
    log = node.replica(stream).log
    assert (log.flushed_offset, log.log_end_offset) == (0, 1)
    await eventually(lambda: bool(node.flushes.waiting))
    node.flushes.run()
    assert log.flushed_offset == 1


@on_virtual_loop
async def test_what_an_earlier_run_left_unflushed_is_flushed_before_anybody_counts_on_it(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    node.start()
    stream = node.create().stream
    node.append(node.replica(stream), b"a", flush=False)
    assert disk.count("fsync", ".log") == 0
    node.cluster.register(0)
    node.start(clean=False)  # As after kill -9: what was written is there, nobody closed it.
    assert disk.count("fsync", ".log") == 2  # Written again and synced, then synced as usual.
    replica = node.replica(stream)
    assert (replica.log.flushed_offset, replica.log.log_end_offset) == (1, 1)
    assert read_values(replica) == [b"a"]


@on_loop
async def test_what_an_earlier_run_left_and_cannot_be_flushed_is_not_believed(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    node.start()
    stream = node.create().stream
    node.append(node.replica(stream), b"a", flush=False)
    disk.fail("fsync", ".log", errno.EIO)
    node.cluster.register(0)
    node.start(clean=False)
    assert "flushing" in node.replica(stream).log.offline_reason


@on_virtual_loop
async def test_an_answer_of_the_flusher_for_a_deleted_stream_is_ignored(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a", flush=False)
    node.delete(replica)
    node.flushes.run()


@on_virtual_loop
async def test_streams_are_found_by_id_name_and_subject(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.start()
    one, two = node.create("same", "one"), node.create("same", "two")
    ref = common_pb2.StreamRef
    assert replicas.resolve(ref(id=one.stream.id)) is one
    assert replicas.resolve(ref(name="same", subject="two")) is two
    with pytest.raises(AmbiguousStreamError):
        replicas.resolve(ref(name="same"))
    with pytest.raises(StreamNotFoundError):
        replicas.resolve(ref(id=1))
    with pytest.raises(UnavailableError, match="has not heard"):
        replicas.resolve(ref(id=1 << 60))
    with pytest.raises(InvalidRequestError):
        replicas.resolve(ref())


@pytest.mark.parametrize("ref", [{"name": "n" * 2000}, {"name": "n", "subject": "s" * 2000}])
def test_a_name_no_stream_can_have_is_refused_without_being_repeated(
    tmp_path: Path, ref: dict[str, str]
) -> None:
    @on_virtual_loop
    async def scenario() -> None:
        replicas = Node(tmp_path / "streams").start()
        with pytest.raises(InvalidRequestError) as raised:
            replicas.resolve(common_pb2.StreamRef(**ref))
        assert len(raised.value.message) < 200

    scenario()


@on_virtual_loop
async def test_a_stream_held_elsewhere_names_who_holds_it(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    replicas = node.start()
    node.cluster.register(1)
    stream = node.cluster.create("far", "far", (1,))
    node.apply()
    with pytest.raises(NotReplicaError) as raised:
        replicas.resolve(common_pb2.StreamRef(name="far"))
    assert raised.value.redirect is not None
    assert raised.value.redirect.node_id == 1
    assert replicas.get(stream.id) is None


@on_virtual_loop
async def test_whoever_waits_for_records_is_told_whether_the_stream_is_gone_or_only_not_here(
    tmp_path: Path,
) -> None:
    """A consumer goes on elsewhere when its stream was moved or the node stops."""
    node = Node(tmp_path / "streams")
    replicas = node.start()
    node.cluster.register(1)
    deleted, moved, stopped = (node.create(name, name) for name in ("a", "b", "c"))
    told: dict[str, JetstreamError] = {}

    def ask(replica: Replica) -> None:
        with pytest.raises(JetstreamError) as raised:
            replica.read(0, 1000)
        told[replica.stream.name] = raised.value

    for replica in (deleted, moved, stopped):
        replica.add_waiter(partial(ask, replica))
    node.delete(deleted)
    after = replace(moved.stream, replicas=(NodeId(1),), isr=(NodeId(1),), leader=NodeId(1))
    replicas.apply(StreamChanged(moved.stream, after))
    replicas.close()
    assert isinstance(told["a"], StreamNotFoundError)
    for name in ("b", "c"):
        assert isinstance(told[name], NotReplicaError)
        assert told[name].retriable


@on_loop
async def test_a_log_that_cannot_be_closed_cleanly_is_said_so_and_the_others_are(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    replicas = node.start()
    streams = [node.create(f"s{index}", f"s{index}").stream for index in range(40)]
    for stream in streams:
        node.append(node.replica(stream), b"a")
    disk.fail("write_atomic", f"/{streams[7].id}/checkpoint", errno.EIO)
    assert replicas.close() is False
    checkpoints = [tmp_path / "streams" / str(s.id) / "checkpoint" for s in streams]
    assert [path.exists() for path in checkpoints] == [index != 7 for index in range(40)]
    disk.heal()
    node.cluster.register(0)
    assert node.start(clean=False).close() is True


@on_virtual_loop
async def test_metadata_that_comes_after_the_logs_were_closed_opens_none(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    listener = Listener()
    replicas = node.start(listener)
    known = node.create().stream
    assert replicas.close()
    heard = list(listener.heard)
    epoch = known.stream_epoch
    alter = AlterStream(stream_id=known.id, stream_epoch=epoch, config={"flush": "none"})
    node.cluster.do(alter)
    node.apply()
    node.cluster.create("later", "later", (0,))
    node.apply()
    assert len(replicas) == 0
    assert listener.heard == heard


@on_virtual_loop
async def test_message_ids_are_let_go_of_in_idle_streams_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas_module, "FORGET_SECONDS", 0.01)
    node = Node(tmp_path / "streams")
    replicas = node.start()
    replica = node.create()
    block = b"NATS/1.0\r\nNats-Msg-Id: a\r\n\r\n"
    replica.append(encode([b"x"], b"orders.x", header_blocks=[block]))
    assert replica.log.producers.holds_message_ids
    node.clocks.advance(replica.stream.config.duplicate_window_us + 1)
    await eventually(lambda: not replica.log.producers.holds_message_ids)
    replicas.close()


@on_virtual_loop
async def test_an_observer_s_copy_is_opened_promoted_with_its_files_and_deleted(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    cluster = node.cluster
    for node_id in range(3):
        cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    node.start()

    def reassign(*replicas: int, observers: tuple[int, ...]) -> None:
        cluster.do(
            ReassignStream(
                stream_id=stream.id,
                replicas=tuple(map(NodeId, replicas)),
                observers=tuple(map(NodeId, observers)),
            )
        )
        node.apply()

    replica = node.create(replicas=(1, 2), observers=(NodeId(0),))
    stream, folder = replica.stream, tmp_path / "streams" / str(replica.stream.id)
    assert replica.following is not None
    assert replica.leadership is None
    assert not replica.is_in_sync
    reassign(0, 1, 2, observers=())
    assert node.replica(stream) is replica
    assert replica.stream.replicas == (0, 1, 2)
    reassign(1, 2, observers=(0,))
    cluster.do(FinishReassignment(stream_id=stream.id, stream_epoch=replica.stream.stream_epoch))
    node.apply()
    assert node.replica(stream) is replica
    assert replica.stream.copies == (1, 2, 0)
    node.replicas.close()
    cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    node.start(clean=True)
    assert node.replica(stream).following is not None
    reassign(1, 2, observers=())
    assert node.replicas.get(stream.id) is None
    assert not folder.exists()


@on_virtual_loop
async def test_the_limit_of_lag_holds_at_once_for_live_leaders_and_later_replicas(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams", nodes=3)
    for node_id in range(3):
        node.cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
    node.cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
    node.start()
    before = node.create("before", replicas=(0, 1, 2))
    assert before.leadership is not None
    by_default = before.leadership._lag_max_us
    node.cluster.do(SetCluster(replica_lag_max_us=30_000_000))
    node.apply()
    later = node.create("later", replicas=(0, 1, 2))
    assert before.leadership._lag_max_us == 30_000_000
    for replica in (before, later):
        assert replica.closeness._lag_max_us == 30_000_000
    node.cluster.do(SetCluster(replica_lag_max_us=0))
    node.apply()
    assert before.leadership._lag_max_us == by_default
