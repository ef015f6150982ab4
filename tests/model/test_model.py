"""Every state of some small cases, mutants that die in them, and what is taken for one state."""

from __future__ import annotations

from itertools import cycle, permutations

import pytest

from tests.model.explore import explore
from tests.model.naming import IDENTITY, RECORD, Naming
from tests.model.state import Bounds, State
from tests.model.world import World
from tests.simulation.mutants import installed

STATES_MAX = 100_000
CRASH = Bounds(records=1, partitions=0, lags=0, stale=1)
CUT = Bounds(records=1, crashes=0, lags=0)
CUT_AND_CRASH = Bounds(records=1, lags=0)
LOSS = Bounds(records=1, partitions=0, min_insync_replicas=1)
TWO_RECORDS = Bounds(crashes=0, partitions=0, hand_overs=1, lags=0, stale=1)
BEHIND = Bounds(crashes=0, partitions=0, stale=1)
HAND_OVER = Bounds(records=1, crashes=0, partitions=0, hand_overs=1, stale=1)
LATE_MESSAGE = Bounds(
    records=1, crashes=0, partitions=0, hand_overs=2, lags=0, late_messages=1, stale=1
)
EVERYTHING = Bounds(
    records=2, crashes=1, partitions=1, hand_overs=1, lags=1, late_messages=1, stale=1,
    unknown_outcomes=1, min_insync_replicas=1, flush="group",
)  # fmt: skip

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
    "trusts_logs_after_a_power_failure": CUT_AND_CRASH,
}
DEATHS_BY_DEFAULT = (
    "commits_alone", "commits_below_the_minimum", "compares_offsets_only", "resumes_leaderships",
    "shrinks_before_the_commit",
)  # fmt: skip
"""Those that are found among the first few thousand states of the default case."""
LONG = {
    "adds_followers_that_lag", "counts_joiners_late", "serves_older_leaderships",
    "trusts_logs_after_a_power_failure",
}  # fmt: skip
"""Where names matter, too, they take most of the time."""


@pytest.mark.parametrize(
    "bounds",
    [CRASH, CUT, LOSS, HAND_OVER, LATE_MESSAGE],
    ids=["crash", "cut", "loss", "swap", "late"],
)
def test_no_state_of_a_small_case_violates_an_invariant(bounds: Bounds) -> None:
    found = explore(World(bounds), STATES_MAX)
    assert (found.violation, found.story) == ("", ())
    assert found.complete


@pytest.mark.parametrize("name", sorted(DEATHS))
def test_mutant_dies_in_a_small_case_whether_names_matter_or_not(name: str) -> None:
    with installed(name):
        found = explore(World(DEATHS[name]), STATES_MAX)
        assert found.violation
        if name in LONG:
            return
        unreduced = explore(World(DEATHS[name], renames=False), STATES_MAX)
    assert unreduced.violation
    # Both are shortest stories: to the same violation, as far as names do not matter.
    assert len(found.story) == len(unreduced.story)
    assert found.states < unreduced.states or len(found.story) == 1


@pytest.mark.parametrize("name", DEATHS_BY_DEFAULT)
def test_mutant_dies_in_the_default_case(name: str) -> None:
    with installed(name):
        assert explore(World(Bounds()), STATES_MAX).violation


@pytest.mark.parametrize("bounds", [CRASH, CUT, TWO_RECORDS], ids=["crash", "cut", "two records"])
def test_what_is_reached_is_the_same_whether_names_matter_or_not(bounds: Bounds) -> None:
    world = World(bounds)
    states: set[State] = set()
    assert explore(world, STATES_MAX, visit=states.add).complete
    world.renames = False
    unreduced: set[State] = set()
    assert explore(world, STATES_MAX, visit=unreduced.add).complete
    assert len(unreduced) > 2 * len(states)
    assert {world.renamed(state) for state in unreduced} == states


@pytest.mark.parametrize("bounds", [EVERYTHING, LATE_MESSAGE], ids=["everything", "late"])
def test_under_other_names_the_same_can_happen(bounds: Bounds) -> None:
    world = World(bounds)
    states: list[State] = []
    explore(world, 6_000, visit=states.append)
    orders = cycle(permutations(IDENTITY))
    for state in states[::60]:
        # Names with others between them, in the same order; records are counted by their names.
        names = {
            name: number if name[0] == RECORD else 2 * number + 1
            for name, number in world.renamed.names(state).items()
        }
        for order in (next(orders), next(orders)):
            other = world.renamed.under(state, Naming(order, names))
            assert world.canonical(other) == state
            assert next_states(world, other) == next_states(world, state)


def next_states(world: World, state: State) -> set[State]:
    return {world.canonical(after) for _, after in world.steps(state)}
