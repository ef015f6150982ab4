"""Disks that rot, fail and are lost all the time: a few dozen seeds on every change."""

from __future__ import annotations

from tests.simulation.runner import DAMAGED, Totals, run_seeds, story

SEEDS = [*range(6), 7, 12, 13, 15, 51]
"""They meet every kind of damage."""


def test_no_seed_violates_an_invariant_while_disks_are_damaged() -> None:
    totals = Totals()
    failure = run_seeds(SEEDS, totals, kind=DAMAGED)
    assert failure is None, story(failure)
    assert totals.counts["damaged log"] > len(SEEDS) / 3
    rare = ("rots: bit", "rots: end", "rots: file", "rots: folder", "fsync fails", "disk replaced")
    outcomes = ("log rebuilt", "log failed", "restart distrusted", "lossy election")
    assert [what for what in (*rare, *outcomes) if not totals.counts.get(what)] == []
