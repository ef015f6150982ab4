"""Time, chance and what happened: the parts of a simulation that everything else stands on.

One seed gives one `Random`, and everything is drawn from it in the order of the events; nothing
reads a clock, and no set is ever walked. So a seed replays a whole cluster, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from random import Random
from typing import Any, Protocol

from tests.simulation.disk import Killed

Action = Callable[..., None]


class Violation(SystemExit):
    """An invariant does not hold. No Exception: no driver catches it."""


class Runner(Protocol):
    """Who an event belongs to: it runs only while its process does."""

    @property
    def alive(self) -> bool: ...

    @property
    def paused_until(self) -> int: ...

    def die(self, reason: str) -> None: ...


class World:
    """The queue of events, in the order of their times (µs), and of their making."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now = 0
        self.events = 0
        self.counts: dict[str, int] = {}
        self.trace: list[str] | None = [] if tracing else None
        self.after_event: Action = _nothing
        self.is_changed = False
        """Something that `after_event` looks at, in the event that is happening."""
        self._broken: Exception | None = None
        self._sequence = 0
        self._queue: list[tuple[int, int, Runner | None, Action, tuple[Any, ...]]] = []
        self._held: dict[Runner, set[int]] = {}
        """Which events wait in the queue until their paused owner wakes, by their numbers."""

    def at(self, time: int, runner: Runner | None, action: Action, *arguments: Any) -> None:
        """Do it at that time, if the process lives then; a paused one does it when it wakes."""
        self._sequence += 1
        heappush(self._queue, (time, self._sequence, runner, action, arguments))

    def later(self, delay: int, runner: Runner | None, action: Action, *arguments: Any) -> None:
        self._sequence += 1
        heappush(self._queue, (self.now + delay, self._sequence, runner, action, arguments))

    def run_until(self, end: int) -> None:
        """Let everything up to that time happen. Raises Violation."""
        queue = self._queue
        while queue and queue[0][0] <= end:
            time, sequence, runner, action, arguments = heappop(queue)
            if runner is not None:
                if not runner.alive:
                    continue
                if runner.paused_until > time:
                    self._held.setdefault(runner, set()).add(sequence)
                    heappush(queue, (runner.paused_until, sequence, runner, action, arguments))
                    continue
            self.now = time
            self.events += 1
            try:
                action(*arguments)
            except Killed:
                assert runner is not None
                runner.die("in the middle of a disk operation")
            if self.is_changed:
                self.is_changed = False
                self.after_event()
            if self._broken is not None:
                raise self._broken
        self.now = end

    def wakes(self, runner: Runner) -> None:
        """A paused process goes on before its time, its `paused_until` is over: what came meanwhile
        comes at once, in its order, and so before what comes from now on."""
        held = self._held.pop(runner, set())
        self._queue[:] = [
            (self.now, *each[1:]) if each[1] in held else each for each in self._queue
        ]
        heapify(self._queue)

    def broken(self, what: str, error: Exception | None) -> None:
        """A driver raised where it must not, and the run ends with this event."""
        if self._broken is None:
            self._broken = RuntimeError(what)
            self._broken.__cause__ = error

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def note(self, text: str) -> None:
        """A line of the trace. Callers format only `if world.trace is not None`."""
        if self.trace is not None:
            self.trace.append(f"{self.now / 1_000_000:10.6f}  {text}")

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def between(self, low: int, high: int) -> int:
        """A time or number in [low, high]."""
        return low + int(self.random.random() * (high - low + 1))


def _nothing() -> None:
    pass
