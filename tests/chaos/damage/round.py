"""One round: stop a node or not, damage one of its files, and wait until all is well again.

If the
node refuses to start, the round follows its advice, as an operator would: it empties a replica's
folder, or with one replica puts back the damaged file from a copy. It starts a node again that
ended by itself. After damage that only a start would notice, it restarts the node.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from examples.cluster.local import node_name
from jetstream_protocol.errors import JetstreamError
from tests.chaos.damage.checker import Anomaly, Kind, Memory, check_stream, difference
from tests.chaos.damage.cluster import DamagedCluster, copy_folder
from tests.chaos.damage.copies import Copy
from tests.chaos.damage.harm import FILE_WAYS, FOLDER_WAYS, fingerprint
from tests.chaos.damage.plan import Plan
from tests.chaos.damage.publishers import Publishers
from tests.chaos.damage.streams import STREAMS, Stream
from tests.chaos.damage.targets import FOLDERS, candidates
from tests.chaos.damage.words import Log, says_what_to_do

HEAL_SECONDS = 120.0
ACKS = 20
"""Of each stream, before the damage and after it."""
REPEATED = 5
REFUSALS_MAX = 3
ENDED = "this node has stopped"
"""In the last words of a node that ran and could not go on."""
LOOK_SECONDS = 0.3
SAID_SECONDS = 60.0
"""What no reader and no start meets, the scrub does."""
GROWING = ("segment_active", "journal")
"""Files that are written at their end; others are replaced, or written in place."""
CACHES = ("index",)
"""Files that are only a quicker way to what others hold: nothing need be said of them."""
STATE_FILES = ("checkpoint", "producers", "compaction", "runs", "other")
"""Where one is missing there may have been none yet, and an older one is whole: only the records
that it speaks of can tell, and what they lack is found anyway."""
NOT_AT_ONE_REPLICA = ("data_folder",)
"""Who loses everything he has knows nothing to say."""


@dataclass(slots=True)
class Report:
    """What became of a round."""

    number: int
    plan: Plan
    damage: str = ""
    path: str = ""
    refusals: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    healed_seconds: float = 0.0
    anomalies: list[Anomaly] = field(default_factory=list)
    is_spoiled: bool = False
    """Whether the cluster can be used no more: records of a stream with one replica are gone."""

    def __str__(self) -> str:
        refused = "".join(f"\n  refused: {words}" for words in self.refusals)
        said = "".join(f"\n  said: {words[:300]}" for words in self.said[:6])
        found = "".join(f"\n  ANOMALY {anomaly}" for anomaly in self.anomalies)
        done = f"{self.path}: {self.damage}" if self.damage else "nothing there to damage"
        head = f"round {self.number}: {self.plan}\n  {done}"
        return f"{head}\n  whole after {self.healed_seconds:.1f} s{refused}{said}{found}"


class Round:
    """`run` once."""

    def __init__(
        self,
        cluster: DamagedCluster,
        publishers: Publishers,
        memories: dict[str, Memory],
        number: int,
        plan: Plan,
    ) -> None:
        self.report = Report(number, plan)
        self._cluster = cluster
        self._publishers = publishers
        self._memories = memories
        self._plan = plan
        self._dice = Random(plan.dice)
        self._logs = {node: Log(cluster.log_path(node)) for node in cluster.nodes}
        self._path = Path()
        self._is: bytes | None = None
        """What the file holds since; None: it is gone, or is a folder."""
        self._is_met = plan.stop != "running" or plan.kind.startswith("segment")
        """Whether somebody is bound to see the damage."""

    def run(self) -> Report:
        cluster, plan = self._cluster, self._plan
        self._publishers.resume()
        self._wait_for_acks(HEAL_SECONDS)
        self._stop()
        self._damage()
        if plan.stop != "running":
            time.sleep(self._dice.uniform(0, 0.5))
        if self._start() and not self.report.is_spoiled:
            self._afterwards()
            self._settle()
            if plan.stop == "running" and self._is_in_place():
                (cluster.kill if self._dice.random() < 0.5 else cluster.stop)(plan.node)
                self._is_met = self._is_in_place()
                if self._start() and not self.report.is_spoiled:
                    self._settle()
        self._listen()
        return self.report

    # What is done to it.

    def _stop(self) -> None:
        cluster, node = self._cluster, self._plan.node
        match self._plan.stop:
            case "stopped":
                cluster.stop(node)
            case "killed":
                cluster.kill(node)
            case "all killed":
                for each, pid in cluster.cluster.pids().items():
                    if each.startswith("node-"):
                        os.kill(pid, signal.SIGKILL)
                for each in cluster.nodes:
                    cluster.kill(each)

    def _damage(self) -> None:
        """Unless there is nothing there that could be damaged."""
        cluster, plan = self._cluster, self._plan
        data = cluster.data(plan.node)
        found = candidates(data, plan.kind)
        if not found or (cluster.replicas == 1 and plan.kind in NOT_AT_ONE_REPLICA):
            return
        path = found[int(plan.position * len(found))]
        self._path, self.report.path = path, str(path)
        was = fingerprint(path)
        backup = cluster.cluster.directory / "before"
        _copy(path, backup)
        ways = FOLDER_WAYS if plan.kind in FOLDERS else FILE_WAYS
        older = cluster.older(plan.node) / path.relative_to(data)
        for way in plan.ways:
            done = ways[way](path, older, self._dice)
            if done is not None and fingerprint(path) != was:
                self.report.damage = done
                self._is = path.read_bytes() if path.is_file() else None
                return

    def _start(self) -> bool:
        """Whether all nodes run and serve again, at once or after what the refusal said to do."""
        cluster = self._cluster
        for node in cluster.nodes:
            if not cluster.is_running(node):
                cluster.launch(node)
        return all(self._begin(node) for node in cluster.nodes)

    def _begin(self, node: int) -> bool:
        cluster = self._cluster
        for _ in range(REFUSALS_MAX):
            words = cluster.begin(node)
            if not words:
                return True
            self.report.refusals.append(words)
            if ENDED in words and not cluster.is_running(node):
                continue  # Its folder was taken away under it: it is started again without.
            if node != self._plan.node or cluster.is_running(node):
                return self._found(Kind.NOT_HEALED, "", f"node {node}: {words}")
            if not says_what_to_do(words):
                return self._found(Kind.NOT_HEALED, "", f"an unclear refusal: {words}")
            if not self._do_as_told(words):
                return False
        return self._found(Kind.NOT_HEALED, "", f"refused {REFUSALS_MAX} times: {words}")

    def _do_as_told(self, words: str) -> bool:
        """Empty what is to be emptied, or put the file back. Whether it is worth another start."""
        cluster, node = self._cluster, self._plan.node
        data = cluster.data(node)
        if cluster.replicas == 1:
            if self._plan.stop == "running":
                self.report.is_spoiled = True  # What was written since has no copy.
                return False
            _copy(cluster.cluster.directory / "before", self._path)
            return True
        target = data
        if named := re.search(r"(?:move|empty|remove|delete) (/\S+?)[;:,.]?(?:\s|$)", words):
            path = Path(named[1])
            target = path if path.is_relative_to(data) else data
        moved = cluster.cluster.directory / f"moved-{node_name(node)}-{time.monotonic_ns()}"
        target.rename(moved)
        return True

    def _afterwards(self) -> None:
        cluster, plan = self._cluster, self._plan
        match plan.afterwards:
            case "lead":
                cluster.lead(plan.node)
            case "restart":
                cluster.stop(plan.node)
                self._start()
            case "kill another":
                time.sleep(self._dice.uniform(0, 1.5))
                other = self._dice.choice([node for node in cluster.nodes if node != plan.node])
                cluster.kill(other)
                time.sleep(self._dice.uniform(0, 2.0))
                self._start()

    def _is_in_place(self) -> bool:
        """Whether the damage is still there, and not written over: some files grow after it."""
        if not self.report.damage or self._plan.kind in FOLDERS:
            return bool(self.report.damage)
        if self._is is None:
            return not self._path.exists()
        found = self._path.read_bytes() if self._path.exists() else b""
        if self._plan.kind in GROWING:
            return found.startswith(self._is)
        return found == self._is

    # What has to come of it.

    def _wait_for_acks(self, seconds: float) -> str:
        """More acknowledgements of every stream that is not offline; else which has none."""
        wanted = {each.name: self._publishers.acknowledged(each.name) + ACKS for each in STREAMS}
        deadline = time.monotonic() + seconds
        while True:
            missing = [
                name for name, n in wanted.items() if self._publishers.acknowledged(name) < n
            ]
            missing = [name for name in missing if not self._excuse(_stream(name))]
            if self._publishers.failure:
                return f"the publishers failed: {self._publishers.failure}"
            if not missing:
                return ""
            if time.monotonic() > deadline:
                refusal = self._publishers.books[missing[0]].last_refusal
                return f"no acknowledgements of {missing[0]}: {refusal or 'no answer'}"
            self._revive()
            time.sleep(0.02)

    def _settle(self) -> None:
        """Until all is well and equal, or it has taken too long; then the books are held against
        what is there."""
        begun = time.monotonic()
        self._publishers.resume()
        for stream in STREAMS:
            self._publishers.repeat(stream.name, self._dice, REPEATED)
        reason = self._wait_for_acks(HEAL_SECONDS)
        self._publishers.pause()
        copies: dict[str, list[Copy]] = {}
        while not reason:
            is_last = time.monotonic() > begun + HEAL_SECONDS
            if is_last or not self._why_unwell():  # Reading everything takes a while.
                reason, copies = self._look()
                if is_last or not reason:
                    break
            reason = ""
            self._revive()
            time.sleep(LOOK_SECONDS)
        self.report.healed_seconds = time.monotonic() - begun
        if reason:
            self._found(Kind.NOT_HEALED, "", reason)
        self._listen()
        for stream in STREAMS:
            self._check(stream, copies.get(stream.name, []))

    def _why_unwell(self) -> list[str]:
        """By what the publishers know, and the streams say of themselves."""
        reasons = []
        for stream in STREAMS:
            if self._excuse(stream):
                continue
            if waiting := self._publishers.waiting(stream.name):
                reasons.append(f"{stream.name}: {waiting} messages are not acknowledged")
            elif reason := self._cluster.unwell(stream):
                reasons.append(f"{stream.name}: {reason}")
        return reasons

    def _look(self) -> tuple[str, dict[str, list[Copy]]]:
        """Why not all is well, and every copy as it is."""
        cluster, reasons = self._cluster, self._why_unwell()
        copies: dict[str, list[Copy]] = {}
        for stream in STREAMS:
            excuse = self._excuse(stream)
            copies[stream.name] = []
            for node in cluster.nodes:
                try:
                    copies[stream.name].append(cluster.copy(node, stream))
                except (JetstreamError, OSError, EOFError) as error:
                    if not excuse:
                        reasons.append(f"{stream.name}: node {node}: {error}")
            for copy in copies[stream.name][1:]:
                if problem := difference(stream, copies[stream.name][0], copy):
                    reasons.append(f"{stream.name}: {problem}")
        return "; ".join(reasons[:2]), copies

    def _check(self, stream: Stream, copies: list[Copy]) -> None:
        memory, books = self._memories[stream.name], self._publishers.books[stream.name]
        excuse = self._excuse(stream)
        if self._cluster.replicas == 1:
            excuse = excuse or self._complaint(stream)
            self.report.is_spoiled |= bool(excuse) or any(copy.holes for copy in copies)
        found = check_stream(stream, books, copies, memory, excuse)
        self.report.anomalies += found
        if not found and copies and not copies[0].holes:
            memory.take(copies[0])

    def _excuse(self, stream: Stream) -> str:
        """With one replica: what the stream says of itself, unless it is well."""
        return self._cluster.state(stream) if self._cluster.replicas == 1 else ""

    def _complaint(self, stream: Stream) -> str:
        """A line of the log about this stream."""
        stream_id = self._cluster.stream_ids[stream.name]
        marks = (f"streams/{stream_id}/", f'"{stream.name}@', f'"{stream.name}"')
        for log in self._logs.values():
            for line in log.complaints:
                if any(mark in line for mark in marks):
                    return line
        return ""

    def _revive(self) -> None:
        """What a service manager does: a node that has ended by itself is started again."""
        cluster = self._cluster
        for node in cluster.nodes:
            if not cluster.is_running(node):
                self.report.refusals.append(f"ended: {cluster.last_words(node)}")
                self._begin(node)

    def _listen(self) -> None:
        """What was said, and whether it was enough."""
        for node, log in self._logs.items():
            log.read()
            self.report.said += [f"node {node}: {line}" for line in log.complaints]
            if log.tracebacks:
                self._found(Kind.INTERNAL_ERROR, "", f"node {node}: {log.tracebacks[0][:2000]}")
            log.tracebacks.clear()
        self.report.said = list(dict.fromkeys(self.report.said))

    def check_said(self) -> None:
        """At the end of a round in which something was damaged."""
        if not self.report.damage or not self._is_met or self._need_not_be_said():
            return
        deadline = time.monotonic() + SAID_SECONDS
        while not self._is_said():
            if time.monotonic() > deadline:
                self._found(Kind.NOT_SAID, "", f"{self.report.path}: {self.report.damage}")
                return
            time.sleep(LOOK_SECONDS)
            self._listen()

    def _is_said(self) -> bool:
        data = self._cluster.data(self._plan.node)
        mark = str(self._path.relative_to(data)) if self._path != data else str(data)
        is_mentioned = self._logs[self._plan.node].mentions(mark)
        return bool(self.report.said or self.report.refusals or is_mentioned)

    def _need_not_be_said(self) -> bool:
        looks_whole = self.report.damage.startswith(("removed", "replaced"))
        is_state = self._plan.kind in STATE_FILES and looks_whole
        return self._plan.kind in CACHES or is_state or self._is_out_of_date()

    def _is_out_of_date(self) -> bool:
        """Whether the stream's limit has removed the segment that was damaged, or its next append
        has gone over the garbage."""
        if self._plan.kind == "segment_active" and self._plan.stop == "running":
            return self.report.damage.endswith("appended")
        ids = {str(found): name for name, found in self._cluster.stream_ids.items()}
        name = ids.get(self._path.parent.name)
        if name is None or self._path.suffix != ".log":
            return False
        return int(self._path.stem) < self._memories[name].log_start_offset

    def _found(self, kind: Kind, stream: str, text: str) -> bool:
        """Note an anomaly; False."""
        self.report.anomalies.append(Anomaly(kind, stream, text))
        return False


def _stream(name: str) -> Stream:
    return next(stream for stream in STREAMS if stream.name == name)


def _copy(source: Path, target: Path) -> None:
    """A file or folder, whatever was there before."""
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)
    if source.is_dir():
        copy_folder(source, target)
    else:
        shutil.copy2(source, target)
