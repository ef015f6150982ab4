"""What a round does, drawn from the seed and the round's number alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from tests.chaos.damage.harm import FILE_WAYS, FOLDER_WAYS
from tests.chaos.damage.targets import FOLDERS, KINDS

STOPS = ("stopped", "killed", "all killed", "running")
AFTERWARDS = ("", "", "lead", "kill another", "restart")
"""With leaderships moved to the damaged node, with another node killed, with a clean restart."""


@dataclass(frozen=True, slots=True)
class Plan:
    """stop: how the node ends before the damage, if at all. kind: of the file; a round in which
    there is none takes a sealed segment. position: which of them, from 0 to 1. ways: to be tried in
    this order until one changes something. node: by its rank."""

    node: int
    stop: str
    kind: str
    position: float
    ways: tuple[str, ...]
    afterwards: str
    dice: int

    @property
    def random(self) -> Random:
        """For where in the file."""
        return Random(self.dice)

    def __str__(self) -> str:
        then = f", then {self.afterwards}" if self.afterwards else ""
        return f"node {self.node} {self.stop}, {self.kind}{then}"


def plan(seed: str, number: int, nodes: int, kinds: tuple[str, ...] = KINDS) -> Plan:
    """Of the round with that number. Every kind has its turn before any has another."""
    turn, place = divmod(number, len(kinds))
    kind = Random(f"{seed}/turn {turn}").sample(kinds, len(kinds))[place]
    dice = Random(f"{seed}/round {number}")
    ways = FOLDER_WAYS if kind in FOLDERS else FILE_WAYS
    return Plan(
        node=dice.randrange(nodes),
        stop=dice.choice(STOPS),
        kind=kind,
        position=dice.random(),
        ways=tuple(dice.sample(sorted(ways), len(ways))),
        afterwards=dice.choice(AFTERWARDS if nodes > 1 else ("", "restart")),
        dice=dice.getrandbits(64),
    )
