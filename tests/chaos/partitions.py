"""Three real nodes on a network that is cut in every way, under load, with every ack checked.

    python -m tests.chaos.partitions [--rounds 1] [--only WORDS] [--mutant NAME]

Each case: a stream of three replicas is published to with acks; the network is cut, or a process
frozen; acks must come again while that lasts; then it is mended. Afterwards whatever
was acknowledged is at the offset its ack named, once, on every replica, and the replicas agree to
the byte. Everybody reaches NATS all the time: both the old leader and the new one may hear a
message, and only one of them may acknowledge it.

With --mutant all nodes lack that safety rule of the simulation. The campaign must notice it:
commits_alone is noticed at once, speaks_without_a_lease mostly.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from examples.cluster.local import node_name
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.support.api import call
from tests.support.cluster import TestCluster
from tests.support.fault_cluster import FaultCluster, RoutedCluster, running_fault_cluster
from tests.support.load import Load

WINDOW = 16
BEFORE, DURING, AFTER = 300, 300, 300
"""Acks waited for. The load goes on for as long as each phase takes."""
SERVING_SECONDS_MAX = 5.0
"""The promise, held by the command; tests on a busy machine only measure it."""
PATIENCE_SECONDS = 120.0
HOLD_SECONDS = 1.0
"""How long the cut lasts once acks come again: until leases, links and reports have run out."""


@dataclass(frozen=True)
class Case:
    """strike: what happens to a cluster whose stream is led by `leader`, which is the metadata
    leader if `is_controller`. moves: whether another node must lead afterwards."""

    name: str
    strike: Callable[[FaultCluster, int, int], None]
    is_controller: bool = False
    moves: bool = True


def others(cluster: TestCluster, *nodes: int) -> list[int]:
    return [node for node in cluster.nodes if node not in nodes]


def _isolate_follower(cluster: FaultCluster, leader: int, controller: int) -> None:
    (follower,) = others(cluster, leader, controller)
    cluster.isolate(follower)


def _cut_from_controller(cluster: FaultCluster, leader: int, controller: int) -> None:
    (third,) = others(cluster, leader, controller)
    cluster.network.cut(node_name(third), node_name(controller), "raft")


CASES = (
    Case("leader cut off", lambda c, leader, _: c.isolate(leader)),
    Case("leader unheard", lambda c, leader, _: c.isolate(leader, both=False)),
    Case("leader deaf", lambda c, leader, _: c.deafen(leader)),
    Case("leader cut off, metadata leader too", lambda c, leader, _: c.isolate(leader), True),
    Case("metadata leader cut off", lambda c, _, controller: c.isolate(controller), moves=False),
    Case("leader cut from metadata", lambda c, leader, _: c.isolate(leader, "raft")),
    Case("leader cut from followers, not from metadata", lambda c, n, _: c.isolate(n, "data")),
    Case("follower cut off", _isolate_follower, moves=False),
    Case("metadata leader and one follower cut apart", _cut_from_controller, moves=False),
    Case("leader frozen", lambda c, leader, _: c.freeze(leader)),
    Case("leader frozen, metadata leader too", lambda c, leader, _: c.freeze(leader), True),
)


def run(cluster: FaultCluster, case: Case, number: int) -> float:
    """One case on a cluster that is whole; seconds without an ack. Raises AssertionError."""
    name = f"case-{number}"
    cluster.api(cluster.nodes[0]).create(name, name)
    leader, controller = take_places(cluster, case.is_controller, name)
    load = Load(cluster.nats, name, window=WINDOW).start()
    try:
        load.wait_for_acks(BEFORE)
        struck_at = time.monotonic()
        case.strike(cluster, leader, controller)
        if case.moves:
            rest = others(cluster, leader)
            cluster.wait_for(
                "another node leads",
                lambda: cluster.describe(name, rest).stream.leader in rest,
                PATIENCE_SECONDS,
            )
        load.wait_for_acks(DURING, PATIENCE_SECONDS)
        time.sleep(HOLD_SECONDS)
        gap = load.books.longest_gap(struck_at)
        cluster.thaw(leader)
        cluster.network.heal()
        load.wait_for_acks(AFTER, PATIENCE_SECONDS)
        cluster.wait_for_isr(name, cluster.nodes, PATIENCE_SECONDS)
    finally:
        cluster.thaw(leader)
        cluster.network.heal()
        books = load.stop()
    cluster.check_everywhere(name, books)
    cluster.api(cluster.nodes[0]).delete(name)
    return gap


def take_places(cluster: TestCluster, is_controller: bool, name: str) -> tuple[int, int]:
    """Have the stream led by the metadata leader, or by another; (leader, metadata leader)."""
    places = (-1, -1)

    def are_taken() -> bool:
        nonlocal places
        stream = cluster.describe(name).stream
        places = (stream.leader, cluster.controller)
        if len(stream.isr) == 3 and (places[0] == places[1]) == is_controller:
            return True
        target = places[1] if is_controller else others(cluster, places[1])[0]
        ref = common_pb2.StreamRef(name=name)
        request = pb.TransferLeaderRequest(stream=ref, node_id=target)
        call(cluster.api(target).cluster.TransferLeader, request)
        return False

    cluster.wait_for("everybody in place", are_taken)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--mutant", default=RoutedCluster.mutant, help="a rule to go without")
    arguments = parser.parse_args()
    RoutedCluster.mutant = arguments.mutant
    cases = [case for case in CASES if arguments.only in case.name]
    late = []
    with (
        tempfile.TemporaryDirectory() as folder,
        running_fault_cluster(Path(folder) / "cluster") as cluster,
    ):
        for number, case in enumerate(cases * arguments.rounds):
            gap = run(cluster, case, number)
            print(f"{case.name}: {gap:.2f} s without acks", flush=True)
            if gap > SERVING_SECONDS_MAX:
                late.append(case.name)
    if late:
        raise SystemExit(f"later than {SERVING_SECONDS_MAX} s: {', '.join(late)}")


if __name__ == "__main__":
    main()
