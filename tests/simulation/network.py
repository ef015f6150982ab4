"""Messages between nodes: delayed, dropped, doubled, reordered; links cut in one direction or both.

A real connection keeps order and tells of its end; this promises nothing, so what works here
needs no such promise.
"""

from __future__ import annotations

from typing import Any

from tests.simulation.world import Action, World

Deliver = Action


class Network:
    """`deliver(target, method, arguments)` is called for whatever arrives."""

    def __init__(self, world: World, deliver: Deliver) -> None:
        self._world = world
        self._deliver = deliver
        self._cut: dict[tuple[int, int], None] = {}
        self.drop = 0.0
        self.double = 0.0
        self.double_late_us = 2_000_000
        self.slow = 0.0

    def cut(self, source: int, target: int) -> None:
        self._cut[source, target] = None

    def heal(self) -> None:
        self._cut.clear()

    def is_open(self, source: int, target: int) -> bool:
        return (source, target) not in self._cut

    def connects(self, a: int, b: int) -> bool:
        """Whether they can talk, both ways."""
        return a == b or ((a, b) not in self._cut and (b, a) not in self._cut)

    def send(self, source: int, target: int, method: str, *arguments: Any) -> None:
        world = self._world
        random = world.random.random
        if (source, target) in self._cut or random() < self.drop:
            return
        delay = 100 + int(random() * 900)
        if random() < self.slow:
            delay += int(random() ** 3 * 1_500_000)
        world.later(delay, None, self._arrive, source, target, method, arguments)
        if random() < self.double:
            delay += int(random() ** 2 * self.double_late_us)
            world.later(delay, None, self._arrive, source, target, method, arguments)

    def _arrive(self, source: int, target: int, method: str, arguments: tuple[Any, ...]) -> None:
        if (source, target) not in self._cut:
            self._deliver(target, method, arguments)
