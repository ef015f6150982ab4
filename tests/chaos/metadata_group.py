"""A metadata group of three real processes, killed in every way, with every promise checked.

    python -m tests.chaos.metadata_group [--rounds 12] [--seed N]     kill under load
    python -m tests.chaos.metadata_group --failovers 20               leader killed: how long
    python -m tests.chaos.metadata_group --freezes 5                  leader stopped: how long
    python -m tests.chaos.metadata_group --isolations 5               leader cut off: how long
    python -m tests.chaos.metadata_group --returns 5                  follower cut off and back

Kill rounds: each node creates streams and writes down what was acknowledged; snapshots are taken
all the time (every 100 entries); then SIGKILL to the leader, a follower, two, or all at once, also
one after another, and a restart. After each round every node must hold every stream ever
acknowledged, under the id acknowledged, and all must hold the same. SIGKILL keeps the page cache:
that a power failure loses nothing either is shown by the order of sync and send (unit tests).

Returns: a follower is cut off (also one way only), frozen, or killed, and comes back. While it is
away it must raise no term; when it is back, the leader and its term stay, unless the machine stands
still for longer than an election timeout.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.support.fault_network import FaultNetwork
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.server import free_port_base

Event = dict[str, Any]
SECRET = "the cluster's credential"
WAIT_SECONDS_MAX = 120.0
"""For what takes a second or two."""
TOLD_BYTES = 3000
"""Of the end of a node's log, when something has failed."""


def free_addresses(count: int) -> list[str]:
    """Loopback addresses on which no process listens now, and from which none connects."""
    base = free_port_base(count)
    return [f"127.0.0.1:{base + number}" for number in range(count)]


class NodeProcess:
    """One member; its events so far, and the acknowledgements of all its runs."""

    program = "tests.chaos.metadata_node"

    def __init__(self, node_id: int, voters: dict[int, str], directory: Path, compact: int) -> None:
        self.node_id = node_id
        self.acknowledged: dict[str, int] = {}
        self.counts = {"ack": 0, "unknown": 0, "refused": 0}
        self.leader = self.term = -1
        self.leader_at = 0.0
        """When it said so."""
        self.events: queue.Queue[Event] = queue.Queue()
        self._argument = {
            "directory": str(directory / str(node_id)),
            "node_id": node_id,
            "voters": voters,
            "listen": voters[node_id],
            "secret": SECRET,
            "compact_after_entries": compact,
        }
        self._process: ForkedProcess | None = None
        self._reader: threading.Thread | None = None
        self.stderr_path = directory / f"{node_id}.stderr"

    def start(self, **overrides: Any) -> None:
        argument = json.dumps({**self._argument, **overrides})
        with open(self.stderr_path, "ab") as stderr:
            self._process = fork_server.start(
                [sys.executable, "-m", self.program, argument],
                environment=os.environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr.fileno(),
            )
        self.leader = -1
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return -1 if self._process is None else self._process.pid

    @property
    def is_started(self) -> bool:
        """Whether there is a process, running or not, to be joined."""
        return self._process is not None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def say(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> float:
        """SIGKILL; returns when, once it is gone and all it said has been read."""
        at = time.monotonic()
        self.signal(signal.SIGKILL)
        self.join()
        return at

    def join(self) -> int:
        assert self._process is not None
        assert self._reader is not None
        code = self._process.wait(WAIT_SECONDS_MAX)
        self._reader.join(WAIT_SECONDS_MAX)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # It was killed with something still to read.
        self._process.stdout.close()
        self._process = None
        return code

    def wait_for(self, wanted: Callable[[Event], bool]) -> Event:
        """The next event that is wanted; those before it are dropped."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while True:
            try:
                event = self.events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"it does not say what is waited for:\n{self.told}") from None
            if wanted(event):
                return event

    @property
    def told(self) -> str:
        """What it does and believes, and the end of its log."""
        code = None if self._process is None else self._process.poll()
        state = "running" if self.is_running else "not started" if code is None else f"exit {code}"
        log = self.stderr_path.read_text(errors="replace") if self.stderr_path.exists() else ""
        return (
            f"--- node {self.node_id}: {state}; leader {self.leader} in term {self.term}; "
            f"{self.counts}\n{log[-TOLD_BYTES:]}"
        )

    def registry(self) -> Event:
        self.say("registry")
        return self.wait_for(lambda event: event["event"] == "registry")

    def _read(self, process: ForkedProcess) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.endswith("\n"):
                break  # Cut off by the kill: what was not said whole was not said.
            event = json.loads(line)
            if event["event"] == "ack":
                self.acknowledged[event["name"]] = event["id"]
                event["leader"] = self.leader
            elif event["event"] == "leader":
                self.leader, self.term = event["leader"], event["term"]
                self.leader_at = event["at"]
            if event["event"] in self.counts:
                self.counts[event["event"]] += 1
            self.events.put(event)


class Group:
    """Three members in one folder. can_be_cut: what they dial is a proxy of `network`."""

    def __init__(
        self, directory: Path, compact_after_entries: int = 100, *, can_be_cut: bool = False
    ) -> None:
        self.voters = dict(enumerate(free_addresses(3)))
        self.nodes = [
            NodeProcess(node_id, self.voters, directory, compact_after_entries)
            for node_id in self.voters
        ]
        self.network = FaultNetwork(lambda: {str(node.node_id): node.pid for node in self.nodes})
        self._dialled = dict(self.voters)
        if can_be_cut:
            for node_id, address in self.voters.items():
                self._dialled[node_id] = self.network.route(str(node_id), "raft", address)

    def start_missing(self) -> None:
        for node in self.nodes:
            if not node.is_running:
                node.start(voters=self._dialled)

    def close(self) -> None:
        self.kill_all()  # A stopped process, too, dies of SIGKILL.
        self.network.close()

    def kill_all(self) -> None:
        started = [node for node in self.nodes if node.is_started]
        for node in started:
            node.signal(signal.SIGKILL)
        for node in started:
            node.join()

    def leader(self) -> NodeProcess:
        """The node that all running ones call leader."""
        leader = -1

        def is_agreed_on() -> bool:
            nonlocal leader
            believed = {node.leader for node in self.nodes if node.is_running}
            leader = believed.pop() if len(believed) == 1 else -1
            return leader >= 0

        self.wait_for("agree on a leader", is_agreed_on)
        return self.nodes[leader]

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not holds():
            if time.monotonic() > deadline:
                told = "\n".join(node.told for node in self.nodes)
                raise AssertionError(
                    f"the group did not {what} in {WAIT_SECONDS_MAX} s; {self.voters}\n{told}"
                )
            time.sleep(0.01)

    def check(self) -> int:
        """Every node holds every acknowledged stream, and all hold the same. How many acks."""
        for node in self.nodes:
            node.say("propose 0")
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        views = self._views()
        while not views[0] == views[1] == views[2] and time.monotonic() < deadline:
            views = self._views()  # Proposals of the survivors were still under way.
        acknowledged: dict[str, int] = {}
        for node in self.nodes:
            acknowledged.update(node.acknowledged)
        for node, view in zip(self.nodes, views, strict=True):
            lost = [name for name, id in acknowledged.items() if view.get(name) != id]
            assert not lost, f"node {node.node_id} lost {len(lost)} acknowledged: {lost[:5]}"
        assert views[0] == views[1] == views[2], "the nodes hold different streams"
        return len(acknowledged)

    def _views(self) -> list[dict[str, int]]:
        return [node.registry()["streams"] for node in self.nodes]


@contextmanager
def running_group(directory: Path, **options: int) -> Iterator[Group]:
    group = Group(directory, **options)
    group.start_missing()
    try:
        yield group
    finally:
        group.close()


def kill_round(group: Group, dice: random.Random, number: int) -> str:
    """Kill members in one way; returns which."""
    kind = ("all", "leader", "all", "follower", "one after another", "two")[number % 6]
    leader = group.leader()
    followers = [node for node in group.nodes if node is not leader]
    if kind == "all":
        group.kill_all()
    elif kind == "leader":
        leader.kill()
    elif kind == "follower":
        dice.choice(followers).kill()
    elif kind == "two":
        leader.kill()
        dice.choice(followers).kill()
    else:
        for node in dice.sample(group.nodes, 3):
            node.kill()
            time.sleep(dice.uniform(0, 0.6))
            node.start()
            time.sleep(dice.uniform(0, 0.6))
            if node.is_running and not any(n is not node and n.is_running for n in group.nodes):
                break
    return kind


def acks(group: Group) -> int:
    return sum(node.counts["ack"] for node in group.nodes)


def kill_rounds(directory: Path, rounds: int, seed: int, tell: Callable[[str], None]) -> int:
    """The experiment; the number of acknowledged commands, all of them still there."""
    dice = random.Random(seed)
    acknowledged = 0
    with running_group(directory) as group:
        for number in range(rounds):
            group.leader()
            before = acks(group)
            for node in group.nodes:
                node.say("propose 8")
            group.wait_for("acknowledge anything", lambda before=before: acks(group) > before)  # type: ignore[misc]
            time.sleep(dice.uniform(0.8, 2.0))
            kind = kill_round(group, dice, number)
            time.sleep(dice.uniform(0, 0.3))
            group.start_missing()
            acknowledged = group.check()
            counts = {
                key: sum(node.counts[key] for node in group.nodes)
                for key in ("ack", "unknown", "refused")
            }
            tell(
                f"round {number + 1}: killed {kind}; {acknowledged} acknowledged, 0 lost; {counts}"
            )
    return acknowledged


def _is_ack_under_another(leader: int, since: float, event: Event) -> bool:
    """An answer may have been on its way: only what follows an election counts."""
    return event["event"] == "ack" and event["at"] > since and event["leader"] not in (-1, leader)


def failovers(directory: Path, count: int, number: int = signal.SIGKILL) -> list[float]:
    """Seconds from the leader's SIGKILL (or SIGSTOP) to the next change a survivor has made."""
    times = []
    with running_group(directory, compact_after_entries=20_000) as group:
        for _ in range(count):
            leader = group.leader()
            survivors = [node for node in group.nodes if node is not leader]
            for node in survivors:
                node.wait_for(lambda event: event["event"] == "registered")
                node.say("propose 1")
                node.wait_for(lambda event: event["event"] == "ack")
            struck_at = time.monotonic()
            leader.signal(number)
            wanted = partial(_is_ack_under_another, leader.node_id, struck_at)
            times.append(min(node.wait_for(wanted)["at"] for node in survivors) - struck_at)
            group.kill_all()  # Everyone registers anew, so that every trial begins alike.
            group.start_missing()
    return times


def freezes(directory: Path, count: int) -> list[float]:
    """The same for a leader that is stopped, which nothing but its silence tells."""
    return failovers(directory, count, signal.SIGSTOP)


def isolations(directory: Path, count: int) -> list[float]:
    """Seconds until a leader whose followers are all frozen says that there is no leader."""
    times = []
    with running_group(directory, compact_after_entries=20_000) as group:
        for _ in range(count):
            leader = group.leader()
            time.sleep(0.5)
            followers = [node for node in group.nodes if node is not leader]
            frozen_at = time.monotonic()
            for node in followers:
                node.signal(signal.SIGSTOP)
            group.wait_for("miss its leader", lambda leader=leader: leader.leader == -1)  # type: ignore[misc]
            times.append(leader.leader_at - frozen_at)
            for node in followers:
                node.signal(signal.SIGCONT)
            time.sleep(1.0)
    return times


RETURNS = ("cut off", "deaf", "not heard", "frozen", "killed")
AWAY_SECONDS = 3.0
"""Longer than a silent link lives, and several times as long as a follower waits for its leader."""


@dataclass(frozen=True)
class Return:
    """has_raised: whether the follower called an election while it heard nobody, which no machine
    excuses. has_stayed: whether leader and term are what they were."""

    has_raised: bool
    has_stayed: bool


def returns(
    directory: Path,
    count: int,
    tell: Callable[[str], None] = print,
    kinds: Sequence[str] = RETURNS,
) -> list[Return]:
    """Let a follower go away and come back in each of these ways."""
    found = []
    with running_group(directory, compact_after_entries=20_000, can_be_cut=True) as group:
        for number in range(count * len(kinds)):
            kind = kinds[number % len(kinds)]
            leader = group.leader()
            followers = [node for node in group.nodes if node is not leader]
            follower = followers.pop(number // len(kinds) % 2)
            term = leader.term
            _send_away(group, follower, kind)
            time.sleep(AWAY_SECONDS)
            raised = follower.term
            for node in (leader, *followers):
                node.registry()  # They go on, and have said in which term.
            rest = max(leader.term, followers[0].term)
            _bring_back(group, follower, kind)
            # Whatever its way: it must follow somebody again, and hear what is committed now.
            follower.registry()
            after = group.leader()
            has_stayed = after is leader and {node.term for node in group.nodes} == {term}
            found.append(Return(raised > rest, has_stayed))
            before = f"leader {leader.node_id}, term {term}"
            tell(
                f"node {follower.node_id} {kind}: {before} -> {after.node_id}, {after.term}; away "
                f"it was in term {raised}, the others in {rest}"
            )
    return found


def _send_away(group: Group, node: NodeProcess, kind: str) -> None:
    me, peers = str(node.node_id), [str(n.node_id) for n in group.nodes if n is not node]
    if kind == "frozen":
        node.signal(signal.SIGSTOP)
    elif kind == "killed":
        node.kill()
    for peer in peers:
        if kind == "deaf":
            group.network.cut(peer, me, "raft", both=False)
        elif kind in ("cut off", "not heard"):
            group.network.cut(me, peer, "raft", both=kind == "cut off")


def _bring_back(group: Group, node: NodeProcess, kind: str) -> None:
    if kind == "frozen":
        node.signal(signal.SIGCONT)
    elif kind == "killed":
        group.start_missing()
    else:
        group.network.heal()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--failovers", type=int, default=0)
    parser.add_argument("--freezes", type=int, default=0)
    parser.add_argument("--isolations", type=int, default=0)
    parser.add_argument("--returns", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for measure in (failovers, freezes, isolations):
            name = measure.__name__
            count = getattr(arguments, name)
            if count:
                path = Path(directory) / name
                path.mkdir()
                times = measure(path, count)
                median, worst = statistics.median(times), max(times)
                print(f"{name}: median {median:.2f} s, max {worst:.2f} s of {count}")
        if arguments.returns:
            path = Path(directory) / "returns"
            path.mkdir()
            found = returns(path, arguments.returns)
            disturbed = sum(not each.has_stayed for each in found)
            raised = sum(each.has_raised for each in found)
            print(
                f"returns: {disturbed} of {len(found)} disturbed the leader, {raised} raised a term"
            )
        measured = (
            arguments.failovers or arguments.freezes or arguments.isolations or arguments.returns
        )
        if arguments.rounds or not measured:
            rounds = arguments.rounds or 12
            print(f"seed {arguments.seed}")
            path = Path(directory) / "kills"
            path.mkdir()
            acknowledged = kill_rounds(
                path, rounds, arguments.seed, lambda text: print(text, flush=True)
            )
            print(f"{rounds} rounds, {acknowledged} acknowledged, 0 lost")


if __name__ == "__main__":
    main()
