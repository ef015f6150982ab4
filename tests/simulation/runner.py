"""Running seeds: one, many, and what they add up to."""

from __future__ import annotations

import gc
import logging
import subprocess
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from structlog.testing import capture_logs

from tests.simulation import client_work, group_work
from tests.simulation.cluster import Cluster, DamagedCluster
from tests.simulation.compacting import CompactedCluster
from tests.simulation.laked import LakedCluster
from tests.simulation.observers import ObservedCluster
from tests.simulation.reassigning import ReassignedCluster
from tests.simulation.several import SeveralCluster
from tests.simulation.typed import TypedCluster
from tests.simulation.world import Violation, World

PLAIN, COMPACTED, DAMAGED, REASSIGNED = "plain", "compacted", "damaged", "reassigned"
SEVERAL, OBSERVED, LAKED, TYPED = "streams", "observed", "laked", "typed"
GROUPS = "groups"
"""Consumer groups in a world of their own (group_work.py), without a cluster."""
CLIENTS = "clients"
"""Whole clients, and a cluster that is little more than its coordinator (client_work.py)."""
KINDS: dict[str, type[Cluster]] = {
    PLAIN: Cluster,
    COMPACTED: CompactedCluster,
    DAMAGED: DamagedCluster,
    REASSIGNED: ReassignedCluster,
    SEVERAL: SeveralCluster,
    OBSERVED: ObservedCluster,
    LAKED: LakedCluster,
    TYPED: TypedCluster,
}
"""What a seed is run with: the same seed is another story with each."""


@dataclass(slots=True)
class Totals:
    """What a number of seeds did."""

    seeds: int = 0
    events: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    """In how many seeds."""

    def add(self, cluster: Cluster) -> None:
        counts = cluster.world.counts
        counts["acknowledged"] = sum(s.publishers.acked for s in cluster.streams)
        lost = sum(len(s.checker.lost) for s in cluster.streams)
        counts["acknowledged, then lost in a lossy election"] = lost
        self.count(cluster.world)

    def count(self, world: World) -> None:
        self.seeds += 1
        self.events += world.events
        for what, times in world.counts.items():
            self.counts[what] = self.counts.get(what, 0) + times
            self.reached[what] = self.reached.get(what, 0) + (times > 0)

    def merge(self, other: Totals) -> None:
        self.seeds += other.seeds
        self.events += other.events
        self.seconds += other.seconds
        for what, times in other.counts.items():
            self.counts[what] = self.counts.get(what, 0) + times
        for what, times in other.reached.items():
            self.reached[what] = self.reached.get(what, 0) + times


@dataclass(frozen=True, slots=True)
class Failure:
    """A seed that broke an invariant."""

    seed: int
    reason: str
    kind: str = PLAIN

    @property
    def is_violation(self) -> bool:
        """Whether an invariant was violated; otherwise something broke."""
        return "Traceback (most recent call last)" not in self.reason


def run_seed(seed: int, *, tracing: bool = False, kind: str = PLAIN) -> tuple[Cluster, str]:
    """The cluster afterwards, and what was violated ("" when nothing was)."""
    cluster = KINDS[kind](seed, tracing=tracing)
    was_enabled = gc.isenabled()
    gc.disable()  # What it collects, and when, would be part of the story.
    try:
        cluster.run()
    except Violation as violation:
        return cluster, str(violation)
    except Exception:  # noqa: BLE001  whatever it is, the seed that leads to it is wanted
        return cluster, traceback.format_exc()
    finally:
        if was_enabled:
            gc.enable()
    return cluster, ""


def run_group(seed: int) -> str:
    """What consumer groups did wrong ("" when nothing)."""
    with capture_logs():  # The coordinator's.
        try:
            group_work.run(seed)
        except Exception:  # noqa: BLE001  as above
            return traceback.format_exc()
    return ""


def run_clients(seed: int, totals: Totals, *, tracing: bool = False) -> tuple[list[str], str]:
    """The story, and what clients did wrong ("" when nothing)."""
    clients, reason = client_work.Clients(seed, tracing=tracing), ""
    was_disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # The clients'.
    with capture_logs():  # The coordinator's.
        try:
            clients.run()
        except Violation as violation:
            reason = str(violation)
        except Exception:  # noqa: BLE001  as above
            reason = traceback.format_exc()
        finally:
            logging.disable(was_disabled)
    totals.count(clients.world)
    return clients.world.trace or [], reason


def run_seeds(
    seeds: Iterable[int],
    totals: Totals,
    deadline: float = float("inf"),
    *,
    kind: str = PLAIN,
) -> Failure | None:
    """Run them until one fails or the time (time.monotonic) is over."""
    started = time.monotonic()
    failure = None
    gc.disable()  # The cycles of some seeds are collected all at once.
    try:
        for seed in seeds:
            if time.monotonic() >= deadline:
                break
            if kind == GROUPS:
                reason = run_group(seed)
                totals.seeds += 1
                totals.events += group_work.STEPS
            elif kind == CLIENTS:
                _, reason = run_clients(seed, totals)
            else:
                cluster, reason = run_seed(seed, kind=kind)
                totals.add(cluster)
            if reason:
                failure = Failure(seed, reason, kind)
                break
            if seed % 20 == 0:
                gc.collect()
    finally:
        gc.enable()
    totals.seconds += time.monotonic() - started
    return failure


def story(failure: Failure) -> str:
    """The failing seed again, with its trace: it replays exactly."""
    lines: list[str] = []
    if failure.kind == GROUPS:
        reason = run_group(failure.seed)
    elif failure.kind == CLIENTS:
        lines, reason = run_clients(failure.seed, Totals(), tracing=True)
    else:
        cluster, reason = run_seed(failure.seed, tracing=True, kind=failure.kind)
        lines = cluster.world.trace or []
    option = "" if failure.kind == PLAIN else f" --{failure.kind}"
    return "\n".join(
        [
            *lines,
            "",
            f"seed {failure.seed} at commit {commit()}: {failure.reason}",
            *([] if reason == failure.reason else [f"NOT REPRODUCED: now {reason!r}"]),
            f"again: python -m tests.simulation --trace {failure.seed}{option}",
        ]
    )


def commit() -> str:
    """What was tested: the commit, and whether the tree differs from it."""
    here = Path(__file__).parent
    try:
        head = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],
            cwd=here, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head.stdout.strip()
