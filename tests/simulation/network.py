"""Messages between nodes: delayed, dropped, doubled, reordered; links cut in one direction or both.

A link can also be mute for one kind of message only (its method): fetches, answers, heartbeats and
grants do not share their connections.

A real connection keeps order and tells of its end; this promises nothing, so what works here
needs no such promise.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tests.simulation.world import Action, World

Deliver = Action

REMEMBERED = 24
"""Messages that `repeat` may deliver once more: those of about a second."""


class Network:
    """`deliver(target, method, arguments)` is called for whatever arrives."""

    def __init__(self, world: World, deliver: Deliver) -> None:
        self._world = world
        self._deliver = deliver
        self._cut: dict[tuple[int, int], None] = {}
        self._mute: dict[tuple[int, int, str], None] = {}
        self._held_us: dict[tuple[int, str], int] = {}
        self._sent: deque[tuple[int, int, str, tuple[Any, ...]]] = deque(maxlen=REMEMBERED)
        self.remembers = False
        self.drop = 0.0
        self.double = 0.0
        self.double_late_us = 2_000_000
        self.slow = 0.0

    def cut(self, source: int, target: int) -> None:
        self._cut[source, target] = None

    def mute(self, source: int, target: int, method: str) -> None:
        """Messages of one kind are lost on that link."""
        self._mute[source, target, method] = None

    def unmute(self, source: int, target: int, method: str) -> None:
        self._mute.pop((source, target, method), None)

    def hold(self, target: int, method: str, delay_us: int) -> None:
        """Messages of one kind to that node take so much longer; 0: no longer."""
        self._held_us[target, method] = delay_us

    def heal(self) -> None:
        self._cut.clear()
        self._mute.clear()
        self._held_us.clear()

    def repeat(self, target: int, method: str, spread_us: int) -> None:
        """What was sent to that node lately arrives once more, in any order."""
        for source, sent_to, sent_as, arguments in list(self._sent):
            if (sent_to, sent_as) == (target, method):
                delay = self._world.between(0, spread_us)
                self._world.later(delay, None, self._arrive, source, target, method, arguments)

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
        if (source, target, method) in self._mute:
            return
        if self.remembers:
            self._sent.append((source, target, method, arguments))
        delay = 100 + int(random() * 900)
        if self._held_us:
            delay += self._held_us.get((target, method), 0)
        if random() < self.slow:
            delay += int(random() ** 3 * 1_500_000)
        world.later(delay, None, self._arrive, source, target, method, arguments)
        if random() < self.double:
            delay += int(random() ** 2 * self.double_late_us)
            world.later(delay, None, self._arrive, source, target, method, arguments)

    def _arrive(self, source: int, target: int, method: str, arguments: tuple[Any, ...]) -> None:
        if (source, target) not in self._cut:
            self._deliver(target, method, arguments)
