"""A replica whose log failed: no position, no leadership, no claim, until it is whole again."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from jetstream_protocol.errors import (
    JetstreamError,
    PreconditionFailedError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.command_json import Command
from jetstream_server.metadata.state.commands import DistrustReplica, FenceNode, TransferLeader
from jetstream_server.replication import replica_manager
from jetstream_server.replication.core.follower import Reset
from jetstream_server.replication.core.messages import (
    INCOMPLETE,
    NOWHERE,
    LeaderSnapshot,
    OutOfRange,
)
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.drivers import log_replacement
from jetstream_server.replication.drivers.log_ends import leaderless_log_ends
from jetstream_server.replication.drivers.log_replacement import LogReplacement
from jetstream_server.replication.failed_log import (
    PAUSE_US,
    PAUSE_US_MAX,
    Attempts,
    Step,
    next_step,
)
from jetstream_server.replication.listeners import Listeners
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.run_record import RunRecordFile
from tests.support.log_batches import batch, stamped
from tests.support.log_disk import FaultyDisk
from tests.support.loops import eventually, on_loop
from tests.support.node import Node, read_values
from tests.support.virtual_time import on_virtual_loop

ME = NodeId(0)


class Bench:
    """Node 0 of three, a stream of three replicas, and a disk that fails when it is told to."""

    def __init__(self, tmp_path: Path, *, leads: bool, values: int = 3) -> None:
        self.disk = FaultyDisk(OsDisk())
        self.node = Node(tmp_path / "streams", disk=self.disk, nodes=3, segment_bytes=300)
        self.replicas = self.node.start()
        self.replica = self.node.create(replicas=(0, 1, 2), config={"flush": "none"})
        self.do(TransferLeader(stream_id=self.replica.stream.id, leader=0 if leads else 1))
        for _ in range(values):
            self.grow()

    def do(self, command: Command) -> None:
        self.node.cluster.do(command)
        self.node.apply()

    def grow(self) -> None:
        log = self.replica.log
        if self.replica.leadership is not None:
            self.node.append(self.replica, b"%d" % log.log_end_offset, flush=False)
        else:
            log.append_replica(stamped(log.log_end_offset, b"%d" % log.log_end_offset))

    def flush(self) -> None:
        """Flush the log, as the flusher's thread does."""
        self.replica.flush()
        self.node.flushes.run()

    def fail(self) -> None:
        self.disk.fail("fsync", ".log", errno.EIO)
        self.flush()
        self.disk.heal()
        assert self.replica.has_failed

    def distrust(self) -> None:
        self.do(
            DistrustReplica(
                stream_id=self.replica.stream.id,
                node_id=0,
                node_incarnation=self.replica.incarnation,
            )
        )
        self.replica.failure_recorded(self.replica.failures)

    def fence(self, *nodes: int) -> None:
        for node_id in nodes:
            self.do(FenceNode(node_id=node_id))

    def told_where_to_begin(self, offset: int = 0) -> None:
        """The leader's answer to who stands nowhere."""
        position = self.replica.position()
        assert position is not None
        standing = LeaderSnapshot(offset, offset, self.replica.stream.stream_epoch)
        assert self.replica.accept(OutOfRange(position, standing), b"", 0) == Reset(offset)
        self.replica.accepted()

    @property
    def suspects(self) -> tuple[int, ...]:
        return RunRecordFile(
            self.disk, str(self.node.folder.with_name("runs")), "cluster/0"
        ).record.suspects


# As a follower.


@on_virtual_loop
async def test_a_failed_log_tells_nothing_while_it_may_be_elected_and_then_stands_nowhere(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    before = bench.replica.position()
    assert before is not None
    assert before.fetch_offset == 3
    bench.fail()
    assert bench.replica.position() is None
    late = OutOfRange(before, LeaderSnapshot(0, 0, 0))
    assert bench.replica.accept(late, b"", 0) is None, "it is emptied although it may be elected"
    bench.distrust()
    position = bench.replica.position()
    assert position is not None
    assert (position.fetch_offset, position.stream_epoch) == (NOWHERE, INCOMPLETE)


@on_virtual_loop
async def test_a_log_that_fails_again_is_emptied_only_once_that_is_recorded_too(
    tmp_path: Path,
) -> None:
    """Its leader may be about to add it to the ISR for a position between the two failures."""
    bench = Bench(tmp_path, leads=False)
    bench.fail()
    bench.distrust()
    bench.told_where_to_begin()
    bench.grow()
    asked = bench.replica.position()
    assert asked is not None
    bench.fail()
    assert not bench.replica.is_counted_on()
    assert bench.replica.position() is None
    late = OutOfRange(asked, LeaderSnapshot(0, 0, 0))
    assert bench.replica.accept(late, b"", 0) is None
    assert next_step(bench.replica) is Step.DISTRUST
    bench.distrust()
    assert next_step(bench.replica) is Step.FETCH_ANEW
    bench.told_where_to_begin()


@on_virtual_loop
async def test_a_failed_log_is_emptied_by_the_leader_s_word_and_believed_again(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    bench.fail()
    assert bench.suspects == (bench.replica.stream.id,)
    bench.distrust()
    bench.told_where_to_begin(2)
    log = bench.replica.log
    assert (log.offline_reason, log.log_start_offset, log.log_end_offset) == ("", 2, 2)
    assert bench.suspects == ()
    position = bench.replica.position()
    assert position is not None
    assert position.fetch_offset == 2
    bench.grow()
    assert log.flush() == 3


@on_virtual_loop
async def test_what_an_attempt_to_empty_it_left_is_gone_after_the_next_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=False, values=6)
    assert bench.replica.log.segment_count > 1
    bench.flush()
    bench.grow()
    bench.fail()
    bench.distrust()
    for operation in ("write_atomic", "remove", "create", "fsync_directory"):
        bench.disk.fail(operation, "", errno.EIO)
        with pytest.raises(StorageError):
            bench.told_where_to_begin()
        assert bench.replica.has_failed
        bench.disk.heal()
    bench.told_where_to_begin()
    bench.grow()
    assert bench.replica.log.flush() == 1
    directory = Path(bench.replica.log.directory)
    assert [path.name for path in directory.glob("*.log")] == [f"{0:020d}.log"]


@on_virtual_loop
async def test_a_second_failure_is_told_and_noted_like_the_first(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=False)
    for _ in range(2):
        bench.fail()
        assert bench.suspects == (bench.replica.stream.id,)
        bench.distrust()
        bench.told_where_to_begin()
        assert bench.suspects == ()
        bench.grow()


@on_virtual_loop
async def test_a_log_whose_failure_was_not_noticed_yet_stands_nowhere_and_does_not_say_so(
    tmp_path: Path,
) -> None:
    """A thread has noted it; the loop has not got to it."""
    bench = Bench(tmp_path, leads=False)
    bench.distrust()
    bench.replica.log.health.fail("in a thread")
    assert bench.replica.position() is None


@on_virtual_loop
async def test_a_damaged_log_says_how_far_it_reads_and_that_does_not_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=False)
    bench.replica.log.health._is_damaged = True
    bench.replica.log.health.end("damaged")
    position = bench.replica.position()
    assert position is not None
    assert (position.fetch_offset, position.stream_epoch) == (3, INCOMPLETE)


# As a leader.


@on_virtual_loop
async def test_an_elected_log_that_a_full_disk_keeps_from_being_mended_has_failed(
    tmp_path: Path,
) -> None:
    """So it is tried again: nothing else would make the node lead once there is room."""
    bench = Bench(tmp_path, leads=False)
    bench.replica.log.health._is_damaged = True
    bench.replica.log.health.end("damaged")
    bench.disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    bench.do(TransferLeader(stream_id=bench.replica.stream.id, leader=ME))
    assert bench.replica.leadership is None
    assert bench.replica.has_failed
    await eventually(lambda: bench.replica.needs_rebuild)
    assert next_step(bench.replica) is Step.DISTRUST
    bench.distrust()
    bench.disk.heal()
    bench.replica.revive()
    assert not bench.replica.log.offline_reason


@on_virtual_loop
async def test_a_leader_whose_write_failed_leads_no_more_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=True)
    bench.disk.fail("write", ".log", errno.EIO)
    with pytest.raises(StorageError):
        bench.grow()
    await eventually(lambda: bench.replica.leadership is None)
    assert next_step(bench.replica) is Step.DISTRUST
    bench.distrust()
    assert bench.replica.stream.leader != ME
    assert bench.replica.following is not None


@on_virtual_loop
async def test_a_failure_in_any_thread_is_heard(tmp_path: Path) -> None:
    """Rolls, truncations and checkpoints fail in other threads than the one that waits."""
    bench = Bench(tmp_path, leads=True)
    bench.disk.fail("write_atomic", "checkpoint", errno.EIO)

    def save() -> None:
        with pytest.raises(StorageError):
            bench.replica.log.records.save(clean_size=1)

    await asyncio.to_thread(save)
    await eventually(lambda: bench.replica.leadership is None)


@on_virtual_loop
async def test_a_full_disk_is_no_failure(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=True)
    bench.disk.fail("write", ".log", errno.ENOSPC)
    with pytest.raises(StorageError):
        bench.grow()
    await asyncio.sleep(0)
    assert not bench.replica.has_failed
    assert bench.replica.leadership is not None


@on_virtual_loop
async def test_who_is_elected_with_a_failed_log_does_not_lead(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=False)
    bench.fail()
    bench.do(TransferLeader(stream_id=bench.replica.stream.id, leader=0))
    assert bench.replica.stream.leader == ME
    assert bench.replica.leadership is None
    assert next_step(bench.replica) is Step.DISTRUST


@on_virtual_loop
async def test_the_only_replica_stays_offline_leads_and_is_readable(tmp_path: Path) -> None:
    disk = FaultyDisk(OsDisk())
    node = Node(tmp_path / "streams", disk=disk)
    node.start()
    replica = node.create()
    node.append(replica, b"kept")
    disk.fail("fsync", ".log", errno.EIO)
    node.append(replica, b"not flushed")
    disk.heal()
    assert "Input/output error" in replica.log.offline_reason
    assert replica.leadership is not None
    assert read_values(replica) == [b"kept"]
    with pytest.raises(StorageError):
        replica.append(batch(b"more"))
    assert next_step(replica) is Step.WAIT


# When nobody is believed.


@on_virtual_loop
async def test_a_failed_log_is_no_candidate_before_it_is_revived(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=True)
    stream_id = bench.replica.stream.id
    bench.node.cluster.change_isr(bench.replica.stream, (0,))
    bench.node.apply()
    bench.fence(1, 2)
    bench.fail()
    bench.distrust()
    stream = bench.replica.stream
    bench.node.cluster.registry.streams[stream_id] = stream = replace(stream, isr=(), elr=())
    bench.replica.stream = replace(stream, last_known=(ME,))

    def told() -> tuple[Any, ...]:
        return leaderless_log_ends(ME, [bench.replica.stream], bench.replicas.get, RunRecord())

    assert told() == ()
    assert next_step(bench.replica) is Step.REVIVE
    bench.replica.revive()
    (log_end,) = told()
    assert log_end.report.damaged
    assert log_end.report.log_end_offset == 3
    assert bench.replica.needs_rebuild, "as a follower it is fetched anew all the same"


@on_virtual_loop
async def test_a_log_end_is_told_for_the_epoch_it_was_looked_at_in_and_no_other(
    tmp_path: Path,
) -> None:
    """A replica that has not followed the metadata yet may still append."""
    bench = Bench(tmp_path, leads=True)
    stream = replace(bench.replica.stream, isr=(), elr=(), last_known=(ME,), leader=NodeId(-1))
    assert len(leaderless_log_ends(ME, [stream], bench.replicas.get, RunRecord())) == 1
    later = replace(stream, leader_epoch=stream.leader_epoch + 1)
    assert leaderless_log_ends(ME, [later], bench.replicas.get, RunRecord()) == ()


# Until it is whole again.


class Metadata:
    """Refuses the first `refusals` proposals, then applies them."""

    def __init__(self, bench: Bench, refusals: int) -> None:
        self._bench = bench
        self._refusals = refusals
        self.proposed = 0

    async def propose(self, command: Command) -> None:
        self.proposed += 1
        if self.proposed <= self._refusals:
            raise UnavailableError("there is no metadata leader")
        self._bench.do(command)


@contextmanager
def log_replacer(
    bench: Bench, metadata: Metadata, clock: list[int], revived: list[None] | None = None
) -> Iterator[list[Replica]]:
    asked: list[Replica] = []
    revived = [] if revived is None else revived
    driver = LogReplacement(
        bench.replicas,
        cast(RaftMetadataLog, metadata),
        node_id=0,
        incarnation=bench.replica.incarnation,
        request_again=asked.append,
        revived=lambda: revived.append(None),
        monotonic_clock=lambda: clock[0],
    )
    bench.replicas._services.listeners = Listeners(roles=(driver,))
    driver.start()
    try:
        yield asked
    finally:
        asyncio.get_running_loop().create_task(driver.close())


@on_virtual_loop
async def test_a_failed_replica_is_distrusted_until_the_metadata_shows_it_and_then_fetched_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_replacement, "ROUND_SECONDS", 0.001)
    bench = Bench(tmp_path, leads=False)
    metadata, clock = Metadata(bench, refusals=2), [0]
    with log_replacer(bench, metadata, clock) as asked:
        bench.fail()
        for count in (1, 2, 3):
            await eventually(lambda count=count: metadata.proposed == count)  # type: ignore[misc]
            clock[0] += PAUSE_US
        await eventually(lambda: ME not in bench.replica.stream.isr)
        await eventually(lambda: asked == [bench.replica])
        bench.told_where_to_begin()
        clock[0] += PAUSE_US_MAX
        await asyncio.sleep(0.01)
        assert (metadata.proposed, len(asked)) == (3, 1)


@on_virtual_loop
async def test_a_replica_out_of_sync_is_emptied_only_once_no_join_of_before_can_take_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its leader may have proposed to add it, because of a position from before its log failed."""
    monkeypatch.setattr(log_replacement, "ROUND_SECONDS", 0.001)
    bench = Bench(tmp_path, leads=False)
    bench.node.cluster.change_isr(bench.replica.stream, (1, 2))
    bench.node.apply()
    proposed_under = bench.replica.stream.stream_epoch
    metadata, clock = Metadata(bench, refusals=1), [0]
    with log_replacer(bench, metadata, clock) as asked:
        bench.fail()
        await eventually(lambda: metadata.proposed == 1)
        await asyncio.sleep(0.01)
        assert asked == [], "the metadata has not been told yet"
        clock[0] += PAUSE_US
        await eventually(lambda: asked == [bench.replica])
    stream = bench.replica.stream
    with pytest.raises(PreconditionFailedError):
        bench.node.cluster.change_isr(stream, (0, 1, 2), stream_epoch=proposed_under)
    assert ME not in bench.node.cluster.now(stream).isr


@on_virtual_loop
async def test_where_nobody_is_believed_a_failed_log_is_revived_and_its_end_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_replacement, "ROUND_SECONDS", 0.001)
    bench = Bench(tmp_path, leads=True)
    bench.node.cluster.change_isr(bench.replica.stream, (0,))
    bench.node.apply()
    stream = replace(bench.replica.stream, isr=(), elr=(), leader=NO_NODE, last_known=(ME,))
    bench.node.cluster.registry.streams[stream.id] = stream
    revived: list[None] = []
    with log_replacer(bench, Metadata(bench, refusals=0), [0], revived) as asked:
        bench.fail()
        await eventually(lambda: len(revived) == 1)
        assert not bench.replica.has_failed
        assert asked == []
    assert len(leaderless_log_ends(ME, [stream], bench.replicas.get, RunRecord())) == 1


def test_a_disk_that_goes_on_failing_is_tried_less_and_less_often() -> None:
    attempts = Attempts()
    tried = [at for at in range(0, 200_000_000, 100_000) if attempts.is_due(Step.FETCH_ANEW, at)]
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)
    assert pauses[0] == PAUSE_US
    assert pauses[-1] == PAUSE_US_MAX


# The next start.


@on_virtual_loop
async def test_a_failed_log_does_not_count_as_closed_cleanly_unless_that_is_noted(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    bench.disk.fail("write_atomic", "runs", errno.EIO)
    bench.disk.fail("fsync", ".log", errno.EIO)
    bench.flush()
    assert not bench.replicas.close()


@on_loop
async def test_a_log_that_fails_while_it_is_closed_is_noted(tmp_path: Path) -> None:
    """A flush after the failed one would report success."""
    bench = Bench(tmp_path, leads=False)
    bench.disk.fail("fsync", ".log", errno.EIO)
    assert not bench.replicas.close()
    assert bench.suspects == (bench.replica.stream.id,)


@on_virtual_loop
async def test_a_log_that_was_not_opened_is_not_clean_before_its_node_is_registered(
    tmp_path: Path,
) -> None:
    """What the run before had not flushed may still not be on disk."""
    bench = Bench(tmp_path, leads=False)
    assert bench.replicas.close()
    for is_registered in (False, True):
        runs = RunRecordFile(bench.disk, str(bench.node.folder.with_name("runs")), "cluster/0")
        runs.begin("next", "boot")
        if is_registered:
            runs.registered("next")
        bench.disk.fail("list_directory", "", errno.EIO)
        replicas = bench.node.open()
        bench.disk.heal()
        assert [replica.unreadable_reason != "" for replica in replicas] == [True]
        assert replicas.close() is is_registered


@on_virtual_loop
async def test_a_failed_log_is_fetched_anew_after_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=False)
    bench.fail()
    stream = bench.replica.stream
    assert bench.replicas.close(), "it is noted: the other logs were closed cleanly"
    bench.node.cluster.register(0, distrusted=[stream.id])
    bench.node.start(clean=True)
    replica = bench.node.replica(stream)
    assert replica.needs_rebuild
    position = replica.position()
    assert position is not None
    assert position.fetch_offset == NOWHERE


@on_virtual_loop
async def test_errors_that_are_not_storage_s_do_not_fail_a_replica(tmp_path: Path) -> None:
    bench = Bench(tmp_path, leads=True)
    with pytest.raises(JetstreamError):
        bench.replica.read(0, 1, 99)
    assert not bench.replica.has_failed


def unopened(bench: Bench, error: int) -> Replica:
    """The replica after a kill, at a start at which its segments could not be read."""
    stream = bench.replica.stream
    bench.disk.fail("pread", ".log", error)
    bench.node.cluster.register(0, distrusted=[stream.id])
    bench.replicas = bench.node.start()
    bench.replica = bench.node.replica(stream)
    bench.disk.heal()
    assert bench.replica.unreadable_reason
    return bench.replica


@on_virtual_loop
async def test_a_log_that_the_disk_refused_to_read_at_a_start_is_fetched_anew(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    replica = unopened(bench, errno.EIO)
    assert not replica.is_counted_on()
    bench.told_where_to_begin()
    assert replica.unreadable_reason == replica.log.offline_reason == ""
    replica.log.append_replica(stamped(0, b"anew"))
    replica.log.note_end()
    bench.replicas.close()
    bench.node.cluster.register(0)
    bench.node.start()
    log = bench.node.replica(replica.stream).log
    assert (log.log_end_offset, log.offline_reason) == (1, "")


@on_virtual_loop
async def test_a_log_whose_folder_could_not_be_looked_for_is_not_taken_to_be_lost(
    tmp_path: Path,
) -> None:
    """As an empty log it would count in an election, and may be the only one with records."""
    bench = Bench(tmp_path, leads=False)
    stream = bench.replica.stream
    bench.replicas.close()
    for operation in ("exists", "list_directory"):
        bench.disk.fail(operation, f"/{stream.id}", errno.EIO)
        bench.node.cluster.register(0)
        bench.replicas = bench.node.start()
        bench.disk.heal()
        replica = bench.node.replica(stream)
        assert os.strerror(errno.EIO) in replica.unreadable_reason, operation
    bench.node.cluster.register(0)
    bench.node.start()
    log = bench.node.replica(stream).log
    assert (log.log_end_offset, log.offline_reason) == (3, "")


@on_virtual_loop
async def test_a_log_that_was_not_opened_and_that_a_full_disk_kept_from_being_emptied_is_kept(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    replica = unopened(bench, errno.EIO)
    bench.disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        bench.told_where_to_begin()
    assert replica.unreadable_reason
    bench.disk.heal()
    bench.node.cluster.register(0)
    bench.node.start()
    log = bench.node.replica(replica.stream).log
    assert (log.log_end_offset, log.offline_reason) == (3, "")


@on_virtual_loop
async def test_a_log_that_no_descriptor_was_left_for_at_a_start_stays_as_it_is(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    replica = unopened(bench, errno.EMFILE)
    with pytest.raises(StorageError, match=os.strerror(errno.EMFILE)):
        bench.told_where_to_begin()
    assert replica.unreadable_reason
    bench.node.cluster.register(0)
    bench.node.start()
    assert bench.node.replica(replica.stream).log.log_end_offset == 3


@on_virtual_loop
async def test_a_log_that_was_not_opened_is_not_emptied_while_it_may_be_elected(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    replica = unopened(bench, errno.EIO)
    following = replica.following
    assert following is not None
    position = following.position()
    replica.stream = replace(replica.stream, elr=(ME,))
    assert replica.position() is None
    standing = LeaderSnapshot(0, 0, replica.stream.stream_epoch)
    assert replica.accept(OutOfRange(position, standing), b"", 0) is None
    assert replica.unreadable_reason


@on_virtual_loop
async def test_a_log_that_was_not_opened_and_cannot_be_emptied_is_no_candidate(
    tmp_path: Path,
) -> None:
    bench = Bench(tmp_path, leads=False)
    replica = unopened(bench, errno.EIO)
    bench.disk.fail("remove", ".log", errno.EIO)
    with pytest.raises(StorageError):
        bench.told_where_to_begin()
    bench.disk.heal()
    await eventually(lambda: replica.failures == 1)
    bench.distrust()
    assert next_step(replica) is Step.FETCH_ANEW
    replica.stream = replace(
        replica.stream, leader=NO_NODE, isr=(), elr=(), last_known=(ME, NodeId(1))
    )
    replica.following = None
    assert next_step(replica) is Step.WAIT


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@on_virtual_loop
async def test_a_new_stream_whose_log_cannot_be_opened_is_led_elsewhere_and_copied_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(log_replacement, "ROUND_SECONDS", 0.001)
    bench = Bench(tmp_path, leads=True)
    clock = [0]
    with log_replacer(bench, Metadata(bench, refusals=0), clock) as asked:
        bench.disk.fail("read_file", ".offsets", error)
        new = bench.replica = bench.node.create("new", "new", replicas=(0, 1, 2))
        bench.disk.heal()
        bench.do(TransferLeader(stream_id=new.stream.id, leader=0))
        assert new.leadership is None
        await eventually(lambda: ME not in new.stream.isr)
        assert new.stream.leader not in (ME, NO_NODE)
        await eventually(lambda: asked == [new])
        bench.told_where_to_begin()
        assert new.log.offline_reason == new.unreadable_reason == ""


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EMFILE])
@on_virtual_loop
async def test_the_only_log_of_a_new_stream_is_opened_again_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    monkeypatch.setattr(replica_manager, "AGAIN_SECONDS", 0.001)
    bench = Bench(tmp_path, leads=True)
    bench.disk.fail("read_file", ".offsets", error)
    new = bench.node.create("new", "new", replicas=(0,))
    await eventually(lambda: bench.replicas.get(new.stream.id) is not new)
    assert bench.node.replica(new.stream).unreadable_reason
    bench.disk.heal()
    await eventually(lambda: not bench.node.replica(new.stream).unreadable_reason)
    bench.replica = opened = bench.node.replica(new.stream)
    assert opened.leadership is not None
    bench.grow()
    bench.flush()
    assert opened.log.log_end_offset == opened.high_watermark == 1
    await asyncio.sleep(0.01)
    assert bench.node.replica(new.stream) is opened
