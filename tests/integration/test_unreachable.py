"""One link, one node's NATS, one node's disk: what others can do they go on doing.

The network between the processes is cut by tests/support/fault_network.py. The tests share a
cluster; each has a stream of its own, and heals the network.
"""

from __future__ import annotations

import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.cluster.local import NATS, node_name
from jetstream_client import Client
from tests.support.cluster import TestCluster
from tests.support.fault_cluster import FaultCluster, running_fault_cluster
from tests.support.load import Load
from tests.support.small_disk import SmallDisk

QUIET_SECONDS = 3.0
"""Whoever would do something has done it by then."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultCluster]:
    with running_fault_cluster(tmp_path_factory.mktemp("cut") / "cluster") as cluster:
        # Otherwise a follower that lags for ten seconds leaves the ISR, whatever is noticed before.
        cluster.jetstream("cluster", "alter", "--replica-lag-max", "300s")
        yield cluster


@pytest.fixture
def faulty(shared: FaultCluster) -> Iterator[FaultCluster]:
    yield shared
    shared.network.heal()


def begin(cluster: TestCluster, name: str) -> tuple[Load, int]:
    """A stream under load, and its leader."""
    cluster.api(0).create(name, name)
    cluster.wait_for_isr(name, cluster.nodes)
    load = Load(cluster.nats, name, window=64).start()
    load.wait_for_acks(200)
    return load, cluster.settled(name).stream.leader


def goes_on(load: Load, since: float) -> None:
    """It is acknowledged, with the fault or without; says after how long."""
    load.wait_for_acks(50)
    print(f"{load.books.longest_gap(since):.2f} s without an ack")


def test_a_link_that_is_cut_between_leader_and_one_follower_costs_little_time(
    faulty: FaultCluster, name: str
) -> None:
    load, leader = begin(faulty, name)
    follower = (leader + 1) % 3

    def followed(node: int) -> list[int]:
        """The ISR, while that node leads."""
        stream = faulty.describe(name).stream
        return list(stream.isr) if stream.leader == node else []

    cut_at = time.monotonic()
    faulty.network.cut(node_name(leader), node_name(follower), "data")
    faulty.wait_for("who is out of reach is out of sync", lambda: follower not in followed(leader))
    goes_on(load, cut_at)
    faulty.network.heal()
    faulty.wait_for_isr(name, faulty.nodes)
    load.wait_for_acks(100)
    faulty.check_everywhere(name, load.stop())


def test_who_left_an_idle_stream_comes_back_without_a_message(
    faulty: FaultCluster, name: str
) -> None:
    load, leader = begin(faulty, name)
    load.stop()
    follower = (leader + 1) % 3
    others = [node for node in faulty.nodes if node != follower]
    faulty.network.cut(node_name(leader), node_name(follower), "data")
    faulty.wait_for_isr(name, others)
    faulty.network.heal()
    faulty.wait_for_isr(name, faulty.nodes)


def test_a_leader_that_cannot_hear_nats_hands_over_to_one_that_can(
    faulty: FaultCluster, name: str
) -> None:
    load, leader = begin(faulty, name)
    cut_at = time.monotonic()
    faulty.network.cut(node_name(leader), NATS, NATS)
    faulty.wait_for("another leads", lambda: faulty.settled(name).stream.leader != leader)
    goes_on(load, cut_at)
    other = next(node for node in faulty.nodes if node != leader)
    with Client(faulty.cluster.grpc_addresses[other], timeout=60) as client:
        faulty.wait_for(
            "it alone is not ready",
            lambda: [n.id for n in client.describe_cluster().nodes if n.not_ready] == [leader],
        )
        assert "NATS" in client.describe_cluster().nodes[leader].not_ready[0]
    faulty.network.heal()
    faulty.wait_for_isr(name, faulty.nodes)
    load.wait_for_acks(100)
    faulty.check_everywhere(name, load.stop())


def test_a_leader_that_nobody_could_replace_goes_on_leading(
    faulty: FaultCluster, name: str
) -> None:
    """NATS is away for everybody: a hand-over would only cost readers a leader."""
    load, leader = begin(faulty, name)
    for node in faulty.nodes:
        faulty.network.cut(node_name(node), NATS, NATS)
    seen = {node: len(faulty.log(node)) for node in faulty.nodes}
    time.sleep(QUIET_SECONDS)
    led_by = [faulty.settled(name).stream.leader]
    faulty.network.heal()
    load.wait_for_acks(100)
    led_by.append(faulty.settled(name).stream.leader)
    fenced = any('"node_fenced"' in faulty.log(node)[seen[node] :] for node in faulty.nodes)
    assert fenced or led_by == [
        leader,
        leader,
    ]  # Who stands still for longer than a session does not.
    faulty.check_everywhere(name, load.stop())


def readyz(cluster: TestCluster, node: int) -> tuple[int, str]:
    try:
        url = f"http://{http_of(cluster, node)}/readyz"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def http_of(cluster: TestCluster, node: int) -> str:
    return str(cluster.cluster.config["nodes"][node]["http"])


def test_a_restarted_node_is_ready_once_it_was_in_sync_and_stays_so(
    faulty: FaultCluster, name: str
) -> None:
    load, leader = begin(faulty, name)
    node = (leader + 1) % 3
    others = [each for each in faulty.nodes if each != node]
    faulty.network.cut(node_name(leader), node_name(node), "data")
    faulty.wait_for_isr(name, others)
    faulty.stop(node)
    faulty.restart(node)  # It serves, so whoever starts it by hand does not wait.
    status, said = readyz(faulty, node)
    assert (status, said.startswith("catching up: ")) == (503, True), said
    assert "of its replicas" in said
    with Client(faulty.cluster.grpc_addresses[node], timeout=60) as client:
        # A starved one may lack its lease or NATS for a moment.
        faulty.wait_for(
            "all nodes serve",
            lambda: not any(each.not_ready for each in client.describe_cluster().nodes),
        )
    faulty.network.heal()
    faulty.wait_for("node is ready", lambda: readyz(faulty, node) == (200, "ready\n"))
    faulty.wait_for_isr(name, faulty.nodes)  # The leader may apply it a moment later.
    faulty.network.cut(node_name(leader), node_name(node), "data")
    faulty.wait_for_isr(name, others)
    assert readyz(faulty, node) == (200, "ready\n")
    faulty.network.heal()
    faulty.wait_for_isr(name, faulty.nodes)
    faulty.check_everywhere(name, load.stop())


RESERVE_BYTES = 8 << 20
DISK_BYTES = 64 << 20


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[tuple[TestCluster, SmallDisk]]:
    """A cluster whose node 0 has a small disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    cluster = TestCluster(tmp_path / "cluster")
    config = {**cluster.cluster.config, "log": {"disk_reserve_bytes": RESERVE_BYTES}}
    cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    try:
        disk = SmallDisk(cluster.cluster.directory / node_name(0), DISK_BYTES)
    except OSError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    try:
        cluster.start()
        yield cluster, disk
    finally:
        cluster.close()
        disk.close()


def test_a_leader_whose_disk_is_below_its_reserve_hands_over_and_gets_nothing_back_at_once(
    narrow: tuple[TestCluster, SmallDisk], name: str
) -> None:
    cluster, disk = narrow
    load, _ = begin(cluster, name)
    cluster.hand_over(name, 0)
    load.wait_for_acks(100)
    filled_at = time.monotonic()
    disk.leave(RESERVE_BYTES // 2)
    cluster.wait_for("another leads", lambda: cluster.settled(name).stream.leader != 0)
    goes_on(load, filled_at)
    with Client(cluster.cluster.grpc_addresses[0], timeout=60) as client:
        cluster.wait_for("it is marked", lambda: client.describe_cluster().nodes[0].disk_full)
        placed = [client.create_stream(f"new-{n}", f"new.{n}", replicas=2) for n in range(3)]
        assert {each.replicas for each in placed} == {(1, 2)}, "asked of the node without room"
    disk.empty()
    time.sleep(QUIET_SECONDS)
    assert cluster.settled(name).stream.leader != 0, "room that comes and goes moves leaders"
    cluster.wait_for("it can serve", lambda: "node_can_serve_again" in cluster.log(0))
    load.wait_for_acks(100)
    cluster.check_everywhere(name, load.stop())
