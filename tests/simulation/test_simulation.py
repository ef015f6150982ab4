"""A bounded number of seeds, and every mutant that is known to die, with its seed."""

from __future__ import annotations

import pytest

from tests.simulation.killing import dies_of, kill, recorded
from tests.simulation.mutants import MUTANTS
from tests.simulation.runner import Totals, run_seed, run_seeds, story

SEEDS = 300
MARGIN = 60
"""Seeds tried when the recorded one kills no more: any change of the product moves what a seed
does. `python -m tests.simulation mutants` then finds and records new ones."""


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
        "indeterminate nack",
        "fetch refused: fenced_epoch",
        "lease lapsed on delivery",
        "log rebuilt",
        "damaged log",
    )
    assert [what for what in rare if not totals.counts.get(what)] == []


@pytest.mark.parametrize("name", sorted(recorded()))
def test_mutant_dies(name: str) -> None:
    assert name in MUTANTS
    assert dies_of(name, recorded()[name]) or kill(name, MARGIN) is not None
