"""A metadata group whose voters change while its nodes crash and are cut off from each other.

    python -m tests.unit.metadata.raft_voters START SEEDS      a random walk for each seed

Whoever leads, or believes so, is asked for changes, also for such that may not be. The fabric
checks that nothing that was applied anywhere is lost, and that a term has one leader. In the end
all nodes agree who votes, and commit.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from jetstream_server.metadata.raft.voter_change import Verdict

from .raft_fabric import Fabric, next_set

NODES = 6


class VoterChanges:
    """An operator of a fabric's group. smallest, largest: how many voters there may be."""

    def __init__(self, fabric: Fabric, smallest: int, largest: int) -> None:
        self.fabric = fabric
        self._sizes = (smallest, largest)
        self._wanted: set[int] = set()

    def ask(self) -> None:
        """Ask a node that believes to lead for the next step to voters that are chosen anew now and
        then, or for any others."""
        fabric, dice = self.fabric, self.fabric.dice
        leaders = [node for node in fabric.nodes.values() if node.core.role() == "leader"]
        if not leaders:
            return
        core = dice.choice(leaders).core
        now = set(core.voters.ids)
        if not self._wanted or now == self._wanted or dice.random() < 0.02:
            self._wanted = set(dice.sample(fabric.ids, dice.randint(*self._sizes)))
        wanted = next_set(now, self._wanted) if now != self._wanted else now
        if dice.random() < 0.1:
            wanted = set(dice.sample(fabric.ids, dice.randint(*self._sizes)))
        fabric.change_voters(core.core_node_id, wanted)


def live_through(fabric: Fabric, changes: VoterChanges, steps: int) -> None:
    dice = fabric.dice
    for _ in range(steps):
        fabric.step()
        running = list(fabric.nodes)
        down = [node_id for node_id in fabric.ids if node_id not in fabric.nodes]
        chance = dice.random()
        if chance < 0.15 and running:
            fabric.submit(dice.choice(running))
        elif chance < 0.35:
            changes.ask()
        elif chance < 0.37 and running:
            fabric.compact(dice.choice(running))
        elif chance < 0.376 and running:
            fabric.crash(dice.choice(running), torn=dice.random() < 0.5)
        elif chance < 0.378:
            for node_id in running:  # The power fails for all of them.
                fabric.crash(node_id, torn=dice.random() < 0.5)
        elif chance < 0.41 and down:
            fabric.start(dice.choice(down))
        elif chance < 0.416:
            fabric.part(*dice.sample(fabric.ids, 2))
        elif chance < 0.422:
            side = dice.sample(fabric.ids, dice.randint(1, len(fabric.ids) - 1))
            for left in side:
                for right in set(fabric.ids) - set(side):
                    fabric.part(left, right)
        elif chance < 0.435:
            fabric.heal()


def walk(seed: int, steps: int = 700) -> Fabric:
    """One seed's walk; raises AssertionError where something was lost or does not come to rest."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr("jetstream_server.metadata.raft.snapshot_transfer.PIECE_BYTES", 200)
        count = 1 + seed % 5
        with Fabric.running(patch, Path(directory), seed, count, spare=NODES - count) as fabric:
            fabric.registers = True
            try:
                fabric.run_until_led()
                live_through(fabric, VoterChanges(fabric, 1, 5), steps)
                fabric.recover()
            except AssertionError as error:
                raise AssertionError(f"seed {seed}: {error}") from error
            return fabric


def main() -> None:
    start, seeds = (int(argument) for argument in sys.argv[1:3])
    verdicts: Counter[str] = Counter()
    for seed in range(start, start + seeds):
        fabric = walk(seed)
        verdicts.update(verdict.name for _, verdict, _ in fabric.verdicts)
        sizes = {
            len(voters.ids) for voters, verdict, _ in fabric.verdicts if verdict == Verdict.APPEND
        }
        verdicts.update(f"{size} voters" for size in sizes)
    print(f"{seeds} seeds, nothing lost; {dict(verdicts)}")


if __name__ == "__main__":
    main()
