"""A stream that refuses what does not fit its schema: a few seeds on every change."""

from __future__ import annotations

from tests.simulation.runner import TYPED, Totals, run_seeds, story

SEEDS = 3


def test_no_seed_violates_an_invariant_with_a_schema() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=TYPED)
    assert failure is None, story(failure)
    counts = totals.counts
    assert counts["schema set"] > 3 * SEEDS
    assert counts["nack 20024"] > 10 * SEEDS
    assert counts["election"] > SEEDS
