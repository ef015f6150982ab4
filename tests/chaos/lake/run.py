"""One cluster whose stream is in a lake, under fire for some minutes, and checked at rest."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from examples.cluster.local import node_name
from jetstream_client import Client, StreamLake
from jetstream_protocol.errors import JetstreamError
from jetstream_server.node.config import split_address
from tests.chaos.damage.checker import Anomaly, Memory, check_stream
from tests.chaos.damage.checker import Kind as CopyKind
from tests.chaos.damage.copies import Copy, Reader
from tests.chaos.damage.publishers import Publishers
from tests.chaos.damage.streams import SEGMENT_BYTES, WINDOW_SECONDS, Stream
from tests.chaos.damage.words import Log
from tests.chaos.lake.checker import Kind, check_orphans, check_table, orphans, table_of
from tests.chaos.lake.stores import KINDS, STEPS, Bucket, LakeStore
from tests.support.clocked_server import set_clock
from tests.support.fault_cluster import FaultCluster

STREAM: Final = Stream("kept")
LOCAL_BYTES: Final = 8 * SEGMENT_BYTES
SLACK_BYTES: Final = 8 * SEGMENT_BYTES
"""The last segment, and what is copied only after it was sealed."""
PAUSE_SECONDS: Final = 0.03
TIMEOUT_SECONDS: Final = 40
"""Of a copy, with the start of the process that makes it, which a loaded machine keeps waiting."""
GRACE_SECONDS: Final = 2 * TIMEOUT_SECONDS
REST_SECONDS: Final = 90.0
GOING_ON_SECONDS: Final = 300.0
"""So long at most does each copy give the next one as much time again."""
SWEPT_SECONDS: Final = 3.0 * GRACE_SECONDS + 30
HOLD_SECONDS: Final = (2.0, 6.0)
CLOCK_US: Final = 20 * 60 * 1_000_000
"""Less than message ids are remembered."""
ROUNDS: Final = 8
"""Between two looks at all copies."""
LOOK_SECONDS: Final = 0.2
HURRY_SECONDS: Final = 0.5
_BYTES: Final = " bytes"


class Cluster(FaultCluster):
    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        super().__init__(directory)
        path = self.cluster.node_config_file
        lake = settings | {"timeout": TIMEOUT_SECONDS, "grace": GRACE_SECONDS}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"lake": lake}))
        for node in self.nodes:
            self.set_clock(node, 0)

    def set_clock(self, node: int, microseconds: int) -> None:
        set_clock(self.cluster.directory / "clocks", node, microseconds)

    def pid(self, node: int) -> int:
        return self.cluster.pids()[node_name(node)]

    def address(self, node: int) -> tuple[str, int]:
        return split_address(self.cluster.config["nodes"][node]["data"])

    def log_bytes(self, node: int, stream_id: int) -> int:
        """Of the stream's segments on the node's disk."""
        folder = self.cluster.data(node) / "streams" / str(stream_id)
        sizes = []
        for path in folder.glob("*.log"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                continue  # It was removed a moment ago.
        return sum(sizes)

    def hurry(self) -> None:
        """Let the processes that copy have the nodes' own priority, if that is allowed: where much
        else runs, they would wait for minutes."""
        for name, pid in self.cluster.pids().items():
            if name.startswith("node-"):
                with suppress(OSError):  # It has ended.
                    _hurry_children(pid)

    def revive(self) -> None:
        """Start who does not run, and wake who was frozen."""
        running = self.cluster.pids()
        for node in self.nodes:
            if node_name(node) in running:
                self.thaw(node)
            else:
                self.cluster.start_node(node)


def _hurry_children(pid: int) -> None:
    nice = os.getpriority(os.PRIO_PROCESS, pid)
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # A thread, or a child, that has ended; or nobody may hurry it.
            for child in (task / "children").read_text().split():
                os.setpriority(os.PRIO_PROCESS, int(child), nice)


@contextmanager
def _hurrying(cluster: Cluster) -> Iterator[None]:
    """They lower their priority themselves, each time they are started."""
    is_over = threading.Event()

    def go_on() -> None:
        while not is_over.wait(HURRY_SECONDS):
            cluster.hurry()

    thread = threading.Thread(target=go_on, name="hurrying", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@dataclass(slots=True)
class Verdict:
    """What came of a run."""

    acknowledged: int = 0
    objects: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    anomalies: list[Anomaly] = field(default_factory=list)

    def lines(self) -> str:
        faults = ", ".join(f"{name} {n}" for name, n in sorted(self.faults.items()))
        lines = [f"  acknowledged: {self.acknowledged}, in {self.objects} objects", f"  {faults}"]
        return "\n".join(lines + [f"  ANOMALY {anomaly}" for anomaly in self.anomalies])


def run(
    kind: str, seed: str, seconds: float, folder: Path, faults: Sequence[str],
    tell: Callable[[str], None],
) -> Verdict:  # fmt: skip
    """kind: of the store. faults: only these; none: all. tell: is given a line for each. Raises
    AssertionError when the cluster cannot be started."""
    with ExitStack() as ending:
        folder.mkdir(parents=True, exist_ok=True)
        store = KINDS[kind](folder / "store" if kind == "folder" else folder)
        ending.callback(store.close)
        cluster = Cluster(folder / "cluster", store.settings)
        ending.callback(cluster.close)
        cluster.start()
        ending.enter_context(_hurrying(cluster))
        client = ending.enter_context(Client(cluster.servers, timeout=10))
        stream = client.create_stream(
            STREAM.name, STREAM.name, lake=True, segment_bytes=SEGMENT_BYTES,
            local_max_bytes=LOCAL_BYTES, lake_lag=4, duplicate_window=WINDOW_SECONDS,
        )  # fmt: skip
        publishers = Publishers(cluster.nats, [STREAM], PAUSE_SECONDS)
        ending.callback(publishers.close)
        publishers.start()
        doing = _Run(cluster, store, client, stream.id, publishers, Random(seed), tell)
        return doing.run(seconds, faults)


class _Run:
    def __init__(
        self, cluster: Cluster, store: LakeStore, client: Client, stream_id: int,
        publishers: Publishers, dice: Random, tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._cluster, self._store, self._client = cluster, store, client
        self._publishers, self._dice, self._tell = publishers, dice, tell
        self._stream_id = stream_id
        self._steps = _steps(dice)
        self._memory = Memory()
        self._reader = Reader()
        self._logs = [
            Log(cluster.cluster.directory / f"{node_name(node)}.log") for node in cluster.nodes
        ]
        self.verdict = Verdict()

    def run(self, seconds: float, names: Sequence[str]) -> Verdict:
        deadline = time.monotonic() + seconds
        possible = [*self._store.faults, *_NODE_FAULTS]
        if not self._store.has_steps:
            possible.remove("step")
        chosen = [name for name in possible if not names or name in names]
        verdict, rounds = self.verdict, 0
        self._rest()
        while not verdict.anomalies and time.monotonic() < deadline:
            name = self._next_fault(chosen, rounds)
            begun = time.monotonic()
            strike = _NODE_FAULTS.get(name)
            told = self._fail_store(name) if strike is None else strike(self)
            verdict.faults[told] += 1
            self._heal()
            self._rest()
            self._tell(f"{told}: {time.monotonic() - begun:.1f} s")
            rounds += 1
            if rounds % ROUNDS == 0:
                self._check(swept=False)
        if not verdict.anomalies:
            self._check(swept=True)
        return verdict

    def _next_fault(self, chosen: Sequence[str], rounds: int) -> str:
        """Every other one is a step of an upload, so that a run of some minutes has them all."""
        others = [name for name in chosen if name != "step"]
        if "step" in chosen and (rounds % 2 == 0 or not others):
            return "step"
        return self._dice.choice(others)

    # Faults. Each returns what to call it.

    def _fail_store(self, name: str) -> str:
        before = self._acknowledged()
        self._store.strike(name)
        self._hold()
        if self._acknowledged() == before:
            self._found(Kind.STALLED, f"nothing is acknowledged while the store is {name!r}")
        return f"store {name}"

    def _step(self) -> str:
        """The leader is killed at a step of an upload."""
        assert isinstance(self._store, Bucket)
        (step, is_done), proxy = next(self._steps), self._store.proxy
        leader = self._leader()
        pid = self._cluster.pid(leader)
        proxy.arm(step, is_done, lambda: os.kill(pid, signal.SIGKILL))
        # Until it is reached, however much else this machine does.
        deadline = time.monotonic() + REST_SECONDS
        while proxy.is_armed and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 4)
        told = f"killed {'after' if is_done else 'before'} {step}"
        if proxy.is_armed:
            return f"{told} (no such request came)"
        self._cluster.kill(leader)  # Or wait until it has ended.
        return told

    def _kill(self) -> str:
        self._cluster.kill(self._leader())
        self._hold()
        return "killed"

    def _freeze(self) -> str:
        self._cluster.freeze(self._leader())
        self._hold()
        return "frozen"

    def _cut(self) -> str:
        self._cluster.isolate(self._leader(), both=self._dice.random() < 0.5)
        self._hold()
        return "cut off"

    def _jump(self) -> str:
        node = self._dice.choice(self._cluster.nodes)
        self._cluster.set_clock(node, self._dice.randint(-CLOCK_US, CLOCK_US))
        self._hold()
        return "clock set"

    def _lose_disk(self) -> str:
        node = self._dice.choice(self._cluster.nodes)
        self._cluster.kill(node)
        shutil.rmtree(self._cluster.cluster.data(node))
        return "disk lost"

    def _leader(self) -> int:
        return int(self._cluster.settled(STREAM.name).stream.leader)

    def _hold(self) -> None:
        time.sleep(self._dice.uniform(*HOLD_SECONDS))

    def _heal(self) -> None:
        self._store.heal()
        self._cluster.network.heal()
        self._cluster.revive()

    # At rest.

    def _acknowledged(self) -> int:
        return self._publishers.acknowledged(STREAM.name)

    def _found(self, kind: Any, text: str) -> None:
        self.verdict.anomalies.append(Anomaly(kind, STREAM.name, text))

    def _lake(self) -> StreamLake:
        return self._client.describe_lake(STREAM.name)

    def _rest(self) -> None:
        """Until all is as it was: acknowledgements, replicas, copies, disks. A machine with other
        work may copy more slowly than publishers write: these wait for the disks, and each copy
        gives the next one as much time again, for GOING_ON_SECONDS."""
        before, goal, reached = self._acknowledged(), -1, 0
        problem = "nothing was looked at"
        begun = time.monotonic()
        deadline = begun + REST_SECONDS
        try:
            while time.monotonic() < deadline:
                try:
                    found = self._lake()
                    goal = found.committed_offset if goal < 0 else goal
                    if found.end_offset > reached:
                        reached = found.end_offset
                        deadline = min(time.monotonic(), begun + GOING_ON_SECONDS) + REST_SECONDS
                    problem = self._unrest(before, found, goal)
                except (JetstreamError, AssertionError, OSError) as error:
                    problem = str(error)
                if not problem:
                    return
                if problem.endswith(_BYTES):
                    self._publishers.pause()
                time.sleep(LOOK_SECONDS)
        finally:
            self._publishers.resume()
        kind = Kind.DISK if problem.endswith(_BYTES) else CopyKind.NOT_HEALED
        self._found(kind, f"after {time.monotonic() - begun:.0f} s {problem}")

    def _unrest(self, before: int, found: StreamLake, goal: int) -> str:
        if self._publishers.failure:
            return self._publishers.failure
        isr = self._cluster.describe(STREAM.name).stream.isr
        if sorted(isr) != self._cluster.nodes:
            return f"only {isr} are in sync"
        if self._acknowledged() <= before:
            return "nothing is acknowledged"
        if found.end_offset < goal:
            return f"the lake ends at {found.end_offset}, before {goal}: {found.problem}"
        for node in self._cluster.nodes:
            held = self._cluster.log_bytes(node, self._stream_id)
            if held > LOCAL_BYTES + SLACK_BYTES:
                return f"node {node} keeps {held}{_BYTES}"
        return ""

    def _check(self, *, swept: bool) -> None:
        """All copies and the table; swept: also what lies in the store."""
        publishers, books = self._publishers, self._publishers.books[STREAM.name]
        publishers.pause()
        try:
            copies = self._copies()
            found = self._lake()
            self.verdict.acknowledged = len(books.acked)
            self.verdict.anomalies += check_stream(STREAM, books, copies, self._memory)
            store = self._store.open()
            location = found.table_url.removeprefix(f"{store.url}/")
            self.verdict.anomalies += check_table(
                store, location, found.start_offset, found.end_offset, copies[0]
            )
            self.verdict.objects = len(table_of(store, location).objects(location))
            if swept:
                self.verdict.anomalies += check_orphans(self._left())
            for log in self._logs:
                log.read()
                for text in log.tracebacks:
                    self._found(CopyKind.INTERNAL_ERROR, text)
            self._memory.take(copies[0])
        finally:
            publishers.resume()

    def _copies(self) -> list[Copy]:
        """Once nothing is on its way."""
        deadline = time.monotonic() + REST_SECONDS
        while True:
            waiting = self._publishers.waiting(STREAM.name)
            copies = [
                self._reader.read(self._cluster.address(node), node, STREAM)
                for node in self._cluster.nodes
            ]
            ends = {copy.high_watermark for copy in copies}
            is_still = not waiting and len(ends) == 1 and not any(copy.holes for copy in copies)
            if is_still or time.monotonic() > deadline:
                return copies
            time.sleep(LOOK_SECONDS)

    def _left(self) -> list[str]:
        """What no table needs and is still there, when all of it could be swept."""
        store = self._store.open()
        deadline = time.monotonic() + SWEPT_SECONDS
        while True:
            location = self._lake().table_url.removeprefix(f"{store.url}/")
            left = orphans(store, location)
            if not left or time.monotonic() > deadline:
                return left
            time.sleep(5 * LOOK_SECONDS)


def _steps(dice: Random) -> Iterator[tuple[str, bool]]:
    """Each step of an upload, and whether it is done by then, before any of them comes again."""
    while True:
        steps = [(step, dice.random() < 0.5) for step in STEPS]
        dice.shuffle(steps)
        yield from steps
        yield from [(step, not is_done) for step, is_done in steps]


_NODE_FAULTS: Final[dict[str, Callable[[_Run], str]]] = {
    "step": _Run._step,
    "kill": _Run._kill,
    "freeze": _Run._freeze,
    "cut-off": _Run._cut,
    "clock": _Run._jump,
    "disk": _Run._lose_disk,
}
