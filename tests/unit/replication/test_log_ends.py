"""The log end that a replica reports, and the election among untrusted replicas."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jetstream_protocol.types import NO_NODE, LeaderEpoch, MonotonicUs, NodeId
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.follower import Reset
from jetstream_server.replication.core.messages import NOWHERE, LeaderSnapshot, OutOfRange
from jetstream_server.replication.core.restart_trust import RunRecord
from jetstream_server.replication.core.unclean_election import ReplicaReport, choose_unclean
from jetstream_server.replication.drivers.log_ends import leaderless_log_ends
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc.elections import UncleanElections
from tests.support.log_batches import batch
from tests.support.log_disk import MemoryDisk
from tests.support.services import services
from tests.unit.replication.cores import nodes, stream

LENGTH = batch(b"0000").length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)
WAITING = tuple(map(NodeId, (0, 1, 2)))


def leaderless() -> StreamMetadata:
    return replace(stream(()), leader=NO_NODE, last_known=WAITING)


def replica(
    node_id: int, count: int, *, lost: tuple[int, ...] = (), disk: MemoryDisk | None = None
) -> Replica:
    """With `count` records, four in each segment. lost: base offsets of segments that are lost."""
    disk = disk or MemoryDisk()
    log = CommitLog.open(disk, "/1", CONFIG, clean=False, boot_id="boot")
    for number in range(count):
        log.append(batch(b"%04d" % number), leader_epoch=2, timestamp_us=number)
    log.close(clean=True)
    for base in lost:
        disk.remove(f"/1/{base:020d}.log")
    log = CommitLog.open(disk, "/1", CONFIG, clean=True, boot_id="boot")
    return Replica(leaderless(), log, services(), node_id=node_id, incarnation=10)


def elected(*replicas: Replica) -> int:
    reports: dict[NodeId, ReplicaReport] = {}
    for each in replicas:
        replica_of = {each.stream.id: each}.get
        ends = leaderless_log_ends(each.node_id, [leaderless()], replica_of, RunRecord())
        reports[each.node_id] = ends[0].report
    command = choose_unclean(leaderless(), nodes(), reports)
    assert command is not None
    return int(command.leader)


def test_a_log_that_lacks_its_beginning_is_elected_before_an_empty_one() -> None:
    assert elected(replica(0, 0), replica(1, 0), replica(2, 10, lost=(0,))) == 2


def test_a_log_that_lacks_its_beginning_is_elected_before_one_that_ends_earlier() -> None:
    """The follower keeps its own records in front of that: nothing is lost."""
    assert elected(replica(0, 5), replica(1, 0), replica(2, 10, lost=(0,))) == 2
    assert elected(replica(0, 11), replica(1, 0), replica(2, 10, lost=(0,))) == 0


def test_a_log_without_any_segment_counts_as_nothing() -> None:
    assert elected(replica(0, 10, lost=(0, 4, 8)), replica(1, 1), replica(2, 0)) == 1


def test_a_log_whose_last_segment_is_left_and_empty_counts_as_nothing() -> None:
    disk = MemoryDisk()
    replica(0, 10, lost=(0, 4), disk=disk)
    disk.truncate(f"/1/{8:020d}.log", 0)
    log = CommitLog.open(disk, "/1", CONFIG, clean=False, boot_id="boot")
    left = Replica(leaderless(), log, services(), node_id=0, incarnation=10)
    assert log.log_end_offset == 8
    assert elected(left, replica(1, 1), replica(2, 0)) == 1


def test_who_led_last_is_elected_before_a_longer_log_of_an_epoch_before() -> None:
    """It may have committed what it held although nothing was appended under it."""
    led, longer = replica(1, 5), replica(2, 10)
    longer.log.append(batch(b"later"), leader_epoch=3, timestamp_us=20)
    assert elected(replica(0, 0), led, longer) == 2
    led.log.start_epoch(LeaderEpoch(4))
    assert elected(replica(0, 0), led, longer) == 1


def test_an_empty_log_that_led_is_not_elected_before_one_with_records() -> None:
    empty = replica(0, 0)
    empty.log.start_epoch(LeaderEpoch(4))
    assert elected(empty, replica(1, 5), replica(2, 0)) == 1


def test_an_operator_who_elects_by_hand_is_told_the_same_epochs() -> None:
    for count, epoch in ((0, -1), (5, 4)):
        led: Any = replica(0, count)
        led.log.start_epoch(LeaderEpoch(4))
        nobody: Any = None
        replicas: Any = {led.stream.id: led}
        by_hand = UncleanElections(nobody, replicas, nobody, tuple, node_id=0)
        held = by_hand.state_here(led.stream).log
        assert held is not None
        assert held.last_epoch == report_of(led, RunRecord()).last_epoch == epoch


def report_of(of: Replica, record: RunRecord) -> ReplicaReport:
    (end,) = leaderless_log_ends(of.node_id, [of.stream], {of.stream.id: of}.get, record)
    return end.report


def test_an_empty_log_in_another_folder_than_before_is_known_to_lack_records() -> None:
    empty, stream_id = replica(1, 0), leaderless().id
    assert not report_of(empty, RunRecord()).damaged
    assert report_of(empty, RunRecord().folder_replaced(stream_id)).damaged
    assert not report_of(empty, RunRecord().folder_replaced(stream_id - 1)).damaged
    assert not report_of(replica(1, 1), RunRecord().folder_replaced(stream_id)).damaged


def test_an_incomplete_copy_of_a_compacted_log_counts_less_than_any_log() -> None:
    copy = replica(1, 4)
    copy.stream = replace(copy.stream, was_compacted=True)
    assert report_of(copy, RunRecord()) == ReplicaReport(10, 2, 4, damaged=False)
    copy.log.compaction.note_copied_under(5)
    assert report_of(copy, RunRecord()) == ReplicaReport(10, -1, 4, damaged=True)


def test_a_log_that_could_not_be_opened_is_waited_for() -> None:
    """The next start may read it; an operator need not wait."""
    unopened = replica(1, 10)
    unopened.unreadable_reason = "opening it: Input/output error"
    streams = [leaderless()]
    assert (
        leaderless_log_ends(NodeId(1), streams, {unopened.stream.id: unopened}.get, RunRecord())
        == ()
    )


def test_who_leads_without_its_beginning_takes_what_is_missing_for_committed_and_gone() -> None:
    chosen = replica(2, 10, lost=(0,))
    of = replace(stream((2,), minimum=1), leader=NodeId(2))
    chosen.update(of, nodes(), MonotonicUs(0))
    assert (chosen.log.log_start_offset, chosen.high_watermark) == (4, 4)
    chosen.log.flush()  # Its epoch is noted on disk before anything earlier counts.
    chosen.moved()
    assert (chosen.log.log_start_offset, chosen.high_watermark) == (4, 10)
    below_minimum = replica(2, 10, lost=(0,))
    below_minimum.update(replace(of, config=stream().config), nodes(), MonotonicUs(0))
    assert (below_minimum.log.log_start_offset, below_minimum.high_watermark) == (4, 4)


def test_a_follower_of_whose_log_nothing_says_where_it_starts_fetches_it_anew() -> None:
    """And so in the next run, should it die before that."""
    disk = MemoryDisk()
    replica(1, 10, lost=(0,), disk=disk)
    disk.remove("/1/checkpoint")
    disk.remove("/1.offsets")
    of = replace(stream((0,)), stream_epoch=9)
    for _ in range(2):
        log = CommitLog.open(disk, "/1", CONFIG, clean=False, boot_id="boot")
        follower = Replica(of, log, services(), node_id=1, incarnation=10)
        follower.update(of, nodes(), MonotonicUs(0))
        log.flush()
        follower.record_incompleteness()
        position = follower.position()
        assert position is not None
        assert position.fetch_offset == NOWHERE
        log.close(clean=True)
        disk.remove("/1.offsets")  # As a power failure may take it: it was not synced.
        assert CommitLog.open(disk, "/1", CONFIG, clean=True, boot_id="boot").is_start_unknown
    log = CommitLog.open(disk, "/1", CONFIG, clean=True, boot_id="boot")
    follower = Replica(of, log, services(), node_id=1, incarnation=10)
    follower.update(of, nodes(), MonotonicUs(0))
    standing = LeaderSnapshot(0, 0, 9)
    assert follower.accept(OutOfRange(position, standing), b"", MonotonicUs(0)) == Reset(0)
    again = Replica(
        of, CommitLog.open(disk, "/1", CONFIG, clean=False), services(), node_id=1, incarnation=10
    )
    assert not again.needs_rebuild


def test_who_is_elected_although_nothing_says_where_its_log_starts_is_believed_from_then_on() -> (
    None
):
    disk = MemoryDisk()
    replica(2, 10, lost=(0,), disk=disk)
    disk.remove("/1/checkpoint")
    disk.remove("/1.offsets")
    log = CommitLog.open(disk, "/1", CONFIG, clean=False, boot_id="boot")
    of = replace(stream((2,)), leader=NodeId(2))
    Replica(of, log, services(), node_id=2, incarnation=10).update(of, nodes(), MonotonicUs(0))
    again = CommitLog.open(disk, "/1", CONFIG, clean=False, boot_id="boot")
    assert (again.incomplete_reason, again.log_start_offset) == ("", 4)
