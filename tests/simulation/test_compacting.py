"""Compaction between all other faults, on every replica: a few dozen seeds on every change."""

from __future__ import annotations

from tests.simulation.runner import COMPACTED, Totals, run_seeds, story

SEEDS = 5


def test_no_seed_violates_an_invariant_while_logs_are_compacted() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=COMPACTED)
    assert failure is None, story(failure)
    assert totals.counts["log compacted"] > 3 * SEEDS
    assert totals.counts["segment compacted"] > 10 * SEEDS
    assert totals.counts["tombstone removed"] > SEEDS
    rare = ("copies", "away for longer than the grace time", "reset", "lossy election")
    assert [what for what in rare if not totals.counts.get(what)] == []
