"""One replica on a real log: what readers see, when, and what they are told otherwise."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import (
    DivergedError,
    NotLeaderError,
    OffsetOutOfRangeError,
    StorageError,
    StorageFullError,
    StreamNotFoundError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_server.log.commit_log import CommitLog, LogConfig, LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.replication.core.messages import LeaderSnapshot, OutOfRange, Records
from jetstream_server.replication.replica import Replica
from tests.support.log_batches import batch, stamped
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.log_start import advance_log_start
from tests.support.loops import on_loop
from tests.support.node import Node, read_values
from tests.support.services import services
from tests.unit.replication.cores import nodes, request, stream


@on_loop
async def test_under_group_flush_a_record_is_read_only_once_it_is_flushed(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create(config={"flush": "group"})
    node.append(replica, b"a", flush=False)
    assert (replica.high_watermark, read_values(replica)) == (0, [])
    node.flushes.run()
    assert (replica.high_watermark, read_values(replica)) == (1, [b"a"])


@pytest.mark.parametrize("flush", ["interval", "none"])
def test_without_group_flush_a_record_is_read_once_it_is_appended(
    tmp_path: Path, flush: str
) -> None:
    @on_loop
    async def scenario() -> None:
        node = Node(tmp_path / "streams")
        node.start()
        replica = node.create(config={"flush": flush})
        node.append(replica, b"a", b"b", flush=False)
        assert read_values(replica) == [b"a", b"b"]

    scenario()


@on_loop
async def test_a_read_ends_at_the_high_watermark_though_the_log_goes_on(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"committed")
    node.append(replica, b"not yet", flush=False)
    assert read_values(replica) == [b"committed"]
    assert replica.read(1, 1 << 20) is None


@on_loop
async def test_offsets_outside_the_log_are_errors_that_name_the_valid_range(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    for value in (b"a", b"b", b"c"):
        node.append(replica, value)
    advance_log_start(replica.log, 1)
    for offset in (0, 4, 1 << 62):
        with pytest.raises(OffsetOutOfRangeError) as raised:
            replica.read(offset, 1 << 20)
        assert (raised.value.log_start_offset, raised.value.high_watermark) == (1, 3)


@on_loop
async def test_an_offset_between_high_watermark_and_log_end_is_not_available_yet(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a", b"b", flush=False)
    for offset in (0, 1, 2):
        assert replica.read(offset, 1 << 20) is None


@on_loop
async def test_waiters_wake_once_per_rise_and_not_before(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    woken: list[int] = []
    replica.add_waiter(lambda: woken.append(replica.high_watermark))
    node.append(replica, b"a", flush=False)
    assert woken == []
    node.flushes.run()
    assert woken == [1]
    node.append(replica, b"b")
    assert woken == [1]


@on_loop
async def test_a_waiter_that_was_removed_is_not_woken(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    woken: list[None] = []

    def wake() -> None:
        woken.append(None)

    replica.add_waiter(wake)
    replica.remove_waiter(wake)
    replica.remove_waiter(wake)
    node.append(replica, b"a")
    assert woken == []


@on_loop
async def test_listeners_hear_of_every_rise_once(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    heard: list[int] = []
    replica.on_commit = lambda found: heard.append(found.high_watermark)
    node.append(replica, b"a")
    replica.moved()
    node.append(replica, b"b", b"c")
    assert heard == [1, 3]


@on_loop
async def test_closing_wakes_waiters_and_ends_reads_and_appends(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a")
    woken: list[None] = []
    replica.add_waiter(lambda: woken.append(None))
    node.delete(replica)
    assert len(woken) == 1
    with pytest.raises(StreamNotFoundError):
        replica.read(0, 1 << 20)
    with pytest.raises(NotLeaderError):
        replica.append(batch(b"late"))


@on_loop
async def test_counters_count_what_was_appended(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a", b"b")
    assert replica.counters.records_appended == 2
    assert replica.counters.bytes_appended == replica.log.size_bytes


async def _two_epochs(node: Node) -> Replica:
    """Records 0 and 1 of the first leader epoch, 2 of the next."""
    node.start()
    stream = node.create().stream
    node.append(node.replica(stream), b"a", b"b")
    node.restart()
    replica = node.replica(stream)
    node.append(replica, b"c")
    return replica


@on_loop
async def test_a_restart_begins_a_new_epoch_and_keeps_what_was_committed(tmp_path: Path) -> None:
    replica = await _two_epochs(Node(tmp_path / "streams"))
    (first, start), (second, later) = replica.log.epochs.entries
    assert second > first
    assert (start, later) == (0, 2)
    assert read_values(replica) == [b"a", b"b", b"c"]


@on_loop
async def test_a_reader_of_the_same_history_goes_on(tmp_path: Path) -> None:
    replica = await _two_epochs(Node(tmp_path / "streams"))
    first, second = (epoch for epoch, _ in replica.log.epochs.entries)
    assert replica.read(2, 1 << 20, first) is not None
    assert replica.read(3, 1 << 20, second) is None
    assert replica.read(0, 1 << 20, second) is not None, "before the first record nothing was seen"


@on_loop
async def test_a_reader_of_records_that_were_replaced_is_told_where_the_histories_part(
    tmp_path: Path,
) -> None:
    replica = await _two_epochs(Node(tmp_path / "streams"))
    first = replica.log.epochs.entries[0][0]
    with pytest.raises(DivergedError) as raised:
        replica.read(3, 1 << 20, first)
    assert (raised.value.epoch, raised.value.end_offset) == (first, 2)


@on_loop
async def test_a_replica_whose_log_begins_anew_at_a_reader_s_position_lets_it_wait(
    tmp_path: Path,
) -> None:
    replica = await _two_epochs(Node(tmp_path / "streams"))
    first, second = (epoch for epoch, _ in replica.log.epochs.entries)
    replica.log.reset(3)
    replica.high_watermark = 3
    assert not replica.log.epochs.entries, "nothing to compare with"
    assert replica.read(3, 1 << 20, second, is_leader=False) is None
    replica.log.append_replica(stamped(3, epoch=first), leader_epoch=first)
    assert replica.read(3, 1 << 20, second, is_leader=False) is None, "it may be replaced"
    replica.high_watermark = 4
    with pytest.raises(DivergedError):
        replica.read(3, 1 << 20, second, is_leader=False)


def test_a_replica_whose_log_could_not_be_begun_anew_lets_readers_wait() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = CommitLog.open(disk, "/1", clean=False)
    for number in range(4):
        log.append(batch(b"%d" % number), leader_epoch=2, timestamp_us=0)
    replica = Replica(stream(), log, services(), node_id=1, incarnation=10)
    replica.high_watermark = 4
    replica.update(replace(stream((0, 2)), stream_epoch=8), nodes(), 0)
    assert replica.read(3, 1 << 20, 2, is_leader=False) is not None
    asked = replica.position()
    assert asked is not None
    disk.fail("remove", ".log", errno.EIO)
    with pytest.raises(StorageError):
        replica.accept(OutOfRange(asked, LeaderSnapshot(20, 0, 8)), b"", 0)
    assert replica.high_watermark <= log.log_end_offset == 0
    assert replica.read(3, 1 << 20, 2, is_leader=False) is None


def test_a_folder_that_could_not_be_flushed_is_flushed_with_the_log_that_is_begun_anew() -> None:
    """Otherwise a power failure takes the folder, with all that was flushed into it since."""
    disk = FaultyDisk(MemoryDisk())
    disk.make_directory("/streams")
    log = CommitLog.open(disk, "/streams/1", clean=False)
    log.append(batch(b"x"), leader_epoch=2, timestamp_us=0)
    disk.fail("fsync_directory", "/streams", errno.EIO)
    with pytest.raises(StorageError):
        log.flush()
    disk.heal()
    before = disk.count("fsync_directory", "/streams")
    log.reset(0)
    log.append(batch(b"y"), leader_epoch=2, timestamp_us=0)
    log.flush()
    assert disk.count("fsync_directory", "/streams") > before


@on_loop
async def test_a_reader_ahead_of_this_node_s_metadata_is_told_to_come_again(
    tmp_path: Path,
) -> None:
    replica = await _two_epochs(Node(tmp_path / "streams"))
    with pytest.raises(UnknownEpochError):
        replica.read(1, 1 << 20, replica.stream.leader_epoch + 1)


@on_loop
async def test_a_replaced_leader_that_does_not_know_it_tells_nobody_that_there_is_nothing_beyond_it(
    tmp_path: Path,
) -> None:
    """It handed its leadership over and holds its lease: the reader has read more elsewhere."""
    replica = await _two_epochs(Node(tmp_path / "streams"))
    beyond = replica.log.log_end_offset + 4
    with pytest.raises(UnknownEpochError):
        replica.read(beyond, 1 << 20, replica.stream.leader_epoch + 1)
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(beyond, 1 << 20, replica.stream.leader_epoch)


def test_a_leader_tells_nobody_what_does_not_exist_before_all_in_sync_follow_it() -> None:
    """One that does not follow yet may be elected with more records of an earlier epoch, and commit
    them, while this node has not heard that it was replaced."""
    log = CommitLog.open(MemoryDisk(), "/1", clean=False)
    for _ in range(4):
        log.append(batch(b"x"), leader_epoch=2, timestamp_us=0)
    replica = Replica(stream((0, 1, 2)), log, services(), node_id=0, incarnation=10)
    replica.update(stream((0, 1, 2)), nodes(), 0)
    log.append(batch(b"of this epoch"), leader_epoch=3, timestamp_us=0)
    replica.fetch(request(1, 4, last_epoch=2), 0)
    assert replica.read(5, 1 << 20, 2) is None
    assert replica.read(7, 1 << 20, 2) is None
    replica.fetch(request(2, 4, last_epoch=2), 0)
    with pytest.raises(DivergedError):
        replica.read(5, 1 << 20, 2)
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(7, 1 << 20, 2)


def test_a_replica_that_has_gaps_knows_after_a_restart_that_they_are_committed(
    tmp_path: Path,
) -> None:
    """Otherwise, leading alone and below its minimum, it could get no follower back in sync."""
    metadata = replace(stream(), was_compacted=True)
    folder = str(tmp_path / "1")

    def opened() -> Replica:
        log = CommitLog.open(OsDisk(), folder, clean=False)
        return Replica(metadata, log, services(), node_id=1, incarnation=10)

    replica = opened()
    replica.update(metadata, nodes(), 0)
    asked = replica.position()
    assert asked is not None
    data = b""
    for base in (0, 10, 11):
        batch_ = encode([b"v"], b"a", after_gap=base == 10)
        batch_.stamp(base, 3, 0)
        data += batch_.to_bytes()
    snapshot = LeaderSnapshot(50, 0, metadata.stream_epoch, tombstones_gone_below=5)
    replica.accept(Records(asked, snapshot, LogSlice("", 0, len(data), 0, 0)), data, 0)
    assert replica.log.copied_under == 5
    again = opened()
    assert (again.high_watermark, again.log.log_end_offset) == (10, 12)
    suspect = Replica(metadata, again.log, services(), node_id=1, incarnation=10, rebuild=True)
    assert suspect.high_watermark == 0
    suspect.update(replace(metadata, leader=1, leader_epoch=4, isr=(1,)), nodes(), 0)
    assert suspect.high_watermark == 10, "elected all the same, it is believed"


@pytest.mark.parametrize("leads", [True, False])
@pytest.mark.parametrize("flush", ["none", "interval", "group"])
def test_what_was_appended_is_missed_when_it_is_gone(
    tmp_path: Path, flush: str, leads: bool
) -> None:
    """In the same boot of the machine. Under `group` it does not count yet, but the policy may
    change, and others then count it before this node hears of that."""
    folder = str(tmp_path / "1")
    log = CommitLog.open(OsDisk(), folder, clean=False, boot_id="boot")
    metadata = stream()
    metadata = replace(metadata, config=replace(metadata.config, flush=flush))
    if leads:
        metadata = replace(metadata, leader=1, isr=(1,))
    replica = Replica(metadata, log, services(), node_id=1, incarnation=10)
    replica.update(metadata, nodes(), 0)
    if leads:
        replica.append(encode([b"v"], b"a"))
    else:
        asked = replica.position()
        assert asked is not None
        batch_ = encode([b"v"], b"a")
        batch_.stamp(0, metadata.leader_epoch, 0)
        snapshot = LeaderSnapshot(0, 0, metadata.stream_epoch)
        answer = Records(asked, snapshot, LogSlice("", 0, batch_.length, 0, 0))
        replica.accept(answer, batch_.to_bytes(), 0)
    assert log.log_end_offset == 1
    (tmp_path / "1" / f"{0:020d}.log").write_bytes(b"")
    again = CommitLog.open(OsDisk(), folder, clean=False, boot_id="boot")
    assert "in this boot of the machine" in again.offline_reason


@pytest.mark.parametrize("flush", ["none", "interval", "group"])
def test_what_was_appended_before_the_disk_was_full_is_missed_when_it_is_gone(flush: str) -> None:
    """Where an answer reaches into a new segment, its beginning stays, and the leader counts it."""
    memory = MemoryDisk()
    disk = FaultyDisk(memory)
    log = CommitLog.open(
        disk, "/1", LogConfig(segment_bytes=2 * len(stamped(0))), clean=False, boot_id="boot"
    )
    metadata = stream()
    metadata = replace(metadata, config=replace(metadata.config, flush=flush))
    replica = Replica(metadata, log, services(), node_id=1, incarnation=10)
    replica.update(metadata, nodes(), 0)

    def take(*offsets: int) -> None:
        asked = replica.position()
        assert asked is not None
        data = b"".join(stamped(offset) for offset in offsets)
        snapshot = LeaderSnapshot(0, 0, metadata.stream_epoch)
        replica.accept(Records(asked, snapshot, LogSlice("", 0, len(data), 0, 0)), data, 0)

    take(0)
    disk.fail("create", ".log", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        take(1, 2)
    asked = replica.position()
    assert asked is not None
    assert asked.fetch_offset == 2
    found = memory.killed()
    found.truncate(f"/1/{0:020d}.log", len(stamped(0)))
    again = CommitLog.open(found, "/1", LogConfig(), clean=False, boot_id="boot")
    assert "in this boot of the machine" in again.offline_reason


def test_where_a_gap_found_no_room_nothing_counts_as_committed_that_comes_there_later() -> None:
    """After an unclean election other records may come there."""
    disk = FaultyDisk(MemoryDisk())
    metadata = replace(stream(), was_compacted=True)
    epoch = metadata.leader_epoch

    def opened() -> Replica:
        log = CommitLog.open(disk, "/1", clean=False)
        return Replica(metadata, log, services(), node_id=1, incarnation=10)

    def take(data: bytes, high_watermark: int) -> None:
        asked = replica.position()
        assert asked is not None
        snapshot = LeaderSnapshot(high_watermark, 0, metadata.stream_epoch)
        replica.accept(Records(asked, snapshot, LogSlice("", 0, len(data), 0, 0)), data, 0)

    replica = opened()
    replica.update(metadata, nodes(), 0)
    take(stamped(0, epoch=epoch), 1)
    gap = encode([b"v"], b"a", after_gap=True)
    gap.stamp(10, epoch, 0)
    disk.fail("write", ".log", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        take(gap.to_bytes(), 11)
    disk.heal()
    take(stamped(1, epoch=epoch, records=12), 1)
    for each in (replica, opened()):
        assert (each.log.log_end_offset, each.log.committed_below) == (13, 1)
    assert opened().high_watermark == 1


@pytest.mark.parametrize(
    ("compacted", "high_watermark", "taken"),
    [(True, 10, True), (True, 9, False), (False, 10, False)],
)
def test_a_follower_takes_gaps_only_of_a_compacted_stream_below_the_high_watermark(
    tmp_path: Path, compacted: bool, high_watermark: int, taken: bool
) -> None:
    tmp_path.joinpath("1").mkdir()
    log = CommitLog.open(OsDisk(), str(tmp_path / "1"), clean=False)
    metadata = replace(stream(), was_compacted=compacted)
    replica = Replica(metadata, log, services(), node_id=1, incarnation=10)
    replica.update(metadata, nodes(), 0)
    asked = replica.position()
    assert asked is not None
    snapshot = LeaderSnapshot(high_watermark, 0, metadata.stream_epoch)
    gap = encode([b"v"], b"a", after_gap=True)
    gap.stamp(10, 3, 0)
    answer = Records(asked, snapshot, LogSlice("", 0, gap.length, 0, 0))
    if taken:
        replica.accept(answer, gap.to_bytes(), 0)
        assert (log.log_end_offset, replica.high_watermark) == (11, 10)
    else:
        with pytest.raises(DivergedError, match="gap"):
            replica.accept(answer, gap.to_bytes(), 0)
        assert log.log_end_offset == 0


def committed_in_two_epochs(node: Node) -> Replica:
    """Offsets 0 and 1 of epoch 1, 2 and 3 of epoch 5, all committed."""
    replica = node.create()
    for epoch in (1, 5):
        replica.log.start_epoch(epoch)
        replica.log.append(batch(b"a", b"b"), leader_epoch=epoch, timestamp_us=0)
    replica.log.flush()
    replica.moved()
    assert replica.high_watermark == 4
    return replica


@on_loop
async def test_who_does_not_surely_lead_lets_a_reader_wait_that_has_seen_more(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = committed_in_two_epochs(node)
    for offset, last_epoch in ((9, -1), (9, 5), (9, 7), (5, 6)):
        assert replica.read(offset, 1 << 20, last_epoch, is_leader=False) is None
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(9, 1 << 20)


@pytest.mark.parametrize(
    ("offset", "last_epoch"),
    [
        (4, 1),  # Offset 3 is of epoch 5.
        (3, 7),  # Offset 2 is of epoch 5, and committed.
        (9, 1),  # Epoch 1 ended at offset 2, which is committed: offset 8 cannot be of it.
    ],
)
def test_who_does_not_surely_lead_tells_a_reader_of_another_history_so(
    tmp_path: Path, offset: int, last_epoch: int
) -> None:
    @on_loop
    async def scenario() -> None:
        node = Node(tmp_path / "streams")
        node.start()
        replica = committed_in_two_epochs(node)
        with pytest.raises(DivergedError):
            replica.read(offset, 1 << 20, last_epoch, is_leader=False)

    scenario()


@on_loop
async def test_what_is_not_committed_here_proves_nothing_against_a_reader(tmp_path: Path) -> None:
    node = Node(tmp_path / "streams")
    node.start()
    replica = node.create()
    node.append(replica, b"a", b"b")
    replica.log.start_epoch(5)
    replica.log.append(batch(b"of a leader that lost it"), leader_epoch=5, timestamp_us=0)
    assert (replica.high_watermark, replica.log.log_end_offset) == (2, 3)
    first_epoch = replica.stream.leader_epoch
    # The reader's offset 2 was of the first epoch: here it is of epoch 5, and may yet be cut off.
    assert replica.read(3, 1 << 20, first_epoch, is_leader=False) is None
    with pytest.raises(DivergedError):
        replica.read(3, 1 << 20, first_epoch)


def test_a_log_that_lost_its_beginning_sends_readers_elsewhere_until_it_is_fetched_anew(
    tmp_path: Path,
) -> None:
    """Its start is not the stream's: who went on there would miss records."""
    folder = tmp_path / "1"
    log = CommitLog.open(OsDisk(), str(folder), LogConfig(segment_bytes=300), clean=False)
    for _ in range(10):
        log.append(batch(b"v" * 50), leader_epoch=3, timestamp_us=0)
    log.flush()
    first, *rest = sorted(folder.glob("*.log"))
    start = int(rest[0].stem)
    first.unlink()
    for recorded in (folder / "checkpoint", tmp_path / "1.offsets"):
        recorded.unlink()
    damaged = CommitLog.open(OsDisk(), str(folder), LogConfig(segment_bytes=300), clean=False)
    assert damaged.log_start_offset == start
    assert damaged.is_start_unknown
    replica = Replica(stream(), damaged, services(), node_id=1, incarnation=10)
    with pytest.raises(UnavailableError, match="has lost the beginning"):
        replica.read(0, 1 << 20, is_leader=False)
    with pytest.raises(UnavailableError, match="has lost the beginning"):
        replica.check_start()
    replica.update(replace(stream((0, 2)), stream_epoch=8), nodes(), 0)
    asked = replica.position()
    assert asked is not None
    replica.accept(OutOfRange(asked, LeaderSnapshot(20, 7, 8)), b"", 0)
    with pytest.raises(OffsetOutOfRangeError):
        replica.read(0, 1 << 20, is_leader=False)
