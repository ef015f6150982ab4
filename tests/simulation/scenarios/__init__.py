"""Seeds about one thing each: sequences of events that chance alone strings together too seldom.

One seed in STRIDE is about each scenario: it strikes again and again, between milder faults of all
kinds. The rest are about nothing in particular. A scenario uses only what may happen anyway
(docs/simulation.md): it makes it happen in the order that a missing rule would not survive.
"""

from __future__ import annotations

from tests.simulation.scenarios.disks import Collapses, FailingDisks, LateFlushes, SlowLeaders
from tests.simulation.scenarios.following import Overwritten, Swaps, UnawareLeaders
from tests.simulation.scenarios.handing_over import LeftStandingBy, PlannedHandOvers
from tests.simulation.scenarios.joining import FailingJoiners, LateJoiners, UnknownOutcomes
from tests.simulation.scenarios.lost_logs import EmptyEpochs, LateTails, LostBeginnings, LostDisks
from tests.simulation.scenarios.returning import Returns
from tests.simulation.scenarios.scenario import STRIDE, Scenario
from tests.simulation.scenarios.speaking import LapsedSessions, LateRegistrations, LostControl

__all__ = [
    "SCENARIOS",
    "STRIDE",
    "Collapses",
    "EmptyEpochs",
    "FailingDisks",
    "FailingJoiners",
    "LapsedSessions",
    "LateFlushes",
    "LateJoiners",
    "LateRegistrations",
    "LateTails",
    "LeftStandingBy",
    "LostBeginnings",
    "LostControl",
    "LostDisks",
    "Overwritten",
    "PlannedHandOvers",
    "Returns",
    "Scenario",
    "SlowLeaders",
    "Swaps",
    "UnawareLeaders",
    "UnknownOutcomes",
    "scenario_of",
    "seeds_about",
]

SCENARIOS: tuple[type[Scenario], ...] = (
    Swaps,
    Overwritten,
    LateJoiners,
    LateFlushes,
    SlowLeaders,
    LapsedSessions,
    LateRegistrations,
    Collapses,
    FailingDisks,
    LostControl,
    PlannedHandOvers,
    UnknownOutcomes,
    LateTails,
    FailingJoiners,
    LostBeginnings,
    Returns,
    LeftStandingBy,
    LostDisks,
    UnawareLeaders,
)
SHARING = EmptyEpochs
"""Takes turns with the last of them."""


def scenario_of(seed: int) -> type[Scenario]:
    """What a seed is about."""
    turn, number = divmod(seed, STRIDE)
    if number == len(SCENARIOS) - 1 and turn % 2 == 0:
        return SHARING
    return SCENARIOS[number] if number < len(SCENARIOS) else Scenario


def seeds_about(scenario: type[Scenario], count: int) -> range:
    """The first `count` seeds about it."""
    if scenario in (SHARING, SCENARIOS[-1]):
        first = len(SCENARIOS) - 1 + (0 if scenario is SHARING else STRIDE)
        return range(first, first + count * 2 * STRIDE, 2 * STRIDE)
    if scenario not in SCENARIOS:  # One kind of cluster has it in these, and perhaps in more.
        first = scenario.first_seed
        return range(first, first + count * 12, 12)
    first = SCENARIOS.index(scenario)
    return range(first, first + count * STRIDE, STRIDE)
