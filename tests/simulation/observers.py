"""A cluster whose stream has observers, which come and go, are promoted, and take the place of
replicas, between all other faults. Often it is read, from all copies in turn.

**safety** An observer never leads, and is never in sync or eligible.
"""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import ReassignStream
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.cluster import BEGIN_US, Profile
from tests.simulation.compacting import (
    GRACE_US,
    SEGMENT_BYTES_MAX,
    CompactedStream,
    Passes,
    eager,
)
from tests.simulation.reassigning import ReassignedCluster
from tests.simulation.scenarios import LostBeginnings, scenario_of
from tests.simulation.watched import WatchedStream
from tests.simulation.world import Violation, World


class ObservedCluster(ReassignedCluster):
    """See the module."""

    read_share = 0.0  # It draws for itself.

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        self._is_read = self.profile.replicas > 1
        self.passes = Passes(self, self.world.random)
        if isinstance(self.focus, CompactedStream):
            smaller = min(self.profile.segment_bytes, SEGMENT_BYTES_MAX)
            self.log_config = replace(self.log_config, segment_bytes=smaller)

    def make_streams(self) -> list[WatchedStream]:
        if self.world.chance(0.7):
            return super().make_streams()
        self.grace_us = self.world.random.choice(GRACE_US)
        return [CompactedStream(self, "orders", 0, self.profile.nodes, self.grace_us)]

    def draw_profile(self, world: World) -> Profile:
        """At least one node that holds no replica."""
        profile = super().draw_profile(world)
        replicas = min(profile.replicas, profile.nodes - 1)
        if scenario_of(world.seed) is LostBeginnings:
            replicas = max(replicas, 2)  # It is about what other replicas still have.
        minimum = min(profile.min_insync_replicas, replicas)
        return replace(profile, replicas=replicas, min_insync_replicas=minimum)

    def create_streams(self) -> None:
        self.set_cluster()
        profile, world = self.profile, self.world
        nodes = world.random.sample(range(profile.nodes), profile.nodes)
        replicas, others = nodes[: profile.replicas], nodes[profile.replicas :]
        config = {"min_insync_replicas": profile.min_insync_replicas, "flush": profile.flush}
        observers = others[: world.between(1, len(others))]
        self.focus.create(config, sorted(replicas), sorted(observers))

    def run(self) -> None:
        if self._is_read:
            self.world.at(BEGIN_US, None, self.focus.reader.tick)
        with eager(self.passes):
            super().run()

    def _move(self) -> None:
        if self.faults.healing:
            return
        world, stream = self.world, self.metadata.now.stream
        assert stream is not None
        nodes = world.random.sample(range(len(self.machines)), len(self.machines))
        if world.chance(0.4):  # Only the observers change, or one of them is promoted.
            replicas = [*(stream.target_replicas or stream.replicas)]
            if stream.observers and world.chance(0.5):
                replicas.append(stream.observers[0])
        else:
            least = max(stream.config.min_insync_replicas, 2 if self._is_read else 1)
            replicas = [NodeId(node) for node in nodes[: world.between(least, least + 1)]]
        others = [NodeId(node) for node in nodes if node not in replicas]
        observers = None if world.chance(0.2) else tuple(others[: world.between(0, len(others))])
        world.count("stream reassigned")
        self.metadata.apply(
            ReassignStream(
                stream_id=self.stream_id,
                replicas=tuple(dict.fromkeys(replicas)),
                observers=observers,
            )
        )
        self._move_later()

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        super().stream_changed(before, after)
        counted = {after.leader, *after.isr, *after.elr, *after.last_known, *after.unflushed}
        only_observers = set(after.copies) - set(after.replicas)
        if counted & only_observers:
            raise Violation(f"of the observers {only_observers} some count: {after}")
        observed = set(before.copies) - set(before.replicas)
        if observed & set(after.replicas):
            self.world.count("observer promoted")
        if set(before.replicas) & only_observers:
            self.world.count("replica made an observer")
        if set(before.copies) - set(after.copies):
            self.world.note(f"moved from {before.copies} to {after.copies}")
