"""Which seed kills which mutant, as last found (killing_seeds.json), and finding it anew."""

from __future__ import annotations

import json
from pathlib import Path

from tests.simulation.mutants import MUTANTS, installed
from tests.simulation.runner import Failure, Totals, run_seed, run_seeds

SEEDS_MAX = 2_000
"""A mutant that outlives so many seeds shows a rule that the simulation does not cover."""
PATH = Path(__file__).with_name("killing_seeds.json")


def recorded() -> dict[str, int]:
    """Seeds by mutant, for the mutants that are known to die."""
    seeds: dict[str, int] = json.loads(PATH.read_text())
    return seeds


def record(seeds: dict[str, int]) -> None:
    PATH.write_text(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")


def kill(name: str, seeds_max: int = SEEDS_MAX, start: int = 0) -> Failure | None:
    """The first seed that kills the mutant."""
    assert name in MUTANTS
    with installed(name):
        return run_seeds(range(start, start + seeds_max), Totals())


def dies_of(name: str, seed: int) -> bool:
    """Whether that seed kills the mutant."""
    with installed(name):
        return bool(run_seed(seed)[1])
