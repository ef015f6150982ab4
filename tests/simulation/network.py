"""Connections between nodes: what is sent on one arrives once and in order, as over TCP, or not.

Packets take their time, and now and then much more of it, which holds up all behind them; links
are cut in one direction or both: what is on its way then waits until they are whole again. A link
can also be mute for one kind of traffic (`records`, `positions`, `heartbeat`, `hand_over`, …).

A *lossy* pipe stands for connections that their owners make anew in no time, and that promise order
only: what meets a cut link is lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.world import World

RETRANSMIT_US = 200_000
"""So much later comes what is sent again."""


class Pipe:
    """One direction of one connection. `deliver` is called with what arrives."""

    __slots__ = (
        "_deliver",
        "_held",
        "_is_lossy",
        "_last_at",
        "_network",
        "kind",
        "source",
        "target",
    )

    def __init__(
        self,
        network: Network,
        source: int,
        target: int,
        kind: str,
        deliver: Callable[..., None],
        *,
        is_lossy: bool = False,
    ) -> None:
        self.source = source
        self.target = target
        self.kind = kind
        self._network = network
        self._deliver = deliver
        self._is_lossy = is_lossy
        self._last_at = 0
        self._held: deque[tuple[Any, ...]] = deque()

    def send(self, *item: Any) -> None:
        network = self._network
        world = network.world
        delay = network.delay_us(self.target, self.kind)
        self._last_at = at = max(self._last_at + 1, world.now + delay)
        world.at(at, None, self._arrive, item)

    def _arrive(self, item: tuple[Any, ...]) -> None:
        if self._held or self._network.is_blocked(self):
            if not self._is_lossy:
                self._held.append(item)
                self._network.stalled[self] = None
        else:
            self._deliver(*item)

    def release(self) -> None:
        """The link may be whole again."""
        while self._held and not self._network.is_blocked(self):
            self._deliver(*self._held.popleft())
        if not self._held:
            self._network.stalled.pop(self, None)


class Network:
    """Which links there are, and how good."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.stalled: dict[Pipe, None] = {}
        self.drop = 0.0
        """How often a packet is lost, and sent again."""
        self.slow = 0.0
        self._cut: dict[tuple[int, int], None] = {}
        self._mute: dict[tuple[int, int, str], None] = {}
        self._held_us: dict[tuple[int, str], int] = {}
        self._pipes: dict[tuple[int, int, str], Pipe] = {}

    # What goes wrong.

    def cut(self, source: int, target: int) -> None:
        self._cut[source, target] = None

    def mute(self, source: int, target: int, kind: str) -> None:
        """Traffic of one kind does not arrive on that link."""
        self._mute[source, target, kind] = None

    def unmute(self, source: int, target: int, kind: str) -> None:
        if self._mute.pop((source, target, kind), 0) is None:
            self._release()

    def hold(self, target: int, kind: str, delay_us: int) -> None:
        """Traffic of one kind to that node takes so much longer; 0: no longer."""
        self._held_us[target, kind] = delay_us

    def heal(self) -> None:
        self._cut.clear()
        self._mute.clear()
        self._held_us.clear()
        self._release()

    def _release(self) -> None:
        for pipe in list(self.stalled):
            self.world.later(0, None, pipe.release)

    # Looking.

    def is_blocked(self, pipe: Pipe) -> bool:
        source, target = pipe.source, pipe.target
        return (source, target) in self._cut or (source, target, pipe.kind) in self._mute

    def connects(self, a: int, b: int) -> bool:
        """Whether they can talk, both ways."""
        return a == b or ((a, b) not in self._cut and (b, a) not in self._cut)

    def delay_us(self, target: int, kind: str) -> int:
        random = self.world.random.random
        delay = 100 + int(random() * 900)
        if self._held_us:
            delay += self._held_us.get((target, kind), 0)
        if self.slow and random() < self.slow:
            delay += int(random() ** 3 * 1_500_000)
        if self.drop and random() < self.drop:
            delay += RETRANSMIT_US
        return delay

    # Sending without a connection of one's own.

    def tell(
        self, source: int, target: int, kind: str, deliver: Callable[..., None], *arguments: Any
    ) -> None:
        """Have `deliver(*arguments)` called when it arrives, in order for each kind, if it does."""
        pipe = self._pipes.get((source, target, kind))
        if pipe is None:
            pipe = Pipe(self, source, target, kind, _call, is_lossy=True)
            self._pipes[source, target, kind] = pipe
        pipe.send(deliver, arguments)


def _call(deliver: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    deliver(*arguments)
