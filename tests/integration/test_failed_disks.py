"""A replica whose disk fails, in a real cluster: it claims nothing, others serve, it comes back.

The disks are made to fail under real servers (tests/support/breaking_server.py). The tests share a
cluster; each has a stream of its own, which is gone at its end.
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

    def wait_for_failure(self, node: int, name: str) -> None:
        def has_failed() -> bool:
            lines = self.log(node).splitlines()
            return any("log_failed" in line and f'"{name}@{name}"' in line for line in lines)

        self.wait_for(f"a log of node {node} fails", has_failed)

    def leader(self, name: str) -> int:
        return self.settled(name).stream.leader


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("breaking") / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def healed(shared: Cluster, name: str) -> Iterator[Cluster]:
    yield shared
    for node in shared.nodes:
        shared.break_disk(node)  # It works again.
    shared.api(0).delete(name)


def begin(cluster: Cluster, name: str, flush: int) -> tuple[Load, int]:
    """A stream under load, and its leader."""
    cluster.api(0).create(name, name, flush=flush)
    cluster.wait_for_isr(name, cluster.nodes)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(200)
    return load, cluster.leader(name)


def finish(cluster: Cluster, name: str, load: Load) -> None:
    cluster.wait_for_isr(name, cluster.nodes)
    load.wait_for_acks(200)
    cluster.check_everywhere(name, load.stop())


@FLUSHES
def test_a_follower_whose_flush_failed_is_not_elected_and_comes_back_by_itself(
    healed: Cluster, name: str, flush: int
) -> None:
    load, leader = begin(healed, name, flush)
    follower = (leader + 1) % 3
    healed.break_disk(follower, "fsync .log 1")
    healed.wait_for_failure(follower, name)
    healed.wait_for_isr(name, healed.nodes)
    load.wait_for_acks(100)
    healed.kill(leader)
    load.wait_for_acks(200)
    healed.restart(leader)
    finish(healed, name, load)


@FLUSHES
def test_a_follower_whose_disk_goes_on_failing_stays_outside_until_it_works(
    healed: Cluster, name: str, flush: int
) -> None:
    load, leader = begin(healed, name, flush)
    follower = (leader + 1) % 3
    others = [node for node in healed.nodes if node != follower]
    healed.break_disk(follower, "fsync .log", "write .log", "write_atomic checkpoint")
    healed.wait_for_isr(name, others)
    healed.kill(leader)
    healed.restart(leader)
    load.wait_for_acks(200)
    assert healed.leader(name) != follower
    healed.break_disk(follower)
    finish(healed, name, load)


@FLUSHES
@pytest.mark.parametrize("fault", ["write .log 1", "fsync .log 1"])
def test_a_leader_whose_disk_failed_gives_its_leadership_up_and_comes_back_by_itself(
    healed: Cluster, name: str, flush: int, fault: str
) -> None:
    """Its lease goes on: nobody else would take the leadership from it."""
    load, leader = begin(healed, name, flush)
    healed.break_disk(leader, fault)
    healed.wait_for_failure(leader, name)
    healed.wait_for("another one leads", lambda: healed.leader(name) != leader)
    load.wait_for_acks(100)
    finish(healed, name, load)


def test_the_last_replica_in_sync_whose_disk_failed_leads_again_with_what_can_be_read(
    healed: Cluster, name: str
) -> None:
    """No replica that is heard holds more. The possible loss is counted. Replicas that come back
    copy this one."""
    healed.api(0).create(name, name, replicas=2, flush=2)
    first, second = sorted(healed.settled(name).stream.replicas)
    healed.wait_for_isr(name, [first, second])
    healed.stop(second)
    healed.wait_for_isr(name, [first])
    load = Load(healed.nats, name).start()
    load.wait_for_acks(200)
    assert healed.settled(name).stream.lossy_elections == 0
    healed.break_disk(first, "fsync .log 1")
    healed.wait_for_failure(first, name)
    healed.wait_for(
        "it is elected again",
        lambda: healed.describe(name).stream.lossy_elections >= 1,
        seconds=200,  # A new controller waits anew for the other replica.
    )
    load.wait_for_acks(200)
    healed.restart(second)
    healed.wait_for_isr(name, [first, second])
    load.wait_for_acks(200)
    books = load.stop()
    end = healed.settled(name).high_watermark
    books.check(healed.api(healed.leader(name)).values_upto(name, end))
