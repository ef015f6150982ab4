"""A stream that moves between all other faults: a few dozen seeds on every change."""

from __future__ import annotations

from tests.simulation.runner import REASSIGNED, Totals, run_seeds, story

SEEDS = 6


def test_no_seed_violates_an_invariant_while_the_stream_moves() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=REASSIGNED)
    assert failure is None, story(failure)
    assert totals.counts["stream reassigned"] > 3 * SEEDS
    assert totals.counts["stream moved"] > SEEDS // 2
    assert totals.counts["copy waited"] > SEEDS
