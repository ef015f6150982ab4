"""One link, one node's NATS, one node's disk: what others can do they do within three seconds.

The network between the processes is cut by tests/support/fault_network.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster.local import NATS, node_name
from tests.support.fault_cluster import FaultCluster, running_fault_cluster
from tests.support.load import Load

GAP_SECONDS = 3.0
PUBLISHING_SECONDS = 6.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FaultCluster]:
    with running_fault_cluster(tmp_path / "cluster") as cluster:
        yield cluster


def begin(cluster: FaultCluster) -> tuple[Load, int]:
    """A stream under load, and its leader."""
    cluster.api(0).create("orders", "orders")
    cluster.wait_for_isr("orders", cluster.nodes)
    load = Load(cluster.nats, "orders", window=64).start()
    load.wait_for_acks(200)
    return load, cluster.settled("orders").stream.leader


def gap(load: Load, since: float) -> float:
    """The longest time without an ack from then on, for a while."""
    time.sleep(PUBLISHING_SECONDS)
    load.wait_for_acks(50)
    return load.books.longest_gap(since)


def test_a_link_that_is_cut_between_leader_and_one_follower_costs_little_time(
    cluster: FaultCluster,
) -> None:
    load, leader = begin(cluster)
    follower = (leader + 1) % 3
    cut_at = time.monotonic()
    cluster.network.cut(node_name(leader), node_name(follower), "data")
    assert gap(load, cut_at) < GAP_SECONDS
    assert follower not in cluster.describe("orders").stream.isr
    cluster.network.heal()
    cluster.wait_for_isr("orders", cluster.nodes)
    load.wait_for_acks(100)
    cluster.check_everywhere("orders", load.stop())

