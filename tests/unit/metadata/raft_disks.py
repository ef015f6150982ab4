"""What happens to the disks of a group's voters: to one of them at a time.

    python -m tests.unit.metadata.raft_disks START SEEDS [VOTERS [SPARE]]     a walk for each seed

A disk is damaged from its loss until its node votes again: the group has taken it back by then.
SPARE: further nodes. Voters are added, removed and replaced then; at least three there are.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId

from .raft_fabric import Fabric
from .raft_voters import VoterChanges


class Disks:
    """refused: how many starts said that promised records do not read. changes: of the voters,
    while disks are damaged."""

    def __init__(self, fabric: Fabric, copies: Path, changes: VoterChanges | None = None) -> None:
        self.fabric = fabric
        self._changes = changes
        fabric.registers = True
        self.damaged: NodeId | None = None
        self.refused = 0
        self.happened: list[str] = []
        self._copies = copies
        # Nodes whose data folder says that they belong to the group.
        self._members: set[NodeId] = set()
        # Whether the disk was damaged while the voters might still found the group together.
        self._is_founding = False

    def start(self, node_id: NodeId) -> None:
        """Start a node; if it refuses its folder, as its message says: without that folder."""
        try:
            self.fabric.start(node_id, expected=self._expected(node_id))
        except StorageError as error:
            if node_id != self.damaged or "move the metadata folder away" not in error.message:
                raise AssertionError("refused a sound disk, or says not what to do") from error
            self.refused += 1
            self.lose(node_id)
            self.fabric.start(node_id, expected=self._expected(node_id))

    def lose(self, node_id: NodeId) -> None:
        """The metadata folder, or the whole data folder: then nothing says that there was one."""
        self._damage(node_id, "lost")
        if self.fabric.dice.random() < 0.5:
            self._members.discard(node_id)
        shutil.rmtree(self.fabric.directory(node_id), ignore_errors=True)

    def copy(self, node_id: NodeId) -> None:
        """As an operator does who copies the folder of a running server."""
        target = self._copies / str(node_id)
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.fabric.directory(node_id), target)

    def bring_back(self, node_id: NodeId) -> None:
        """An older copy takes the folder's place."""
        copy = self._copies / str(node_id)
        if not copy.exists():
            return
        self._damage(node_id, "older copy")
        shutil.rmtree(self.fabric.directory(node_id), ignore_errors=True)
        shutil.copytree(copy, self.fabric.directory(node_id))

    def bring_back_one_file(self, node_id: NodeId) -> None:
        """An older copy takes the place of one file, beside the newer others."""
        copy = self._copies / str(node_id)
        files = sorted(copy.iterdir()) if copy.exists() else []
        directory = self.fabric.directory(node_id)
        if not files or not directory.exists():
            return
        file = self.fabric.dice.choice(files)
        self._damage(node_id, f"older {file.name}")
        (directory / file.name).unlink(missing_ok=True)  # A copy is another file.
        shutil.copy(file, directory)

    def rot(self, node_id: NodeId) -> None:
        """A bit flips, a file is cut short, or one of the files is gone."""
        directory = self.fabric.directory(node_id)
        files = sorted(directory.iterdir()) if directory.exists() else []
        if not files:
            return
        file = self.fabric.dice.choice(files)
        data = bytearray(file.read_bytes())
        kind = self.fabric.dice.choice(("flip", "cut", "gone"))
        self._damage(node_id, f"{kind} {file.name}")
        if kind == "gone":
            file.unlink()
        elif kind == "cut":
            os.truncate(file, self.fabric.dice.randrange(len(data)))
        else:
            data[self.fabric.dice.randrange(len(data))] ^= 1 << self.fabric.dice.randrange(8)
            file.write_bytes(data)

    def strike(self) -> None:
        """Something happens to the disk of a node that is down, unless another one is damaged."""
        fabric = self.fabric
        down = [node_id for node_id in fabric.ids if node_id not in fabric.nodes]
        victims = [node_id for node_id in down if self.damaged in (None, node_id)]
        if victims:
            victim = fabric.dice.choice(victims)
            strikes = (self.lose, self.bring_back, self.bring_back_one_file, self.rot)
            fabric.dice.choice(strikes)(victim)

    def look(self) -> None:
        """Whether the damaged one has been taken back. None that knows of its loss votes before."""
        self._members.update(n.node_id for n in self.fabric.nodes.values() if n.is_registered)
        node = self.fabric.nodes.get(NodeId(-1) if self.damaged is None else self.damaged)
        if node is None or not node.core.votes():
            return
        knows_of_loss = bool(node.journal.lost) and not self._is_founding
        assert node.is_registered or not knows_of_loss, "votes before the others took it back"
        if node.is_registered:
            self.damaged = None

    def live_through(self, steps: int) -> None:
        """As Fabric.live_through, with disks that fail and snapshots that are refused."""
        fabric, dice = self.fabric, self.fabric.dice
        for _ in range(steps):
            fabric.step()
            self.look()
            running = list(fabric.nodes)
            down = [node_id for node_id in fabric.ids if node_id not in fabric.nodes]
            chance = dice.random()
            if chance < 0.30 and running:
                fabric.submit(dice.choice(running))
            elif chance < 0.33 and running:
                fabric.compact(dice.choice(running))
            elif chance < 0.337 and running:
                fabric.crash(dice.choice(running), torn=dice.random() < 0.5)
            elif chance < 0.34:
                for node_id in running:  # The power fails for all of them.
                    fabric.crash(node_id, torn=dice.random() < 0.5)
            elif chance < 0.36 and down:
                self.start(dice.choice(down))
            elif chance < 0.365:
                fabric.part(*dice.sample(fabric.ids, 2))
            elif chance < 0.38:
                fabric.heal()
            elif chance < 0.40:
                self.strike()
            elif chance < 0.42 and running:
                self.copy(dice.choice(running))
            elif chance < 0.44 and running:
                node = fabric.nodes[dice.choice(running)]
                node.machine.refuses_snapshots = dice.random() < 0.5
            elif chance < 0.60 and self._changes is not None:
                self._changes.ask()

    def recover(self) -> None:
        """Everybody is back, and all snapshots can be read."""
        for node_id in self.fabric.ids:
            if node_id not in self.fabric.nodes:
                self.start(node_id)
        for node in self.fabric.nodes.values():
            node.machine.refuses_snapshots = False
        self.fabric.recover()

    def _expected(self, node_id: NodeId) -> str:
        return "the data folder belongs to the group" if node_id in self._members else ""

    def _damage(self, node_id: NodeId, what: str) -> None:
        self._is_founding = not self.fabric.committed
        self.damaged = node_id
        self.fabric.disks[node_id] = self.fabric.disks.get(node_id, 0) + 1
        self.happened.append(f"{self.fabric.now:.2f} {node_id} {what}")


def walk(seed: int, count: int, spare: int = 0) -> Disks:
    """One seed's walk; raises AssertionError where something was lost or does not come to rest."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr("jetstream_server.metadata.raft.snapshot_transfer.PIECE_BYTES", 200)
        nodes = Path(directory, "nodes")
        with Fabric.running(patch, nodes, seed, count, spare=spare) as fabric:
            changes = VoterChanges(fabric, 3, count + spare) if spare else None
            disks = Disks(fabric, Path(directory, "copies"), changes)
            try:
                disks.live_through(600)
                disks.recover()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}; {disks.happened}") from error
            return disks


def main() -> None:
    given = [int(argument) for argument in sys.argv[1:]]
    start, seeds, count, spare = [*given, *(3, 0)[len(given) - 2 :]]
    damages = refused = 0
    for seed in range(start, start + seeds):
        disks = walk(seed, count, spare)
        damages += len(disks.happened)
        refused += disks.refused
    print(f"{seeds} seeds, {damages} damages, {refused} starts refused, nothing lost")


if __name__ == "__main__":
    main()
