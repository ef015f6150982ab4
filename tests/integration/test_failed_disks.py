"""A replica whose disk fails, in a real cluster: it claims nothing, others serve, it comes back.

The disks are made to fail under real servers (tests/support/breaking_server.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster.local import LocalCluster
from tests.support import breaking_server
from tests.support.cluster import TestCluster
from tests.support.load import Load

FLUSHES = pytest.mark.parametrize("flush", [2, 3], ids=["interval", "group"])
SERVED_AGAIN_SECONDS = 3.0


class BreakingCluster(LocalCluster):
    """Its nodes' disks break when they are told to."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.faults = self.directory.with_name("faults")
        self.server = breaking_server.command(self.faults)


class Cluster(TestCluster):
    kind = BreakingCluster

    def break_disk(self, node: int, *faults: str) -> None:
        assert isinstance(self.cluster, BreakingCluster)
        breaking_server.break_disk(self.cluster.faults, node, *faults)

    def wait_for_failure(self, node: int) -> None:
        self.wait_for(f"a log of node {node} fails", lambda: "log_failed" in self.log(node))

    def leader(self, name: str) -> int:
        return self.settled(name).stream.leader


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def begin(cluster: Cluster, flush: int) -> tuple[Load, int]:
    """A stream under load, and its leader."""
    cluster.api(0).create("orders", "orders", flush=flush)
    cluster.wait_for_isr("orders", cluster.nodes)
    load = Load(cluster.nats, "orders").start()
    load.wait_for_acks(200)
    return load, cluster.leader("orders")


def finish(cluster: Cluster, load: Load) -> None:
    cluster.wait_for_isr("orders", cluster.nodes)
    load.wait_for_acks(200)
    cluster.check_everywhere("orders", load.stop())


@FLUSHES
def test_a_follower_whose_flush_failed_is_not_elected_and_comes_back_by_itself(
    cluster: Cluster, flush: int
) -> None:
    load, leader = begin(cluster, flush)
    follower = (leader + 1) % 3
    cluster.break_disk(follower, "fsync .log 1")
    cluster.wait_for_failure(follower)
    cluster.wait_for_isr("orders", cluster.nodes)
    load.wait_for_acks(100)
    cluster.kill(leader)
    load.wait_for_acks(200)
    cluster.restart(leader)
    finish(cluster, load)


@FLUSHES
def test_a_follower_whose_disk_goes_on_failing_stays_outside_until_it_works(
    cluster: Cluster, flush: int
) -> None:
    load, leader = begin(cluster, flush)
    follower = (leader + 1) % 3
    others = [node for node in cluster.nodes if node != follower]
    cluster.break_disk(follower, "fsync .log", "write .log", "write_atomic checkpoint")
    cluster.wait_for_isr("orders", others)
    cluster.kill(leader)
    cluster.restart(leader)
    load.wait_for_acks(200)
    assert cluster.leader("orders") != follower
    cluster.break_disk(follower)
    finish(cluster, load)


@FLUSHES
@pytest.mark.parametrize("fault", ["write .log 1", "fsync .log 1"])
def test_a_leader_whose_disk_failed_gives_its_leadership_up_and_comes_back_by_itself(
    cluster: Cluster, flush: int, fault: str
) -> None:
    load, leader = begin(cluster, flush)
    cluster.break_disk(leader, fault)
    cluster.wait_for_failure(leader)
    took = cluster.wait_for("another one leads", lambda: cluster.leader("orders") != leader)
    load.wait_for_acks(100)
    assert took < SERVED_AGAIN_SECONDS
    finish(cluster, load)


def test_the_last_replica_in_sync_whose_disk_failed_leads_again_with_what_can_be_read(
    cluster: Cluster,
) -> None:
    """Nobody holds more; that something may be lost is counted. Who comes back copies it."""
    cluster.api(0).create("orders", "orders", replicas=2, flush=2)
    first, second = sorted(cluster.settled("orders").stream.replicas)
    cluster.wait_for_isr("orders", [first, second])
    cluster.stop(second)
    cluster.wait_for_isr("orders", [first])
    load = Load(cluster.nats, "orders").start()
    load.wait_for_acks(200)
    assert cluster.settled("orders").stream.lossy_elections == 0
    cluster.break_disk(first, "fsync .log 1")
    cluster.wait_for_failure(first)
    cluster.wait_for(
        "it is elected again", lambda: cluster.settled("orders").stream.lossy_elections == 1
    )
    load.wait_for_acks(200)
    cluster.restart(second)
    cluster.wait_for_isr("orders", [first, second])
    load.wait_for_acks(200)
    books = load.stop()
    end = cluster.settled("orders").high_watermark
    books.check(cluster.api(cluster.leader("orders")).values_upto("orders", end))
