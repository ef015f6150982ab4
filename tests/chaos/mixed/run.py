"""One cluster under fire for some minutes, then at rest, then checked."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from jetstream_protocol.errors import JetstreamError
from tests.chaos.damage.checker import Anomaly, difference
from tests.chaos.damage.checker import Kind as CopyKind
from tests.chaos.damage.copies import Copy
from tests.chaos.damage.publishers import Books, Publishers
from tests.chaos.damage.words import Log
from tests.chaos.mixed import spark_read
from tests.chaos.mixed.checker import Kind, check, check_words
from tests.chaos.mixed.clients import Clients
from tests.chaos.mixed.cluster import MixedCluster
from tests.chaos.mixed.history import History
from tests.chaos.mixed.nemesis import (
    ALONE,
    DETOURS,
    FAULTS,
    Step,
    Target,
    heal,
    keep_workers,
    steps,
)
from tests.chaos.mixed.streams import (
    BATCHED,
    CONSUMERS,
    GROUP,
    KEYED,
    ORDERED,
    REPEATED,
    STREAMS,
)  # fmt: skip
from tests.support.group_workers import GroupWorkers
from tests.support.load import Load

PAUSE_SECONDS = 0.02
"""Between two messages with ids of a stream."""
WINDOW = 4
"""Ordered messages at once."""
SETTLING_MESSAGES = 200
"""Ordered messages of at least two seconds: before and after a detour in NATS, their order is left
open, too."""
REST_SECONDS = 120.0
NUMBER = re.compile(r"\d+")
LOOK_SECONDS = 0.3


@dataclass(slots=True)
class Verdict:
    """What came of a run. kept: the folder with logs, data and history of one that failed."""

    seed: str
    secured: bool
    seconds: float = 0.0
    history: History = field(default_factory=History)
    anomalies: list[Anomaly] = field(default_factory=list)
    steps: int = 0
    kept: Path | None = None

    def summary(self) -> str:
        """Lines for a reader."""
        history = self.history
        acked = {name: len(books.acked) for name, books in history.books.items()}
        done = Counter(text.split(":")[0] for _, text in history.faults)
        lines = [
            f"run {self.seed}: {self.seconds:.0f} s, {self.steps} steps"
            + (f", secured ({history.refused_trespasses} trespasses refused)" * self.secured),
            "  faults: " + ", ".join(f"{name} {n}" for name, n in sorted(done.items())),
            "  acknowledged: "
            + ", ".join(f"{name} {n}" for name, n in acked.items())
            + f", {GROUP} {len(history.published)}",
            "  outcome unknown: " + (str(history.unknown) if history.unknown else "none"),
            "  refused: "
            + (", ".join(f"{text!r} {n}" for text, n in history.refused.items()) or "none"),
            f"  read: {sum(len(each.records) for each in history.sessions)} records in "
            f"{len(history.sessions)} sessions; handled by the group: {len(history.handled)}; "
            f"commits seen: {sum(map(len, history.commits.values()))}",
        ]
        if history.spark:
            lines.append(f"  read by Spark: {sum(map(len, history.spark.values()))} rows")
        lines += [f"  ANOMALY {anomaly}" for anomaly in self.anomalies]
        if self.kept:
            lines.append(f"  kept: {self.kept}")
        return "\n".join(lines)


def run(
    seed: str,
    seconds: float,
    nodes: int,
    faults: tuple[str, ...],
    tell: Callable[[str], None],
    *,
    secured: bool,
    spark: bool = False,
) -> Verdict:
    """tell: is given a line for each fault. secured: with TLS, tokens and rules. spark: read all
    by Spark in the end, which takes Java."""
    folder = Path(tempfile.mkdtemp(prefix="jetstream-chaos-"))
    doing = _Run(folder, Verdict(seed, secured), nodes, faults, tell, spark=spark)
    try:
        verdict = doing.carry_out(seconds)
    finally:
        doing.close()
    if verdict.anomalies:
        verdict.kept = folder
        verdict.history.write(folder / "history.jsonl")
        (folder / "verdict.txt").write_text(verdict.summary())
    else:
        shutil.rmtree(folder)
    return verdict


class _Run:
    def __init__(
        self,
        folder: Path,
        verdict: Verdict,
        nodes: int,
        faults: tuple[str, ...],
        tell: Callable[[str], None],
        *,
        spark: bool,
    ) -> None:
        self._verdict = verdict
        self._faults = faults
        self._spark = spark
        self._tell = tell
        self._ending = ExitStack()
        self._begun = time.monotonic()
        self._cluster = MixedCluster(
            folder / "cluster", nodes, small_disks="full" in faults, secured=verdict.secured
        )
        self._ending.callback(self._cluster.close)
        handled = folder / "handled"
        handled.mkdir()
        self._workers = GroupWorkers(self._cluster.servers, handled, GROUP, CONSUMERS)
        self._ending.callback(self._workers.end)

    def close(self) -> None:
        self._ending.close()

    def carry_out(self, seconds: float) -> Verdict:
        self._begin()
        step = steps(self._verdict.seed, self._faults)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._verdict.anomalies:
            self._do(step(self._verdict.steps))
            self._verdict.steps += 1
        self._rest()
        self._verdict.seconds = time.monotonic() - self._begun
        return self._verdict

    def _begin(self) -> None:
        cluster, history = self._cluster, self._verdict.history
        cluster.start()
        self._logs = [Log(cluster.cluster.processes.log(f"node-{node}")) for node in cluster.nodes]
        tls = None
        if cluster.security is not None:
            tls = cluster.security.context()
            self._workers.environment = cluster.security.environment()
        keep_workers(self._workers)
        self._publishers = Publishers(cluster.nats, (REPEATED, KEYED), PAUSE_SECONDS, tls)
        self._ending.callback(self._publishers.close)
        self._publishers.start()
        self._load = Load(cluster.nats, ORDERED.name, window=WINDOW, tls=tls).start()
        self._ending.callback(self._stop_load)
        history.books = {**self._publishers.books, ORDERED.name: Books(), BATCHED.name: Books()}
        self._clients = Clients(
            cluster.servers, history, Random(self._verdict.seed), cluster.security
        )
        self._ending.callback(self._clients.close)
        self._clients.start()
        self._target = Target(cluster, self._workers)

    def _stop_load(self) -> None:
        if self._load is not None:
            self._load.stop()
            self._load = None  # type: ignore[assignment]

    def _do(self, step: Step) -> None:
        cluster = self._cluster
        touches_disks = not ALONE.isdisjoint(step.faults)
        if touches_disks and (reason := cluster.wait_until_whole()):
            self._found(CopyKind.NOT_HEALED, reason)
            return
        sent = self._load.books.sent
        for name in step.faults:
            done = FAULTS[name](self._target, Random(step.dice))
            self._note(f"{name}: {done}")
        time.sleep(step.hold)
        heal(self._target)
        if not DETOURS.isdisjoint(step.faults):
            range_ = (sent - SETTLING_MESSAGES, self._load.books.sent + SETTLING_MESSAGES)
            self._verdict.history.overtaking.append(range_)
        time.sleep(step.pause)
        if (touches_disks or step.waits) and (reason := cluster.wait_until_whole()):
            self._found(CopyKind.NOT_HEALED, reason)

    def _note(self, text: str) -> None:
        at = time.monotonic() - self._begun
        self._verdict.history.faults.append((at, text))
        self._tell(f"{at:7.1f} s  {text}")

    def _found(self, kind: CopyKind | Kind, text: str) -> None:
        self._verdict.anomalies.append(Anomaly(kind, "", text))
        self._tell(f"         {kind}: {text}")

    # At rest.

    def _rest(self) -> None:
        """Until all is whole, acknowledged, read, handled and equal; then hold it all together."""
        history = self._verdict.history
        heal(self._target)
        self._publishers.pause()
        if reason := self._cluster.wait_until_whole():
            self._found(CopyKind.NOT_HEALED, reason)
        books = self._load.stop()
        self._load = None  # type: ignore[assignment]
        ordered = history.books[ORDERED.name]
        ordered.sent = books.sent
        for number, offset in books.acked.items():
            ordered.note(number, offset)
        history.refused = dict(Counter(NUMBER.sub("…", text) for text in books.nacked.values()))
        copies: dict[str, list[Copy]] = {stream.name: [] for stream in STREAMS}
        try:
            self._clients.stop_publishing()
            self._until("messages with ids are acknowledged", self._waiting)
            self._until("the members have handled everything", self._unhandled)
            self._clients.finish()
            self._until("replicas are equal", lambda: self._look(copies))
        except (TimeoutError, JetstreamError) as error:
            self._found(CopyKind.NOT_HEALED, f"{type(error).__name__}: {error}")
        history.handled = self._workers.all_handled()
        if self._spark and not self._verdict.anomalies:
            self._read_by_spark()
        self._check(copies)

    def _read_by_spark(self) -> None:
        security = self._cluster.security
        folder = self._cluster.cluster.directory / "spark"
        try:
            self._verdict.history.spark = spark_read.rows(
                self._cluster.servers, folder, security.environment() if security else {}
            )
        except OSError as error:
            self._found(Kind.SPARK, str(error))

    def _waiting(self) -> str:
        if self._publishers.failure:
            return self._publishers.failure
        counts = {name: self._publishers.waiting(name) for name in (REPEATED.name, KEYED.name)}
        return str(counts) if any(counts.values()) else ""

    def _unhandled(self) -> str:
        keep_workers(self._workers)
        missing = self._verdict.history.published - self._workers.all_handled()
        return f"{len(missing)} are not" if missing else ""

    def _look(self, copies: dict[str, list[Copy]]) -> str:
        for stream in STREAMS:
            try:
                found = self._cluster.copies(stream)
            except (JetstreamError, OSError, EOFError, AssertionError) as error:
                return f"{stream.name}: {error}"
            copies[stream.name] = found
            for copy in found[1:]:
                if problem := difference(stream, found[0], copy):
                    return f"{stream.name}: {problem}"
        return ""

    def _until(self, what: str, why_not: Callable[[], str]) -> None:
        deadline = time.monotonic() + REST_SECONDS
        while reason := why_not():
            if time.monotonic() > deadline:
                self._found(
                    CopyKind.NOT_HEALED, f"{what}: not within {REST_SECONDS:.0f} s: {reason}"
                )
                return
            time.sleep(LOOK_SECONDS)

    def _check(self, copies: dict[str, list[Copy]]) -> None:
        verdict = self._verdict
        verdict.anomalies += check(verdict.history, copies)
        for failure in self._clients.failures:
            self._found(CopyKind.INTERNAL_ERROR, f"a client: {failure}")
        for log in self._logs:
            log.read()
            verdict.anomalies += check_words(log.lines)
            for text in log.tracebacks:
                self._found(CopyKind.INTERNAL_ERROR, text[:2000])
