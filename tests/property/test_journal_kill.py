"""The metadata's files under kills, failed operations and power failures, in any order.

A node opens its folder as a member does, and writes entries, votes, snapshots and the group's
file. At any operation of the disk the process dies, or the operation fails and the node stops, as
it does then. Power fails now and then, also while it starts again, however often. Then:

* the folder opens, and nothing is said to be lost;
* everything that was acted on is there: what a `sync` that returned had made durable, and what an
  earlier start had found. What was not synced is there up to any record, or not at all.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.metadata_records import Entry, Snapshot
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import (
    files,
    group_file,
    journal,
    snapshot_file,
    synced_length_file,
)
from jetstream_server.metadata.raft.group_file import Group, GroupFile
from jetstream_server.metadata.raft.journal import Journal
from jetstream_server.metadata.raft.standing import VoterState, VoterStatus
from tests.simulation.disk import Killed
from tests.support.examples import scaled
from tests.support.memory_os import MemoryOs

FOLDER = "/data/metadata"
MODULES = (files, group_file, journal, snapshot_file, synced_length_file)
GROUP = Group(NodeId(0), ((NodeId(0), "a:1"),))


class State(NamedTuple):
    """What a journal holds."""

    entries: tuple[Entry, ...]
    term: int
    voted_for: str
    runs: tuple[str, ...]
    snapshot_index: int


class Attack:
    """One node's folder. possible: the states that the next start may find, oldest first; the first
    was acted on."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.os = MemoryOs()
        self.os.make_durable(FOLDER)  # As the data folder has made it.
        self.alone = self.random.random() < 0.5
        self.possible: list[State] = []
        self.groups: list[Group] = [GROUP]
        self.journal: Journal
        self.count = 0

    def run(self) -> None:
        for _ in range(self.random.randint(1, 6)):
            self._live()
            self._end()
        self.os.fault()
        self._open()

    def _end(self) -> None:
        if self.random.random() < 0.5:
            self.os.lose_power(self.random)
        else:
            self.os.kill()

    def _live(self) -> None:
        """One run of the process, whose end may be a fault."""
        at = self.random.choice((self.random.randrange(1, 30), self.random.randrange(1, 120)))
        self.os.draw_fault(self.random, at)
        try:
            self._open()
            for _ in range(self.random.randrange(12)):
                self._step()
            if self.random.random() < 0.3:
                self.journal.close()
        except Killed:
            pass
        except StorageError:
            if not self.os.failed:
                raise

    def _open(self) -> None:
        group = GroupFile.open(FOLDER, GROUP, accept_voters=False)
        self.journal = Journal.open(FOLDER, alone=self.alone)
        assert self.journal.lost == ""
        assert group.group in self.groups
        self.groups, self.group = [group.group], group
        found = self._state()
        if self.possible:
            assert found in self.possible
        self.possible = [found]
        self.count += 1
        self.journal.save_standing(self.journal.standing.with_run(f"run {self.count}"))
        self._noted()
        self._sync()

    def _state(self) -> State:
        held = self.journal
        return State(
            tuple(held.held), held.term, held.voted_for, held.standing.runs, held.snapshot_index
        )

    def _noted(self) -> None:
        self.possible.append(self._state())

    def _sync(self) -> None:
        self.journal.sync()
        del self.possible[:-1]

    def _step(self) -> None:
        held, random = self.journal, self.random
        step = random.choice(("append", "append", "vote", "truncate", "sync", "sync", "install"))
        if step == "append":
            self.count += 1
            held.append(
                Entry(b"%d" % self.count * random.randint(1, 9), held.last_index + 1, held.term)
            )
        elif step == "vote":
            held.save_vote(held.term + 1, f"node {random.randrange(3)}")
        elif step == "truncate":
            held.truncate(max(held.snapshot_index + 1, held.last_index - random.randrange(3)))
        elif step == "sync":
            self._sync()
            return
        elif random.random() < 0.3:
            self._replace_group()
            return
        else:
            self._install()
            return
        self._noted()

    def _install(self) -> None:
        """What a snapshot replaces was agreed on, and so it was synced."""
        held = self.journal
        self._sync()
        later = [entry for entry in held.held if entry.index > held.snapshot_index]
        if not later or self.random.random() < 0.2:
            index = held.last_index + 5
            base: tuple[Entry, ...] = (
                Entry(b"x", index - 1, held.term),
                Entry(b"y", index, held.term),
            )
            held.install(Snapshot(index, held.term, b"state", base))
        else:
            last = self.random.choice(later)
            base = tuple(e for e in held.held if last.index - 1 <= e.index <= last.index)
            held.install(Snapshot(last.index, last.term, b"state", base), keep_from=base[0].index)
        self._noted()
        self._sync()

    def _replace_group(self) -> None:
        self.count += 1
        group = Group(NodeId(0), GROUP.addresses, "c", (f"{self.count}",))
        self.groups.append(group)
        self.group.replace(group)
        del self.groups[:-1]


def test_what_was_acted_on_is_there_whatever_fails_dies_or_loses_power() -> None:
    for seed in range(scaled(400)):
        attack = Attack(seed)
        with attack.os.installed(*MODULES):
            try:
                attack.run()
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


@pytest.mark.parametrize("doubt", ["no synced length", "a damaged one", "a copy", "an older one"])
@pytest.mark.parametrize("snapshots", [0, 2])
def test_a_journal_in_doubt_does_not_vote_whenever_its_start_dies(
    doubt: str, snapshots: int
) -> None:
    operations, was_killed = 0, True
    while was_killed:
        operations += 1
        for seed in range(8):
            memory = MemoryOs()
            with memory.installed(*MODULES):
                was_killed = _start_in_doubt(memory, doubt, snapshots, operations, Random(seed))
                opened = Journal.open(FOLDER)
                assert opened.standing.state == VoterState.LEARNER, operations
    assert operations > 10


def _start_in_doubt(
    memory: MemoryOs, doubt: str, snapshots: int, operations: int, random: Random
) -> bool:
    """A voter's journal is in doubt, and its start dies at that operation. Returns whether it
    did."""
    memory.make_durable(FOLDER)
    voter = Journal.open(FOLDER)
    for index in (1, 2):
        voter.append(Entry(b"x", index, 1))
    voter.save_standing(VoterStatus(VoterState.VOTER, ("a",)))
    voter.sync()
    older = memory.files(FOLDER)["journal"]
    for _ in range(snapshots + (doubt == "an older one")):
        voter.install(Snapshot(1, 1, b"state", tuple(voter.held[:1])), keep_from=1)
        voter.sync()
    files = memory.files(FOLDER)
    if doubt == "no synced length":
        memory.put(f"{FOLDER}/synced", None)
    elif doubt == "a damaged one":
        memory.put(f"{FOLDER}/synced", files["synced"].replace(b"J", b"j"))
    else:
        memory.put(f"{FOLDER}/journal", older if doubt == "an older one" else files["journal"])
    memory.fault(die_in=operations)
    try:
        Journal.open(FOLDER)
    except Killed:
        memory.lose_power(random) if random.random() < 0.5 else memory.kill()
        return True
    memory.kill()
    return False
