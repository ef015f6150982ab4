"""`__cursors` on its leader: batches, the commit before the answer, and a new leader's memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import (
    NotEnoughReplicasError,
    NotLeaderError,
    PreconditionFailedError,
    StorageError,
    UnavailableError,
)
from jetstream_protocol.types import StreamId, WallUs
from jetstream_server.cursors import store
from jetstream_server.cursors.coordinator import Heartbeat
from jetstream_server.cursors.groups import Member
from jetstream_server.cursors.store import CURSORS, SETTINGS, CursorStore
from jetstream_server.cursors.table import NO_REVISION, Entry, Write
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    FenceNode,
    SetCluster,
    TransferLeader,
)
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from tests.support.local_metadata import LocalMetadata
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import on_virtual_loop


class Leader:
    """A node that leads `__cursors`; commits take place when `flush` is called."""

    def __init__(self, folder: Path, *, nodes: int = 1) -> None:
        self.node = Node(folder, nodes=nodes)
        for node_id in range(nodes):
            self.node.cluster.register(node_id, feature_level_max=FEATURE_LEVEL_MAX)
        self.node.cluster.do(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        self.node.open()
        self.lease = True
        self.store = CursorStore(
            lambda: self.lease,
            lambda source: [],
            self.node.clocks.monotonic,
            cast(RaftMetadataLog, LocalMetadata(self.node.cluster)),
        )
        self.node.begin(Listeners(roles=(self.store,)))

    def create(self, replicas: tuple[int, ...] = (0,)) -> Replica:
        return self.node.create(CURSORS, "", replicas, config=SETTINGS, internal=True)

    def flush(self) -> None:
        self.node.flushes.run()


@on_virtual_loop
async def test_an_answer_waits_for_the_commit(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams")
    leader.create()
    writing = asyncio.ensure_future(leader.store.write([Write(b"a", b"1")]))
    await eventually(lambda: bool(leader.node.flushes.waiting))
    assert not writing.done()
    assert not (await leader.store.table()).committed_entries
    leader.flush()
    (outcome,) = await writing
    assert outcome.entry == Entry(b"1", 0)
    assert (await leader.store.table()).committed_entries == {b"a": Entry(b"1", 0)}


@on_virtual_loop
async def test_what_comes_in_one_turn_is_one_batch(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams")
    replica = leader.create()
    writing = [
        asyncio.ensure_future(leader.store.write([Write(b"%d" % number, b"x")]))
        for number in range(100)
    ]
    await eventually(lambda: bool(leader.node.flushes.waiting))
    assert replica.log.log_end_offset == 100
    leader.flush()
    assert len(await asyncio.gather(*writing)) == 100
    found = replica.read(0, 1 << 20)
    assert found is not None
    assert [len(batch) for batch in iterate(replica.log.pread(found))] == [100]


@on_virtual_loop
async def test_a_restarted_leader_knows_what_was_committed(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams")
    leader.create()
    for number in range(3):
        writing = asyncio.ensure_future(leader.store.write([Write(b"a", b"%d" % number)]))
        await eventually(lambda: bool(leader.node.flushes.waiting))
        leader.flush()
        await writing
    leader.node.replicas.close()
    leader.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    leader.node.open(clean=True)
    again = CursorStore(
        lambda: True,
        lambda source: [],
        leader.node.clocks.monotonic,
        cast(RaftMetadataLog, LocalMetadata(leader.node.cluster)),
    )
    leader.node.begin(Listeners(roles=(again,)))
    leader.flush()
    assert (await again.table()).committed_entries == {b"a": Entry(b"2", 2)}
    await again.close()


@on_virtual_loop
async def test_what_consumers_of_deleted_streams_have_left_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nobody led the stream as it was deleted. A stream that is only not known may be one
    of an earlier copy of the metadata."""
    monkeypatch.setattr(store, "SWEEP_SECONDS", 0.01)
    leader = Leader(tmp_path / "streams")
    leader.create()
    leader.node.cluster.registry.deleted[StreamId(5)] = WallUs(1)
    keys = [b"consumer/5/a", b"consumer/5/b", b"consumer/50/a", b"cursor/5/a"]
    writing = asyncio.ensure_future(leader.store.write([Write(key, b"x") for key in keys]))
    await eventually(lambda: bool(leader.node.flushes.waiting))
    leader.flush()
    await writing
    table = await leader.store.table()
    await eventually(lambda: bool(leader.node.flushes.waiting))
    leader.flush()
    await eventually(lambda: list(table.committed_entries) == keys[2:])
    await leader.store.close()


@on_virtual_loop
async def test_a_log_that_could_not_be_opened_is_not_one_without_cursors(tmp_path: Path) -> None:
    """Who heard that there is no cursor would begin anew, at "latest" behind what it has not
    read."""
    leader = Leader(tmp_path / "streams")
    leader.create()
    writing = asyncio.ensure_future(leader.store.write([Write(b"a", b"1")]))
    await eventually(lambda: bool(leader.node.flushes.waiting))
    leader.flush()
    await writing
    leader.node.replicas.close()
    [segment] = (tmp_path / "streams").rglob("*.log")
    segment.unlink()
    leader.node.cluster.register(0, feature_level_max=FEATURE_LEVEL_MAX)
    leader.node.open(clean=True)
    again = CursorStore(
        lambda: True,
        lambda source: [],
        leader.node.clocks.monotonic,
        cast(RaftMetadataLog, LocalMetadata(leader.node.cluster)),
    )
    leader.node.begin(Listeners(roles=(again,)))
    await asyncio.sleep(0)
    with pytest.raises(StorageError, match="segment files are missing"):
        await again.table()
    await again.close()


@on_virtual_loop
async def test_whoever_waits_is_told_when_the_leadership_ends(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams", nodes=2)
    replica = leader.create((0, 1))
    if replica.leadership is None:
        move(leader, replica, to=0)
    writing = asyncio.ensure_future(leader.store.write([Write(b"a", b"1")]))
    await eventually(lambda: replica.log.log_end_offset == 1)
    move(leader, replica, to=1)
    with pytest.raises(UnavailableError, match="changes"):
        await writing
    with pytest.raises(NotLeaderError):
        await leader.store.write([Write(b"a", b"2")])


@on_virtual_loop
async def test_members_that_wait_for_their_turn_are_told_when_the_leadership_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "COMMIT_SECONDS", 600.0)
    leader = Leader(tmp_path / "streams", nodes=2)
    replica = leader.create((0, 1))
    if replica.leadership is None:
        move(leader, replica, to=0)
    coordinator = await leader.store.coordinator()
    joining = [
        asyncio.ensure_future(
            coordinator.heartbeat(Heartbeat("g", "orders", Member(name), 0, frozenset(), 3.0))
        )
        for name in ("a", "b", "c")
    ]
    await eventually(lambda: replica.log.log_end_offset == 1)
    move(leader, replica, to=1)
    answers = await asyncio.wait_for(asyncio.gather(*joining, return_exceptions=True), 60.0)
    assert all("changes" in str(answer) for answer in answers), answers
    assert {type(answer) for answer in answers} == {UnavailableError}


@on_virtual_loop
async def test_without_a_lease_nothing_is_answered(tmp_path: Path) -> None:
    leader = Leader(tmp_path / "streams")
    leader.create()
    writing = asyncio.ensure_future(leader.store.write([Write(b"a", b"1")]))
    await eventually(lambda: bool(leader.node.flushes.waiting))
    leader.lease = False
    leader.flush()
    with pytest.raises(NotLeaderError, match="lapsed"):
        await writing
    with pytest.raises(NotLeaderError, match="lapsed"):
        await leader.store.table()


@on_virtual_loop
async def test_a_commit_that_takes_too_long_is_answered_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "COMMIT_SECONDS", 0.05)
    leader = Leader(tmp_path / "streams")
    leader.create()
    with pytest.raises(UnavailableError, match="may be later"):
        await leader.store.write([Write(b"a", b"1")])
    leader.flush()  # Nobody waits any more.
    assert (await leader.store.table()).committed_entries == {b"a": Entry(b"1", 0)}


@on_virtual_loop
async def test_too_much_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "WAITING_MAX", 2)
    leader = Leader(tmp_path / "streams")
    leader.create()
    with pytest.raises(UnavailableError, match="too many"):
        await leader.store.write([Write(b"a", b"1")] * 3)


@on_virtual_loop
async def test_a_write_counts_until_it_is_decided_although_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "COMMIT_SECONDS", 0.02)
    monkeypatch.setattr(store, "WAITING_MAX", 3)
    leader = Leader(tmp_path / "streams")
    replica = leader.create()
    anew = Write(b"a", b"1", expected_revision=NO_REVISION)
    for _ in range(3):
        with pytest.raises(UnavailableError, match="may be later"):
            await leader.store.write([anew])
    assert replica.log.log_end_offset == 1
    with pytest.raises(UnavailableError, match="too many"):
        await leader.store.write([anew])
    leader.flush()
    (outcome,) = await leader.store.write([anew])
    assert isinstance(outcome.error, PreconditionFailedError)


@on_virtual_loop
async def test_what_waits_for_a_commit_is_refused_while_too_few_replicas_are_in_sync(
    tmp_path: Path,
) -> None:
    leader = Leader(tmp_path / "streams", nodes=3)
    replica = leader.create((0, 1, 2))
    if replica.leadership is None:
        move(leader, replica, to=0)
    anew = Write(b"a", b"1", expected_revision=NO_REVISION)
    writing = asyncio.ensure_future(leader.store.write([anew]))
    await eventually(lambda: replica.log.log_end_offset == 1)
    for follower in (1, 2):
        leader.node.cluster.do(FenceNode(node_id=follower))
    leader.node.apply()
    with pytest.raises(NotEnoughReplicasError):
        await leader.store.write([anew])
    writing.cancel()


def move(leader: Leader, replica: Replica, *, to: int) -> None:
    cluster = leader.node.cluster
    cluster.do(TransferLeader(stream_id=replica.stream.id, leader=to))
    leader.node.apply()
