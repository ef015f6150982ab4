"""How a mutant is named, switched on and switched off again."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from tests.simulation.runner import PLAIN
from tests.simulation.scenarios import Scenario

Install = Callable[["Patches"], None]
MUTANTS: dict[str, Install] = {}
SCENARIOS_OF: dict[str, type[Scenario]] = {}
"""What the seeds are about that kill a mutant most readily."""
KIND_OF: dict[str, str] = {}
"""What kind of seeds a mutant is run with (`runner.KINDS`)."""


class Patches:
    """Replaces attributes until the mutant's seeds have run."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def set(self, owner: Any, name: str, value: Any) -> None:
        # Also what a module only finds among the builtins, but nothing that is not there any more.
        assert hasattr(owner, name) or hasattr(builtins, name), f"{owner} has no {name}"
        self._stack.enter_context(patch.object(owner, name, value, create=True))


def mutant(
    scenario: type[Scenario] = Scenario, *, kind: str = PLAIN
) -> Callable[[Install], Install]:
    """Register a mutant; its docstring says what the cluster does wrong."""

    def register(install: Install) -> Install:
        MUTANTS[install.__name__] = install
        KIND_OF[install.__name__] = kind
        SCENARIOS_OF[install.__name__] = scenario
        return install

    return register


@contextmanager
def installed(name: str) -> Iterator[None]:
    with ExitStack() as stack:
        MUTANTS[name](Patches(stack))
        yield
