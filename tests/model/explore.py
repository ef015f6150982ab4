"""Breadth first through every state that the bounds allow; a violation has a shortest story.

A visited state is remembered by 128 bits of its hash: even among a billion states, two that share
them are as good as impossible (1 in 10^20), and would only leave a state out.
"""

from __future__ import annotations

import marshal
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from tests.model.state import State, Violation
from tests.model.world import World


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


def explore(
    world: World,
    states_max: int,
    seconds_max: float = float("inf"),
    visit: Callable[[State], None] = lambda state: None,
) -> Explored:
    """Until everything was seen, something is violated, or enough states or time have gone by.

    visit: called with every state, once.
    """
    found = Explored()
    started = time.monotonic()
    first = world.canonical(world.first())
    parents: dict[bytes, bytes] = {_fingerprint(first): b""}
    visit(first)
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
            for state in following:
                visit(state)
        level = following
    found.states, found.seconds = len(parents), time.monotonic() - started
    return found


def _fingerprint(state: State) -> bytes:
    committed = tuple(map(tuple, state.committed))
    return blake2b(marshal.dumps((*state[:-1], committed), 2), digest_size=16).digest()


def _expand(
    world: World,
    state: State,
    parents: dict[bytes, bytes],
    following: list[State],
    found: Explored,
) -> bool:
    """Take every step from a state. False: one of them violated an invariant."""
    parent = _fingerprint(state)
    try:
        for _, after in world.steps(state):
            found.steps += 1
            if after == state:
                continue
            after = world.canonical(after)
            fingerprint = _fingerprint(after)
            if fingerprint not in parents:
                parents[fingerprint] = parent
                following.append(after)
                world.check(after)
    except Violation as violation:
        found.violation = str(violation)
        found.story = _story(world, parents, parent)
        return False
    return True


def _story(world: World, parents: dict[bytes, bytes], last: bytes) -> tuple[str, ...]:
    """The steps to the state of that fingerprint, found again from the first, and the one that
    violates. Every node keeps the name it began with."""
    path = [last]
    while parents[path[-1]]:
        path.append(parents[path[-1]])
    state, lines = world.first(), []
    for wanted in reversed(path[:-1]):
        for label, after in world.steps(state):
            if _fingerprint(world.canonical(after)) == wanted:
                state = after
                lines.append(label)
                break
    unseen = end = "one more step, which its node itself finds wrong"
    try:
        for label, after in world.steps(state):
            end = label
            world.check(after)
            end = unseen
    except Violation:
        pass  # It is what was found.
    return (*lines, end)
