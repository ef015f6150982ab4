"""Several streams in one cluster, on worse machines: a few seeds on every change."""

from __future__ import annotations

from tests.simulation.clocks import MonotonicClock
from tests.simulation.runner import SEVERAL, Totals, run_seeds, story

SEEDS = 3


def test_no_seed_violates_an_invariant_with_several_streams() -> None:
    totals = Totals()
    failure = run_seeds(range(SEEDS), totals, kind=SEVERAL)
    assert failure is None, story(failure)
    assert totals.counts["election"] > 3 * SEEDS
    assert totals.counts["log compacted"] > 3 * SEEDS
    assert totals.counts["read: from another replica"] > 3 * SEEDS
    assert totals.counts["leadership moved for balance"]


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


def test_what_counts_from_the_boot_stands_still_too_when_a_hypervisor_stops_the_machine() -> None:
    clock = MonotonicClock()
    clock.suspend(1_000_000, 3_000_000)
    clock.suspend(4_000_000, 5_000_000, by_hypervisor=True)
    assert clock.read(6_000_000) == 3_000_000
    assert clock.since_boot(6_000_000) == 5_000_000
