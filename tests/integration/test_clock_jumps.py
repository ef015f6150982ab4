"""Wall clocks of running nodes are set forth and back; only time stamps show it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.cluster.local import LocalCluster, node_name
from jetstream_protocol.logfiles.verify import verify
from tests.support import clocked_server
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.support.producing import Producer
from tests.support.undisturbed import check_undisturbed

HOUR_US = 3_600_000_000


class ClockedLocalCluster(LocalCluster):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.clocks = directory.with_name("clocks")
        self.server = clocked_server.command(self.clocks)


class ClockedCluster(TestCluster):
    kind = ClockedLocalCluster

    def set_clock(self, node: int, microseconds: int) -> None:
        assert isinstance(self.cluster, ClockedLocalCluster)
        clocked_server.set_clock(self.cluster.clocks, node, microseconds)


@pytest.fixture
def clocked(tmp_path: Path) -> Iterator[ClockedCluster]:
    running = ClockedCluster(tmp_path / "cluster")
    try:
        for node in running.nodes:
            running.set_clock(node, 0)
        running.start()
        yield running
    finally:
        running.close()


def test_clocks_that_jump_cost_no_lease_and_no_ack_and_time_stamps_never_fall(
    clocked: ClockedCluster,
) -> None:
    clocked.api(0).create("orders", "orders")
    load = Load(clocked.nats, "orders", window=16).start()
    load.wait_for_acks(200)

    def jump() -> None:
        for hours in (1, -2, 1000, 0):
            for node in clocked.nodes:
                # Each its own: no two agree on the time, nor on by how much it has changed.
                clocked.set_clock(node, hours * HOUR_US * (node + 1))
            load.wait_for_acks(200)

    check_undisturbed(clocked, jump, "orders")
    clocked.wait_for_isr("orders", clocked.nodes)
    leader = -1

    def is_ahead() -> bool:
        nonlocal leader
        leader = clocked.settled("orders").stream.leader
        last = clocked.api(leader).read_all("orders")[-1].header.append_timestamp
        return last - time.time_ns() // 1000 > 900 * HOUR_US

    clocked.wait_for("time stamps stay ahead", is_ahead)

    # Whoever leads next is six weeks behind what is in its log already.
    clocked.kill(leader)
    load.wait_for_acks(200)
    clocked.restart(leader)
    clocked.wait_for_isr("orders", clocked.nodes)
    clocked.check_everywhere("orders", load.stop())
    for node in clocked.nodes:
        clocked.kill(node)
        findings = list(verify(clocked.cluster.directory / node_name(node)))
        assert not [finding for finding in findings if not finding.repairable]


def test_what_is_repeated_to_a_leader_whose_clock_is_hours_off_is_stored_once(
    clocked: ClockedCluster,
) -> None:
    """Ahead and behind, by more than message ids and producers are remembered for; and once more
    from what a restart finds on disk."""
    for node in clocked.nodes:
        clocked.set_clock(node, (0, 30, -30)[node] * HOUR_US)
    clocked.api(0).create("s", "s")
    producer = Producer("s")
    batches, messages = producer.add_batches(3), producer.add_messages(3)
    producer.deliver(clocked.nats, batches + messages)
    first = clocked.settled("s").stream.leader
    for target in [node for node in (1, 2, 0, 1, 2, 0) if node != first] + [first]:
        clocked.hand_over("s", target)
        producer.deliver(clocked.nats, producer.add_messages(1))  # Under the clock of that node.
        repeat(clocked, producer, batches + messages)
    for node in clocked.nodes:
        clocked.kill(node)
    for node in clocked.nodes:
        clocked.cluster.start_node(node)
    clocked.cluster.wait_for_nodes(*clocked.nodes)
    repeat(clocked, producer, batches + messages)
    values: list[bytes | None] = []

    def are_read() -> bool:
        values[:] = clocked.api(clocked.settled("s").stream.leader).values("s")
        return True

    clocked.wait_for("they can be read", are_read)
    producer.check(values)


def repeat(cluster: ClockedCluster, producer: Producer, names: list[str]) -> None:
    """What is acknowledged already is sent once more: each answer must be the first one's."""
    before = {name: producer.acked.pop(name) for name in names}
    producer.deliver(cluster.nats, names)
    for name in names:
        assert producer.acked[name]["duplicate"] is True, name
        assert producer.acked[name]["seq"] == before[name]["seq"]
