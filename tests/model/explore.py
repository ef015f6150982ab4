"""Breadth first through every state that the bounds allow; a violation has a shortest story.

A visited state is remembered by its 64-bit hash only: among a million states, two that share one
are improbable (1 in 10 million), and would only leave a state out.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from tests.model.world import Bounds, State, Violation, World


@dataclass(slots=True)
class Explored:
    """How far it went. `violation` is "" when nothing was violated."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0
    complete: bool = False
    violation: str = ""
    story: tuple[str, ...] = ()


def explore(bounds: Bounds, states_max: int, seconds_max: float = float("inf")) -> Explored:
    """Until everything was seen, something is violated, or enough states or time have gone by."""
    world, found = World(bounds), Explored()
    started = time.monotonic()
    first = world.canonical(world.first())
    parents: dict[int, int] = {hash(first): 0}
    level = [first]
    while level and not found.violation:
        following: list[State] = []
        for state in level:
            if len(parents) >= states_max or time.monotonic() - started > seconds_max:
                level, following = [], []
                break
            if not _expand(world, state, parents, following, found):
                break
        else:
            found.depth += 1
            found.complete = not following
        level = following
    found.states, found.seconds = len(parents), time.monotonic() - started
    return found


def _expand(
    world: World, state: State, parents: dict[int, int], following: list[State], found: Explored
) -> bool:
    """Take every step from a state. False: one of them violated an invariant."""
    parent, last = hash(state), "one more step, which its node itself finds wrong"
    try:
        for label, after in world.steps(state):
            found.steps += 1
            after = world.canonical(after)
            number = hash(after)
            if number not in parents:
                parents[number] = parent
                following.append(after)
                _check(world, label, after)
    except Violation as violation:
        found.violation, *labels = violation.args
        found.story = _story(world, parents, parent, *(labels or [last]))
        return False
    return True


def _check(world: World, label: str, state: State) -> None:
    try:
        world.check(state)
    except Violation as violation:
        raise Violation(*violation.args, label) from None


def _story(world: World, parents: dict[int, int], last: int, end: str) -> tuple[str, ...]:
    """The steps to the state of that hash, found again from the first."""
    path = [last]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    state, lines = world.canonical(world.first()), []
    for wanted in reversed(path[:-1]):
        for label, after in world.steps(state):
            after = world.canonical(after)
            if hash(after) == wanted:
                state = after
                lines.append(label)
                break
    return (*lines, end)
