"""One cluster and its programs under fire for some minutes, then at rest, then checked."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from jetstream_protocol.errors import JetstreamError
from tests.chaos.consumers.checker import History, Kind, check
from tests.chaos.consumers.cluster import ProgramCluster
from tests.chaos.consumers.faults import Target, do, heal, keep
from tests.chaos.consumers.streams import INPUT, OUTPUT
from tests.chaos.consumers.workers import Workers
from tests.chaos.damage.checker import Anomaly
from tests.chaos.damage.checker import Kind as CopyKind
from tests.chaos.damage.words import Log
from tests.chaos.mixed.nemesis import Step, steps

REST_SECONDS = 120.0
"""Without any progress. A machine that is shared may need them."""
LOOK_SECONDS = 0.5
SECURED_SHARE = 0.4
"""Of the runs: with TLS on every port, tokens and rules."""


@dataclass(slots=True)
class Verdict:
    """What came of a run. kept: the folder with logs, journals and data of one that failed."""

    seed: str
    seconds: float = 0.0
    steps: int = 0
    history: History = field(default_factory=History)
    faults: list[tuple[float, str]] = field(default_factory=list)
    anomalies: list[Anomaly] = field(default_factory=list)
    kept: Path | None = None

    def count(self, what: str, *kinds: str) -> int:
        journals = [each for each in self.history.journals if not kinds or each.kind in kinds]
        return sum(len(journal.of(what)) for journal in journals)

    def summary(self) -> str:
        done = Counter(text.split(":")[0] for _, text in self.faults)
        handed: Counter[str] = Counter()
        for journal in self.history.journals:
            for event in journal.of("got"):
                handed[journal.reader] += event.values[2] - event.values[1] + 1
        lines = [
            f"run {self.seed}: {self.seconds:.0f} s, {self.steps} steps, "
            f"{len(self.history.journals)} processes",
            "  faults: " + ", ".join(f"{name} {n}" for name, n in sorted(done.items())),
            f"  acknowledged: {self.count('acked')}, unsettled: {self.count('unsettled')}, "
            f"refused: {self.count('refused')}; outputs: {len(self.history.logs.get(OUTPUT, []))}",
            "  handed out: " + ", ".join(f"{name} {n}" for name, n in sorted(handed.items())),
            f"  interrupted: {self.count('interrupted')} calls; changes of groups: "
            f"{self.count('opened', 'member', 'churner', 'processor')} joined, "
            f"{self.count('assigned')} times assigned, {self.count('revoked')} revoked",
        ]
        lines += [f"  ANOMALY {anomaly}" for anomaly in self.anomalies]
        if self.kept:
            lines.append(f"  kept: {self.kept}")
        return "\n".join(lines)


def run(
    seed: str, seconds: float, nodes: int, faults: tuple[str, ...], tell: Callable[[str], None]
) -> Verdict:
    """tell: is given a line for each fault."""
    folder = Path(tempfile.mkdtemp(prefix="jetstream-chaos-"))
    doing = _Run(folder, Verdict(seed), nodes, faults, tell)
    try:
        verdict = doing.carry_out(seconds)
    finally:
        doing.close()
    if verdict.anomalies:
        verdict.kept = folder
        (folder / "verdict.txt").write_text(verdict.summary())
        history = {
            "logs": verdict.history.logs,
            "purges": verdict.history.purges,
            "starts": verdict.history.starts,
            "faults": verdict.faults,
            "journals": [asdict(each) for each in verdict.history.journals],
        }
        (folder / "history.json").write_text(json.dumps(history))
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
    ) -> None:
        self._verdict = verdict
        self._faults = faults
        self._tell = tell
        self._begun = time.monotonic()
        self._ending = ExitStack()
        secured = Random(f"security of {verdict.seed}").random() < SECURED_SHARE
        self._cluster = ProgramCluster(
            folder / "cluster", nodes, small_disks="full" in faults, secured=secured
        )
        self._ending.callback(self._cluster.close)
        journals = folder / "journals"
        journals.mkdir()
        self._workers = Workers(self._cluster.servers, journals, verdict.seed)
        self._ending.callback(self._workers.end)
        self._target = Target(self._cluster, self._workers)

    def close(self) -> None:
        self._ending.close()

    def carry_out(self, seconds: float) -> Verdict:
        cluster = self._cluster
        cluster.start()
        self._workers.environment = cluster.environment()
        logs = [Log(cluster.cluster.processes.log(f"node-{node}")) for node in cluster.nodes]
        keep(self._workers)
        cluster.wait_for(
            "all programs have begun", lambda: all(each.is_ready for each in self._workers.all)
        )
        step = steps(self._verdict.seed, self._faults)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._do(step(self._verdict.steps))
            self._verdict.steps += 1
        try:
            self._rest()
        except (AssertionError, JetstreamError) as error:
            self._found(CopyKind.NOT_HEALED, f"{type(error).__name__}: {error}")
        self._verdict.history.journals = self._workers.journals()
        self._verdict.history.ended_at = time.monotonic()
        self._verdict.history.purges = self._cluster.purges
        self._verdict.anomalies += check(self._verdict.history)
        for log in logs:
            log.read()
            for text in log.tracebacks:
                self._found(CopyKind.INTERNAL_ERROR, text[:2000])
        self._verdict.seconds = time.monotonic() - self._begun
        return self._verdict

    def _do(self, step: Step) -> None:
        for name in step.faults:
            done = do(name, self._target, Random(step.dice))
            at = time.monotonic()
            self._verdict.faults.append((at, f"{name}: {done}"))
            self._tell(f"{at - self._begun:7.1f} s {at:10.2f}  {name}: {done}")
        time.sleep(step.hold)
        heal(self._target)
        time.sleep(step.pause)

    def _found(self, kind: CopyKind | Kind, text: str) -> None:
        self._verdict.anomalies.append(Anomaly(kind, "", text))
        self._tell(f"         {kind}: {text}")

    def _rest(self) -> None:
        """Until everything is whole, published, read and processed."""
        heal(self._target)
        if reason := self._cluster.wait_until_whole():
            self._found(CopyKind.NOT_HEALED, reason)
        self._until("publishers end", self._publishing)
        ends = self._cluster.ends()
        self._until("everything is read", lambda: self._unread(ends))
        self._until("earlier processes of a name end", self._unfenced)
        self._verdict.history.logs = self._cluster.logs()
        self._verdict.history.starts = self._cluster.starts()

    def _publishing(self) -> str:
        keep(self._workers, sends=False)
        alive = self._workers.alive("sender")
        for worker in alive:
            worker.signal(signal.SIGTERM)
        return f"{len(alive)} go on" if alive else ""

    def _unread(self, ends: dict[str, int]) -> str:
        keep(self._workers, sends=False)
        handed: dict[tuple[str, str], int] = defaultdict(int)
        readers = set()
        for journal in self._workers.journals():
            if journal.kind in ("cursor", "member", "churner"):
                readers.add((journal.kind == "cursor", journal.reader))
            for event in journal.of("got"):
                stream, _, last = event.values
                handed[journal.reader, stream] = max(handed[journal.reader, stream], last + 1)
        unread = [
            f"{stream} by {reader}: {handed[reader, stream]} of {end}"
            for stream, end in ends.items()
            for has_cursor, reader in sorted(readers)
            if (stream == INPUT) == has_cursor and stream != OUTPUT
            if handed[reader, stream] < end
        ]
        return ", ".join(unread) or self._unprocessed(ends)

    def _unprocessed(self, ends: dict[str, int]) -> str:
        """What is still there of the parts, and has no output."""
        starts, parts = self._cluster.starts(), self._cluster.part_names
        kept = sum(ends[name] - starts[name] for name in parts if name in ends)
        if self._cluster.ends()[OUTPUT] < kept:
            return f"{OUTPUT}: {self._cluster.ends()[OUTPUT]}, to be at least {kept}"
        made = {each.value for each in self._cluster.logs([OUTPUT])[OUTPUT]}
        missing = [
            f"{name}:{offset}"
            for name in parts
            if name in ends
            for offset in range(starts[name], ends[name])
            if f"{name}:{offset}" not in made
        ]
        return f"{len(missing)} outputs are missing, {missing[0]} first" if missing else ""

    def _unfenced(self) -> str:
        """Each name has one process."""
        names = Counter(
            each.journal.instance for each in self._workers.alive("member") if each.journal.instance
        )
        return ", ".join(f"{name!r} has {n}" for name, n in names.items() if n > 1)

    def _until(self, what: str, why_not: Callable[[], str]) -> None:
        """As long as something changes, it goes on: a machine that is shared is slow."""
        deadline, before = time.monotonic() + REST_SECONDS, ""
        while reason := why_not():
            if reason != before:
                deadline, before = time.monotonic() + REST_SECONDS, reason
            if time.monotonic() > deadline:
                self._found(Kind.STARVED, f"{what}: not within {REST_SECONDS:.0f} s: {reason}")
                return
            time.sleep(LOOK_SECONDS)
