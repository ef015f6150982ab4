"""Every state of some very small cases, and mutants that die in them."""

from __future__ import annotations

import pytest

from tests.model.explore import explore
from tests.model.world import Bounds
from tests.simulation.mutants import installed

STATES_MAX = 100_000
CRASH = Bounds(records=1, partitions=0, late_messages=0, lags=0)
TWO_RECORDS = Bounds(crashes=0, partitions=0, hand_overs=1, late_messages=0, lags=0)
BEHIND = Bounds(crashes=0, partitions=0, late_messages=0)
HAND_OVER = Bounds(records=1, crashes=0, partitions=0, hand_overs=1, late_messages=0)
LATE_MESSAGE = Bounds(records=1, crashes=0, partitions=0, hand_overs=2, lags=0)

DEATHS = {
    "commits_alone": HAND_OVER,
    "commits_below_the_minimum": HAND_OVER,
    "truncates_to_the_high_watermark": HAND_OVER,
    "believes_the_leaders_high_watermark": BEHIND,
    "shrinks_before_the_commit": HAND_OVER,
    "counts_joiners_late": HAND_OVER,
    "adds_followers_that_lag": HAND_OVER,
    "compares_offsets_only": TWO_RECORDS,
    "serves_older_leaderships": LATE_MESSAGE,
    "resumes_leaderships": CRASH,
}


@pytest.mark.parametrize("bounds", [CRASH, HAND_OVER, LATE_MESSAGE], ids=["crash", "swap", "late"])
def test_no_state_of_a_small_case_violates_an_invariant(bounds: Bounds) -> None:
    found = explore(bounds, STATES_MAX)
    assert (found.violation, found.story) == ("", ())
    assert found.complete


@pytest.mark.parametrize("name", sorted(DEATHS))
def test_mutant_dies_in_a_small_case(name: str) -> None:
    with installed(name):
        found = explore(DEATHS[name], STATES_MAX)
    assert found.violation
    assert found.story
