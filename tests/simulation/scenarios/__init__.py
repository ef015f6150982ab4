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
from tests.simulation.scenarios.lost_logs import LateTails, LostBeginnings, LostDisks
from tests.simulation.scenarios.returning import Returns
from tests.simulation.scenarios.scenario import STRIDE, Scenario
from tests.simulation.scenarios.speaking import LapsedSessions, LateRegistrations, LostControl

__all__ = [
    "SCENARIOS",
    "STRIDE",
    "Collapses",
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


def scenario_of(seed: int) -> type[Scenario]:
    """What a seed is about."""
    number = seed % STRIDE
    return SCENARIOS[number] if number < len(SCENARIOS) else Scenario


def seeds_about(scenario: type[Scenario], count: int) -> range:
    """The first `count` seeds about it."""
    first = SCENARIOS.index(scenario)
    return range(first, first + count * STRIDE, STRIDE)
