"""Which seed kills which mutant, as last found (killing_seeds.json), and finding it anew."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.simulation.mutants import KIND_OF, MUTANTS, SCENARIOS_OF, installed
from tests.simulation.runner import Failure, Totals, run_seeds
from tests.simulation.scenarios import Scenario, seeds_about

SEEDS_MAX = 2_000
"""A mutant that outlives so many seeds shows a rule that the simulation does not cover."""
NOT_REACHED = {
    "acknowledges_again_what_was_lost_in_front": "log/test_producers.py",
    "counts_what_who_is_not_eligible_said_before": "replication/test_leader.py",
    "hides_which_tombstones_a_copy_lacks": "replication/test_copies_of_compacted_logs.py",
    "lets_logs_in_that_may_lack_their_beginning": "replication/test_log_ends.py",
    "retries_under_another_id": "replication/test_isr_driver.py",
    "stays_subscribed_although_the_old_leader_went_on": "ingest/test_stand_by.py",
    "tells_log_ends_of_another_epoch": "replication/test_failed_logs.py",
}
"""Mutants that no seed is known to kill, and where in tests/unit they die."""
PATH = Path(__file__).with_name("killing_seeds.json")


def recorded() -> dict[str, int]:
    """Seeds by mutant."""
    seeds: dict[str, int] = json.loads(PATH.read_text())
    return seeds


def record(seeds: dict[str, int]) -> None:
    PATH.write_text(json.dumps(dict(sorted(seeds.items())), indent=2) + "\n")


def likely_seeds(name: str, count: int) -> range:
    """`count` seeds about what kills that mutant most readily."""
    scenario = SCENARIOS_OF[name]
    return range(count) if scenario is Scenario else seeds_about(scenario, count)


def kill(name: str, seeds: Iterable[int]) -> Failure | None:
    """The first of the seeds under which the mutant violates an invariant.

    One that merely breaks something raises elsewhere: that is no death, and the search goes on.
    """
    assert name in MUTANTS
    left = iter(seeds)
    with installed(name):
        kind = KIND_OF[name]
        failure = run_seeds(left, Totals(), kind=kind)
        while failure is not None and not failure.is_violation:
            failure = run_seeds(left, Totals(), kind=kind)
    return failure


def kill_within_bounds(name: str) -> Failure | None:
    """A seed that kills the mutant: half as many as SEEDS_MAX that are likely, then all below."""
    likely = likely_seeds(name, SEEDS_MAX // 2)
    return kill(name, dict.fromkeys([*likely, *range(SEEDS_MAX)]))
