"""Every safety rule the simulation covers, switched off one at a time: each mutant must die.

A mutant is a function that replaces attributes of the shipped classes, for as long as its seeds
run; the product knows nothing of it. `docs/replication.md` names each rule's mutant.
"""

from __future__ import annotations

from tests.simulation.mutants import (
    compacting,
    eligibility,
    fetching,
    handing_over,
    heading,
    in_sync,
    laking,
    moving,
    observers,
    repeating,
    several,
    speaking,
    straight,
    trusting,
    typed,
)
from tests.simulation.mutants.installing import (
    KIND_OF,
    MUTANTS,
    SCENARIOS_OF,
    installed,
)

__all__ = [
    "KIND_OF",
    "MUTANTS",
    "SCENARIOS_OF",
    "compacting",
    "eligibility",
    "fetching",
    "handing_over",
    "heading",
    "in_sync",
    "installed",
    "laking",
    "moving",
    "observers",
    "repeating",
    "several",
    "speaking",
    "straight",
    "trusting",
    "typed",
]
