"""Every safety rule the simulation covers, switched off one at a time: each mutant must die.

A mutant is a function that replaces attributes of the shipped classes, for as long as its seeds
run; the product knows nothing of it. `docs/replication.md` names each rule's mutant.
"""

from __future__ import annotations

from tests.simulation.mutants import (
    eligibility,
    fetching,
    in_sync,
    repeating,
    speaking,
    trusting,
)
from tests.simulation.mutants.installing import MUTANTS, SCENARIOS_OF, installed

__all__ = [
    "MUTANTS",
    "SCENARIOS_OF",
    "eligibility",
    "fetching",
    "in_sync",
    "installed",
    "repeating",
    "speaking",
    "trusting",
]
