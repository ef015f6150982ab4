"""What counts as committed after elections that lose records, and when they are found again; and
who may be in sync with records that are marked as damaged."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jetstream_protocol.types import LeaderEpoch, NodeId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.damage import view
from jetstream_server.log.inspection import BadRange
from tests.simulation.checker import Checker
from tests.simulation.disk import SimulatedDisk
from tests.simulation.world import Violation, World
from tests.support.log_batches import batch
from tests.unit.replication.cores import stream


class Cluster:
    """Three logs. Node 0 leads epoch 3; it has appended and committed three records, of which the
    last is acknowledged. Node 0 has lost them, node 1 the last one; node 2 holds all, out of
    sync."""

    def __init__(self) -> None:
        self.checker: Any = Checker(World(1), 3)
        self.stream = stream((0, 1))
        self.logs = [CommitLog.open(SimulatedDisk(), "/1", clean=False) for _ in range(3)]
        for number in range(3):
            self.append(0, number)
        self.copy(0, 1, 2)
        self.copy(0, 2, 3)
        self.leader_says(0, 3)
        self.checker.acknowledged(2, 2)
        self.checker.suspect(0)
        self.checker.has_disk_failed = True

    def _told(self, node_id: int, high_watermark: int, leadership: object) -> tuple[Any, Any]:
        replica = SimpleNamespace(
            stream=self.stream,
            log=self.logs[node_id],
            leadership=leadership,
            high_watermark=high_watermark,
            counts_flushed=False,
        )
        return SimpleNamespace(node_id=node_id), replica

    def append(self, node_id: int, number: int) -> None:
        log, added = self.logs[node_id], batch(b"%d" % number)
        offset = log.append(added, leader_epoch=self.stream.leader_epoch, timestamp_us=0)
        self.checker.leader_appended(*self._told(node_id, 0, True), offset, added)

    def copy(self, source: int, node_id: int, end_offset: int) -> None:
        log = self.logs[node_id]
        found = self.logs[source].read(log.log_end_offset, 1 << 20, end_offset)
        assert found is not None
        log.append_replica(self.logs[source].pread(found))
        self.checker.follow(node_id, log)

    def truncate(self, node_id: int, end_offset: int) -> None:
        self.logs[node_id].truncate(end_offset)
        self.checker.truncated(node_id, self.logs[node_id])

    def leader_says(self, node_id: int, high_watermark: int) -> None:
        self.checker.high_watermark_rose(*self._told(node_id, high_watermark, True))

    def follower_says(self, node_id: int, high_watermark: int) -> None:
        self.checker.high_watermark_rose(*self._told(node_id, high_watermark, None))

    def elect_uncleanly(self, node_id: int) -> None:
        before = self.stream
        self.stream = replace(
            before,
            leader=NodeId(node_id),
            leader_epoch=LeaderEpoch(before.leader_epoch + 1),
            isr=(NodeId(node_id),),
            lossy_elections=before.lossy_elections + 1,
        )
        self.checker.stream_changed(before, self.stream)


def test_what_an_election_lost_does_not_count_although_a_node_holds_it() -> None:
    cluster = Cluster()
    cluster.elect_uncleanly(1)
    assert (cluster.checker.committed_end, cluster.checker.acked) == (2, {})
    with pytest.raises(Violation, match="takes 3 for committed"):
        cluster.follower_says(2, 3)


def test_what_an_election_lost_counts_again_once_a_later_one_has_found_it() -> None:
    cluster = Cluster()
    cluster.elect_uncleanly(1)
    cluster.elect_uncleanly(2)
    assert (cluster.checker.committed_end, cluster.checker.acked) == (3, {2: 2})
    cluster.copy(2, 1, 3)
    cluster.follower_says(1, 3)


def test_what_was_never_committed_does_not_count_in_the_place_of_what_was_lost() -> None:
    cluster = Cluster()
    cluster.elect_uncleanly(1)
    cluster.append(1, 7)
    cluster.truncate(2, 2)
    cluster.copy(1, 2, 3)
    cluster.elect_uncleanly(2)
    assert (cluster.checker.committed_end, cluster.checker.acked) == (2, {})
    with pytest.raises(Violation, match="takes 3 for committed"):
        cluster.follower_says(1, 3)


def test_of_what_two_elections_lost_the_older_counts_again_after_the_other() -> None:
    cluster = Cluster()
    cluster.elect_uncleanly(1)
    cluster.truncate(1, 1)
    cluster.elect_uncleanly(1)
    assert cluster.checker.committed_end == 1
    cluster.elect_uncleanly(2)
    assert (cluster.checker.committed_end, cluster.checker.acked) == (3, {2: 2})


def test_what_the_winner_holds_is_not_known_before_its_log_can_be_opened() -> None:
    cluster = Cluster()
    cluster.checker.reopened(0, CommitLog.open(SimulatedDisk(), "/1", clean=False))
    cluster.checker.not_opened(0)  # By the next start, which is the one that registers.
    cluster.checker.registered(0)
    cluster.elect_uncleanly(0)
    cluster.checker.check(cluster.stream)
    cluster.checker.begun_anew(0)
    with pytest.raises(Violation, match="node 0 is in ISR"):
        cluster.checker.check(cluster.stream)


def test_who_registers_with_marked_records_is_not_in_sync_until_they_can_be_read() -> None:
    cluster = Cluster()
    log, checker = cluster.logs[2], cluster.checker
    log.seal()
    segment = log.damage.segments()[0]
    log.damage.mark(segment, view(segment), [BadRange(0, 0, 3, 0, segment.size, "it failed once")])
    told = replace(cluster.stream, leader=NodeId(2), isr=(NodeId(2),))
    checker.reopened(2, log)
    checker.check(told)  # The metadata does not know it yet.
    checker.registered(2)
    with pytest.raises(Violation, match="disk has lost records"):
        checker.check(told)
    log.damage.repaired(0)
    checker.check(told)  # The checker has read what was marked.
    assert not log.damage.is_damaged


def test_an_id_may_be_forgotten_if_it_stood_in_a_log_whose_leader_set_its_clock_forward() -> None:
    cluster = Cluster()
    cluster.checker.clock_set_forward(0)
    cluster.append(0, 3)
    cluster.append(0, 1)
    cluster.leader_says(0, 5)
    cluster.checker.acknowledged(1, 1)
    cluster.checker.acknowledged(1, 4)
    cluster.append(0, 3)
    with pytest.raises(Violation, match="publish 3 is committed at two offsets, 3 and 5"):
        cluster.leader_says(0, 6)
