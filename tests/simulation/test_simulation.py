"""A bounded number of seeds, and the death of every mutant."""

from __future__ import annotations

import pytest

from tests.simulation.killing import kill, likely_seeds, recorded
from tests.simulation.mutants import MUTANTS
from tests.simulation.runner import Totals, run_seed, run_seeds, story

SEEDS = 300
MARGIN = 200
"""Seeds tried when the recorded one kills no more: any change of the product moves what a seed
does. `python -m tests.simulation mutants` records new ones, which makes this file quicker."""


def test_no_seed_violates_an_invariant() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals)
    assert failure is None, story(failure)
    assert totals.seeds == SEEDS


def test_a_seed_replays_exactly() -> None:
    first, _ = run_seed(7, tracing=True)
    again, _ = run_seed(7, tracing=True)
    assert first.world.trace == again.world.trace


def test_the_rare_paths_are_taken() -> None:
    totals = Totals()
    run_seeds(range(SEEDS), totals)
    rare = (
        "truncation",
        "election from the ELR",
        "unclean wait",
        "restart distrusted",
        "nack 20014",
        "log failed",
        "kept for the leader",
        "metadata snapshot",
        "fetch refused: fenced_epoch",
        "lease lapsed on delivery",
        "log rebuilt",
        "damaged log",
    )
    assert [what for what in rare if not totals.counts.get(what)] == []


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_mutant_dies(name: str) -> None:
    seeds = [*likely_seeds(name, MARGIN)]
    if name in recorded():
        seeds.insert(0, recorded()[name])
    assert kill(name, seeds) is not None
