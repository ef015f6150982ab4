"""Publishers in several languages, one failure after the other; what they were told is checked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.damage.checker import Anomaly
from tests.chaos.foreign.checker import Books, Said, Verdict, check
from tests.chaos.foreign.cluster import LOOSE, STRICT, ForeignCluster, running_foreign_cluster
from tests.chaos.foreign.programs import Program
from tests.chaos.mixed.cluster import NATS_SERVERS

BEFORE, DURING, AFTER = 20, 20, 20
"""Messages of each publisher that must be stored before a failure, in it, and after it."""
PATIENCE_SECONDS = 120.0
HOLD_SECONDS = 1.0
"""How long a cut lasts once acks come again: until leases, links and reports have run out."""


@dataclass(frozen=True, slots=True)
class Fault:
    """strike: what happens to the cluster; the node leads the stream `loose`. together: whether
    it leads `strict`, too."""

    strike: Callable[[ForeignCluster, int, Random], None]
    together: bool = False
    is_of_nats: bool = False


def _restart_all(cluster: ForeignCluster, victim: int, dice: Random) -> None:
    for node in cluster.nodes:
        cluster.stop(node)
        cluster.launch(node)
        cluster.wait_for("all is whole", lambda: not cluster.why_not_whole())


def _kill_all(cluster: ForeignCluster, victim: int, dice: Random) -> None:
    for node in cluster.nodes:
        cluster.kill(node)
    for node in cluster.nodes:
        cluster.launch(node)


FAULTS = {
    "kill": Fault(lambda cluster, victim, _: cluster.kill(victim)),
    "freeze": Fault(lambda cluster, victim, _: cluster.freeze(victim), together=True),
    "cut": Fault(lambda cluster, victim, _: cluster.isolate(victim), together=True),
    "unheard": Fault(lambda cluster, victim, _: cluster.isolate(victim, both=False)),
    "restart": Fault(_restart_all),
    "kill-all": Fault(_kill_all),
    "nats": Fault(
        lambda cluster, _, dice: cluster.kill_nats(dice.choice(NATS_SERVERS)), is_of_nats=True
    ),
}


@dataclass(slots=True)
class Result:
    """verdicts: of each publisher, by its name."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)

    @property
    def anomalies(self) -> list[Anomaly]:
        return [each for verdict in self.verdicts.values() for each in verdict.anomalies]

    def of(self, language: str) -> list[Verdict]:
        """Those of its publishers."""
        return [each for name, each in self.verdicts.items() if name.startswith(f"{language} ")]

    def lines(self) -> str:
        """For a reader: what the publishers of each language were told."""
        lines = []
        for language in dict.fromkeys(name.partition(" ")[0] for name in self.verdicts):
            counts = sum((verdict.counts for verdict in self.of(language)), Counter[Said]())
            lines.append(f"  {language}: " + ", ".join(f"{what} {counts[what]}" for what in Said))
        lines += [f"  ANOMALY {anomaly}" for anomaly in self.anomalies]
        return "\n".join(lines)


def run(
    folder: Path,
    languages: Sequence[str],
    faults: Sequence[str],
    *,
    mutant: str,
    dice: Random,
    tell: Callable[[str], None],
) -> Result:
    """The faults one after the other, on one cluster. folder: for its data and the logs. tell: is
    given a line for each. Raises AssertionError when the cluster or a publisher does not come
    back."""
    with ExitStack() as ending:
        cluster = ending.enter_context(running_foreign_cluster(folder / "cluster", mutant))
        programs, log = [], folder / "publishers.log"
        for language in languages:
            loose, strict = f"{LOOSE}.{language}", f"{STRICT}.{language}"
            programs += [
                Program(language, "once", [f"{loose}.once", f"{strict}.once"], cluster.nats, log),
                Program(language, "repeat", [f"{loose}.repeat"], cluster.nats, log),
                Program(language, "repeat", [f"{strict}.repeat"], cluster.nats, log),
            ]
            for program in programs[-3:]:
                ending.callback(program.close)
        doing = _Run(cluster, programs, log, dice)
        for name in faults:
            begun = time.monotonic()
            doing.round(FAULTS[name])
            tell(f"{name}: {time.monotonic() - begun:.1f} s")
        return doing.finish(detours=any(FAULTS[name].is_of_nats for name in faults))


class _Run:
    def __init__(
        self, cluster: ForeignCluster, programs: Sequence[Program], log: Path, dice: Random
    ) -> None:
        self._cluster = cluster
        self._log = log
        self._programs = programs
        self._dice = dice

    def round(self, fault: Fault) -> None:
        cluster = self._cluster
        self._wait_for_acks(BEFORE, LOOSE, STRICT)
        victim = self._dice.choice(cluster.nodes)
        others = [node for node in cluster.nodes if node != victim]
        cluster.lead(LOOSE, victim)
        cluster.lead(STRICT, victim if fault.together else self._dice.choice(others))
        fault.strike(cluster, victim, self._dice)
        self._wait_for_acks(DURING, LOOSE)
        time.sleep(HOLD_SECONDS)
        cluster.heal()
        cluster.wait_for("all is whole", lambda: not cluster.why_not_whole())
        self._wait_for_acks(AFTER, LOOSE, STRICT)

    def _wait_for_acks(self, count: int, *streams: str) -> None:
        """Until each publisher has so many more on each of its subjects of those streams."""
        since = {program.name: len(program.lines) for program in self._programs}

        def missing() -> list[str]:
            return [
                f"{program.name}: {program.lines[-1:]}"
                for program in self._programs
                for subject in program.subjects
                if subject.startswith(streams)
                and program.stored(subject, since[program.name]) < count
            ]

        deadline = time.monotonic() + PATIENCE_SECONDS
        while waits := missing():
            assert time.monotonic() < deadline, f"no acks: {'; '.join(waits)}"
            ended = [program.name for program in self._programs if program.has_ended]
            assert not ended, f"ended: {', '.join(ended)}; see {self._log}"
            time.sleep(0.05)

    def finish(self, *, detours: bool) -> Result:
        """End the publishers, and check what they were told."""
        for program in self._programs:
            program.stop_publishing()
        for program in self._programs:
            program.wait()
        logs = {name: self._cluster.records(name) for name in self._cluster.stream_names}
        result = Result()
        for program in self._programs:
            streams = {subject: subject.partition(".")[0] for subject in program.subjects}
            books = Books(
                program.name, program.mode, streams, program.lines, program.sent,
                program.unreadable, detours,
            )  # fmt: skip
            log = [record for name in {*streams.values()} for record in logs[name]]
            result.verdicts[program.name] = check(books, log)
        return result
