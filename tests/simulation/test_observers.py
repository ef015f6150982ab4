"""A stream with observers, between all other faults: a few dozen seeds on every change."""

from __future__ import annotations

from tests.simulation.runner import OBSERVED, Totals, run_seeds, story

SEEDS = 4


def test_no_seed_violates_an_invariant_with_observers() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=OBSERVED)
    assert failure is None, story(failure)
    counts = totals.counts
    assert counts["stream reassigned"] > 3 * SEEDS
    assert counts["observer promoted"] > SEEDS // 2
    assert counts["replica made an observer"] > SEEDS // 4
    assert counts["read: from another replica"] > SEEDS
