"""Several streams in one cluster, on worse machines: a few seeds on every change."""

from __future__ import annotations

from tests.simulation.clocks import MonotonicClock
from tests.simulation.runner import SEVERAL, Totals, run_seeds, story

SEEDS = 12


def test_no_seed_violates_an_invariant_with_several_streams() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=SEVERAL)
    assert failure is None, story(failure)
    assert totals.counts["election"] > 3 * SEEDS
    rare = ("log compacted", "suspended", "not started again", "leadership moved for balance")
    assert [what for what in rare if not totals.counts.get(what)] == []


def test_a_monotonic_clock_stands_still_while_its_machine_is_suspended() -> None:
    clock = MonotonicClock(0.01)
    assert not clock.is_right
    assert clock.read(1_000_000) == clock.since_boot(1_000_000) == 1_010_000
    clock.suspend(1_000_000, 3_000_000)
    clock.suspend(2_000_000, 2_500_000)
    clock.suspend(2_000_000, 4_000_000)
    assert clock.read(4_000_000) == 1_010_000
    assert clock.since_boot(4_000_000) == 4_040_000
    assert round(clock.when(1_020_100)) == 4_010_000
    assert clock.read(4_010_000) == 1_020_100
