"""Rounds one after another, a new cluster for every few of them, and what came of them."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos.damage.checker import Kind, Memory
from tests.chaos.damage.cluster import DamagedCluster
from tests.chaos.damage.plan import plan
from tests.chaos.damage.publishers import Publishers
from tests.chaos.damage.round import Report, Round
from tests.chaos.damage.streams import STREAMS
from tests.chaos.damage.targets import KINDS

ROUNDS_PER_CLUSTER = 10
"""A new one with every tenth round: what a round can repeat begins at most nine before it."""
PAUSE_SECONDS = 0.02
"""Between two messages of a stream."""
FIRST_RECORDS = 400
"""Of each stream, before anything happens: several segments."""
FIRST_SECONDS = 180.0


class Campaign:
    """`rounds` yields a report for each round. tell: is called with the reports of failures."""

    def __init__(
        self, seed: str, replicas: int, tell: Callable[[str], None], kinds: tuple[str, ...] = KINDS
    ) -> None:
        self.seed = seed
        self.replicas = replicas
        self.kinds = kinds
        self._tell = tell
        self._folder: Path | None = None
        self._cluster: DamagedCluster | None = None
        self._publishers: Publishers | None = None
        self._memories: dict[str, Memory] = {}

    def rounds(self, first: int, count: int, seconds: float) -> Iterator[Report]:
        """Ends after that number of rounds, or when the time is over."""
        deadline = time.monotonic() + seconds
        try:
            for number in range(first, first + count):
                if time.monotonic() > deadline:
                    return
                yield self._round(number)
        finally:
            self._end(keep=False)

    def command(self, number: int) -> str:
        """What repeats a round: with those before it on the same cluster."""
        first = number - number % ROUNDS_PER_CLUSTER
        words = f"python -m tests.chaos.damage --seed {self.seed} --replicas {self.replicas}"
        only = f" --only {','.join(self.kinds)}" if self.kinds != KINDS else ""
        return f"{words} --first {first} --rounds {number - first + 1}{only}"

    def _round(self, number: int) -> Report:
        if number % ROUNDS_PER_CLUSTER == 0:
            self._end(keep=False)
        if self._cluster is None:
            self._begin()
        cluster, publishers = self._cluster, self._publishers
        assert cluster is not None
        assert publishers is not None
        planned = plan(self.seed, number, len(cluster.nodes), self.kinds)
        doing = Round(cluster, publishers, self._memories, number, planned)
        report = doing.run()
        doing.check_said()
        if all(anomaly.kind is Kind.NOT_SAID for anomaly in report.anomalies):
            self._tell_of(report)
        else:
            self._keep(report)
        if report.is_spoiled:
            self._end(keep=False)
        elif self._cluster is not None and number % 2:
            cluster.keep_older()
        return report

    def _begin(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="jetstream-damage-"))
        self._cluster = DamagedCluster(self._folder / "cluster", self.replicas)
        self._cluster.start()
        self._memories = {stream.name: Memory() for stream in STREAMS}
        self._publishers = Publishers(self._cluster.nats, STREAMS, 0.001)
        self._publishers.start()
        deadline = time.monotonic() + FIRST_SECONDS
        while any(self._publishers.acknowledged(each.name) < FIRST_RECORDS for each in STREAMS):
            assert time.monotonic() < deadline, "a new cluster acknowledges nothing"
            time.sleep(0.05)
            if self._publishers.acknowledged(STREAMS[0].name) > FIRST_RECORDS // 2:
                self._cluster.keep_older() if not self._cluster.older(0).exists() else None
        self._publishers.pause_seconds = PAUSE_SECONDS

    def _tell_of(self, report: Report) -> None:
        """Of a round that left the cluster whole."""
        if report.anomalies:
            self._tell(f"{report}\n  again: {self.command(report.number)}")

    def _keep(self, report: Report) -> None:
        """The folders and logs of a round that did not; the next one has a new cluster."""
        assert self._folder is not None
        again = self.command(report.number)
        (self._folder / "report.txt").write_text(f"{report}\nagain: {again}\n")
        self._tell(f"{report}\n  kept: {self._folder}\n  again: {again}")
        self._end(keep=True)

    def _end(self, *, keep: bool) -> None:
        if self._publishers is not None:
            self._publishers.close()
        if self._cluster is not None:
            self._cluster.close()
        if self._folder is not None and not keep:
            shutil.rmtree(self._folder)
        self._folder = self._cluster = self._publishers = None
