"""A cluster with several streams, whose replicas share nodes, disks, sessions and connections.

Each is read, from one replica after the other. Which stream faults are about changes all the time.
Some streams are compacted, leaderships are
balanced between the nodes, and machines are worse than elsewhere: their monotonic clocks run at
different speeds, some are suspended, and some processes that end nobody starts again before
everything is healed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from jetstream_server.replication.drivers import controller
from jetstream_server.replication.drivers.controller import Controller, ControllerSettings
from tests.simulation.checker import Checker
from tests.simulation.clocks import MonotonicClock
from tests.simulation.cluster import BEGIN_US, Cluster, Profile
from tests.simulation.compacting import (
    GRACE_US,
    SEGMENT_BYTES_MAX,
    CompactedStream,
    Passes,
    eager,
)
from tests.simulation.watched import WatchedStream
from tests.simulation.world import World

NAMES = ("orders", "payments", "refunds", "visits")
RATES = (0.0, 0.0, 1e-4, -1e-4, 5e-3, -5e-3, 2e-2, -2e-2)
"""By how much a monotonic clock is too fast; a real one by a ten-thousandth at most."""


class SeveralCluster(Cluster):
    """See the module."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        world = self.world
        smaller = min(self.profile.segment_bytes, SEGMENT_BYTES_MAX)
        self.log_config = replace(self.log_config, segment_bytes=smaller)
        self.passes = Passes(self, world.random)
        self.damage = world.random.choice((1.0, 1.0, 6.0))
        self.abandons = world.random.choice((0.0, 0.0, 0.2))
        self._suspends_each_us = world.random.choice((0, 0, 2_500_000))
        # The grace time of tombstones is one of wall clocks.
        self.clocks_agree = any(isinstance(each, CompactedStream) for each in self.streams)
        are_equal = world.chance(0.3)
        for machine in self.machines:
            if not are_equal:
                machine.clock = MonotonicClock(world.random.choice(RATES))
            if self.damage > 1.0 and not self.clocks_agree:
                self.faults.set_clock(machine)

    read_share = 0.0  # All streams have a reader, in each seed.

    def draw_profile(self, world: World) -> Profile:
        """Three nodes or more, so that not every stream is everywhere."""
        profile = super().draw_profile(world)
        nodes, replicas = world.between(3, 5), world.between(2, 3)
        minimum = min(profile.min_insync_replicas, replicas)
        return replace(profile, nodes=nodes, replicas=replicas, min_insync_replicas=minimum)

    def make_streams(self) -> list[WatchedStream]:
        world, nodes = self.world, self.profile.nodes
        streams: list[WatchedStream] = []
        for index, name in enumerate(NAMES[: world.between(2, len(NAMES))]):
            if world.chance(0.3):
                grace_us = world.random.choice(GRACE_US)
                streams.append(CompactedStream(self, name, index, nodes, grace_us))
            else:
                streams.append(WatchedStream(self, name, index, Checker(world, nodes)))
        return streams

    def create_streams(self) -> None:
        super().create_streams()
        world, nodes = self.world, self.profile.nodes
        for stream in self.streams[1:]:
            replicas = sorted(world.random.sample(range(nodes), world.between(2, 3)))
            minimum = world.between(1, 2)
            flush = world.random.choice(("none", "interval", "group"))
            stream.create({"min_insync_replicas": minimum, "flush": flush}, replicas)

    def run(self) -> None:
        self.world.at(BEGIN_US + 100_000, None, self._turn)
        if self._suspends_each_us:
            self._suspend_later()
        for stream in self.streams:
            self.world.at(BEGIN_US, None, stream.reader.tick)
        with eager(self.passes), _balancing(self.world):
            super().run()

    def _suspend_later(self) -> None:
        """Again and again."""
        delay = self.world.between(500_000, 2 * self._suspends_each_us)
        self.world.later(delay, None, self._suspend)

    def _suspend(self) -> None:
        if not self.faults.healing:
            self.faults.suspend()
            self._suspend_later()

    def _turn(self) -> None:
        """To another stream, mostly."""
        world = self.world
        if not self.faults.healing:
            self.focus = self.streams[world.between(0, len(self.streams) - 1)]
            self.metadata.show(self.focus.stream_id)
            world.later(world.between(100_000, 1_500_000), None, self._turn)


@contextmanager
def _balancing(world: World) -> Iterator[None]:
    """Leaderships are balanced sooner than in the product: seeds last for seconds."""
    move = Controller._move

    def soon() -> ControllerSettings:
        return ControllerSettings(round_seconds=0.4, settle_seconds=0.7, pause_seconds=0.7)

    async def seen(self: Controller, *arguments: Any, **more: Any) -> bool:
        is_moved = await move(self, *arguments, **more)
        if is_moved and not more:
            world.count("leadership moved for balance")
        return is_moved

    with (
        patch.object(controller, "ControllerSettings", soon),
        patch.object(Controller, "_move", seen),
    ):
        yield
