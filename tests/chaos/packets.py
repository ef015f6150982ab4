"""Three real nodes and NATS on machines of their own, and packets lost between them in every way.

    python -m tests.chaos.packets [--rounds 1] [--seed S] [--only WORDS]

Needs root and iproute2 (network namespaces). Each round: a stream of three replicas is published to
with acks, packets are lost for a while, then not any more. Acks must come again meanwhile, wherever
a majority still reaches itself and NATS. Afterwards whatever was acknowledged is at the offset its
ack named, once, on every replica, and the replicas agree to the byte. partitions.py cuts links
between nodes by proxies; here NATS can be out of a node's reach, too, and packets are lost
silently: no connection is refused.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from examples.cluster.local import NATS, node_name
from jetstream_protocol.errors import JetstreamError
from tests.chaos.partitions import others, take_places
from tests.support.load import Load
from tests.support.namespaces import missing
from tests.support.packet_cluster import (
    VARIABLE,
    PacketCluster,
    PacketNetwork,
    running_packet_cluster,
)

WINDOW = 16
BEFORE, DURING, AFTER = 300, 300, 300
"""Acks waited for."""
SERVING_SECONDS_MAX = 5.0
"""The promise, held by the command."""
PATIENCE_SECONDS = 120.0
HOLD_SECONDS = 1.0
"""How long the cut lasts once acks come again: until leases, links and reports have run out."""
UNSERVED_SECONDS = 4.0
"""How long a cut lasts that keeps everybody from acknowledging."""
FLAPS, FLAP_SECONDS_MAX = 12, 0.9


@dataclass(frozen=True)
class Struck:
    """The nodes by their roles when packets get lost."""

    cluster: PacketCluster
    leader: int
    controller: int
    dice: Random

    @property
    def followers(self) -> list[int]:
        return others(self.cluster, self.leader)

    @property
    def plain_follower(self) -> int:
        """A follower that is not the metadata leader."""
        return others(self.cluster, self.leader, self.controller)[0]

    def cut(self, source: int, target: int, *, both: bool = True) -> None:
        self.cluster.machines.cut(node_name(source), node_name(target), both=both)


@dataclass(frozen=True)
class Case:
    """is_controller: whether the stream's leader is the metadata leader. is_served: whether acks
    must come while it lasts."""

    name: str
    strike: Callable[[Struck], None]
    is_controller: bool = False
    is_served: bool = True


def _mute(struck: Struck) -> None:
    for other in struck.followers:
        struck.cut(struck.leader, other, both=False)


def _deafen(struck: Struck) -> None:
    for other in struck.followers:
        struck.cut(other, struck.leader, both=False)


def _flap(struck: Struck) -> None:
    """The leader's links come and go, each by itself."""
    for _ in range(FLAPS):
        for other in struck.followers:
            if struck.dice.random() < 0.6:
                struck.cut(struck.leader, other, both=struck.dice.random() < 0.5)
        time.sleep(struck.dice.uniform(0.1, FLAP_SECONDS_MAX))
        struck.cluster.machines.heal()
        time.sleep(struck.dice.uniform(0.0, FLAP_SECONDS_MAX))


def _halve(struck: Struck) -> None:
    """The leader keeps NATS, and the majority goes without."""
    struck.cluster.isolate(struck.leader, nats=False)
    for other in struck.followers:
        struck.cluster.machines.cut(node_name(other), NATS)


CASES = (
    Case("leader and one follower", lambda s: s.cut(s.leader, s.plain_follower)),
    Case("leader from everybody", lambda s: s.cluster.isolate(s.leader), is_controller=True),
    Case(
        "leader from NATS only", lambda s: s.cluster.machines.cut(node_name(s.leader), NATS)
    ),
    Case("follower from everybody", lambda s: s.cluster.isolate(s.plain_follower)),
    Case("metadata leader from everybody", lambda s: s.cluster.isolate(s.controller)),
    Case("leader sends in vain", _mute),
    Case("leader hears nothing", _deafen),
    Case("halves, NATS with the leader", _halve, is_served=False),
    Case("links that come and go", _flap),
)  # fmt: skip


def run(cluster: PacketCluster, case: Case, number: int, dice: Random) -> float:
    """One case on a cluster that is whole; seconds without an ack. Raises AssertionError."""
    name = f"case-{number}"
    # A node that was cut off from NATS until now may hand the new stream over at once.
    api = cluster.api(cluster.nodes[0])
    cluster.wait_for(f"{name} is created", lambda: api.create(name, name).HasField("stream"))
    leader, controller = take_places(cluster, case.is_controller, name)
    load = Load(cluster.nats, name, window=WINDOW).start()
    try:
        load.wait_for_acks(BEFORE)
        struck_at = time.monotonic()
        case.strike(Struck(cluster, leader, controller, dice))
        if case.is_served:
            load.wait_for_acks(DURING, PATIENCE_SECONDS)
            time.sleep(HOLD_SECONDS)
        else:
            time.sleep(UNSERVED_SECONDS)
        gap = load.books.longest_gap(struck_at) if case.is_served else 0.0
        cluster.machines.heal()
        load.wait_for_acks(AFTER, PATIENCE_SECONDS)
        cluster.wait_for_isr(name, cluster.nodes, PATIENCE_SECONDS)
    finally:
        cluster.machines.heal()
        books = load.stop()
    cluster.check_everywhere(name, books)
    api.delete(name)
    return gap


class Campaign:
    """On the driver's machine: every case in turn. A case that fails leaves its nodes' folders and
    logs behind, and the next one has a new cluster."""

    def __init__(self, cases: list[Case], seed: str) -> None:
        self._cases = cases
        self._seed = seed
        self.gaps: dict[str, list[float]] = {case.name: [] for case in cases}
        self.failures: list[str] = []

    def run(self, rounds: int) -> None:
        numbers = iter(range(rounds * len(self._cases)))
        while self._run_until_one_fails(numbers):
            pass

    def _run_until_one_fails(self, numbers: Iterator[int]) -> bool:
        """Whether there is more to do."""
        folder = Path(tempfile.mkdtemp(prefix="jetstream-packets-"))
        with running_packet_cluster(folder / "cluster") as cluster:
            for number in numbers:
                case = self._cases[number % len(self._cases)]
                try:
                    gap = run(cluster, case, number, Random(f"{self._seed}/{number}"))
                except (AssertionError, JetstreamError, OSError) as error:
                    reason = str(error).partition("\n")[0]
                    self.failures.append(case.name)
                    print(f"{case.name}: FAILED: {reason}; kept: {folder}", flush=True)
                    return True
                self.gaps[case.name].append(gap)
                print(f"{case.name}: {gap:.2f} s without acks", flush=True)
        shutil.rmtree(folder)
        return False

    def sum_up(self) -> int:
        """Print it; the exit code."""
        for name, seconds in self.gaps.items():
            failed = self.failures.count(name)
            print(f"{name}: {len(seconds) + failed} rounds, {failed} failed; without acks: "
                  f"median {statistics.median(seconds or [0]):.2f} s, "
                  f"worst {max(seconds, default=0):.2f} s")  # fmt: skip
        late = [
            name for name, each in self.gaps.items() if max(each, default=0) > SERVING_SECONDS_MAX
        ]
        if late:
            print(f"later than {SERVING_SECONDS_MAX} s: {', '.join(late)}")
        return 1 if late or self.failures else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=1, help="of each case")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--only", default="", help="cases whose name contains this")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Nodes are ended, too.
    if VARIABLE in os.environ:
        campaign = Campaign([case for case in CASES if arguments.only in case.name], arguments.seed)
        campaign.run(arguments.rounds)
        return campaign.sum_up()
    if reason := missing():
        print(f"error: {reason}", file=sys.stderr)
        return 1
    print(f"seed {arguments.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        network = PacketNetwork(Path(folder))
        try:
            return network.run(
                "tests.chaos.packets", "--rounds", str(arguments.rounds),
                "--seed", arguments.seed, "--only", arguments.only,
            )  # fmt: skip
        finally:
            network.close()


if __name__ == "__main__":
    sys.exit(main())
