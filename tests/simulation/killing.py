"""Which seed kills which mutant, as last found (killing_seeds.json), and finding it anew."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.mutants import KIND_OF, MUTANTS, SCENARIOS_OF, installed
from tests.simulation.runner import Failure, Totals, run_seeds
from tests.simulation.scenarios import Scenario, seeds_about

SEEDS_MAX = 2_000
"""A mutant that outlives so many seeds shows a rule that the simulation does not cover."""
PATH = Path(__file__).with_name("killing_seeds.json")


def recorded() -> dict[str, int]:
    """Seeds by mutant."""
    seeds: dict[str, int] = json.loads(PATH.read_text())
    return seeds


def record(seeds: dict[str, int]) -> None:
    PATH.write_text(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")


def likely_seeds(name: str, count: int) -> range:
    """`count` seeds about what kills that mutant most readily."""
    scenario = SCENARIOS_OF[name]
    return range(count) if scenario is Scenario else seeds_about(scenario, count)


def kill(name: str, seeds: Iterable[int]) -> Failure | None:
    """The first of the seeds under which the mutant violates an invariant.

    One that merely breaks something raises elsewhere: that is no death, and the search goes on.
    """
    assert name in MUTANTS
    left = iter(seeds)
    with installed(name):
        kind = KIND_OF[name]
        failure = run_seeds(left, Totals(), kind=kind)
        while failure is not None and not failure.is_violation:
            failure = run_seeds(left, Totals(), kind=kind)
    return failure


def kill_within_bounds(name: str) -> Failure | None:
    """A seed that kills the mutant: half as many as SEEDS_MAX that are likely, then all below."""
    likely = likely_seeds(name, SEEDS_MAX // 2)
    return kill(name, dict.fromkeys([*likely, *range(SEEDS_MAX)]))
