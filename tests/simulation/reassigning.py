"""A cluster whose stream moves to other nodes all the time, between all other faults.

The shipped controller finishes each move. A replica that is taken away loses its files at once. The
same node may get the stream again; what is left there, because its node was down or the deletion
failed, is set aside then, as `UnknownStreams` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import patch

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.changes import Change, StreamChanged
from jetstream_server.metadata.state.commands import (
    FEATURE_LEVEL_MAX,
    ReassignStream,
    RegisterNode,
    SetCluster,
)
from jetstream_server.metadata.state.reassignment_decisions import may_finish
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica_manager import ReplicaManager
from tests.simulation.cluster import BEGIN_US, Cluster, Profile
from tests.simulation.disk import Killed
from tests.simulation.observing import owner_of
from tests.simulation.process import Process, stream_of
from tests.simulation.world import Violation, World

LIMITED_SHARE = 0.3
LAG_SHARE = 0.3
"""Of the clusters, whose copies have to wait: for some milliseconds after each answer."""


class ReassignedCluster(Cluster):
    """See the module."""

    is_still = False

    def draw_profile(self, world: World) -> Profile:
        """More nodes than replicas, mostly."""
        profile = super().draw_profile(world)
        nodes = world.between(3, 5)
        replicas = world.between(1, 3)
        minimum = min(profile.min_insync_replicas, replicas)
        return replace(profile, nodes=nodes, replicas=replicas, min_insync_replicas=minimum)

    def registration_of(self, node_id: int, **fields: Any) -> RegisterNode:
        return super().registration_of(node_id, feature_level_max=FEATURE_LEVEL_MAX, **fields)

    def create_streams(self) -> None:
        self.set_cluster()
        super().create_streams()

    def set_cluster(self) -> None:
        self.metadata.apply(SetCluster(feature_level=FEATURE_LEVEL_MAX))
        if Random(f"copies of {self.world.seed}").random() < LIMITED_SHARE:
            self.metadata.apply(SetCluster(copy_bytes_per_second=64 * 1024))
        dice = Random(f"lag of {self.world.seed}")
        self._lag_dice = dice if dice.random() < LAG_SHARE else None

    def run(self) -> None:
        self._move_later()
        with _observed_moves():
            super().run()

    def _move_later(self) -> None:
        delay_us = self.world.between(100_000, self.world.random.choice((400_000, 2_000_000)))
        self.world.at(max(self.world.now, BEGIN_US) + delay_us, None, self._move)

    def _move(self) -> None:
        if self.faults.healing:
            return
        if self._lag_dice is not None:
            self.world.count("lag limit altered")
            limit = self._lag_dice.choice((0, 2_000_000, 3_000_000, 8_000_000))
            self.metadata.apply(SetCluster(replica_lag_max_us=limit))
        world, stream = self.world, self.metadata.now.stream
        assert stream is not None
        least = stream.config.min_insync_replicas
        count = world.between(least, min(len(self.machines), least + 2))
        chosen = sorted(world.random.sample(range(len(self.machines)), count))
        world.count("stream reassigned")
        self.metadata.apply(
            ReassignStream(stream_id=self.stream_id, replicas=tuple(map(NodeId, chosen)))
        )
        self._move_later()

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        if set(before.replicas) - set(after.replicas):
            behind = set(after.replicas) - set(before.isr)
            if behind:
                raise Violation(f"replicas go while {behind} are not in sync: {before} to {after}")
            self.world.count("stream moved")
            self.world.note(f"moved from {before.replicas} to {after.replicas}")

    def _unrest(self) -> str:
        stream = self.metadata.now.stream
        assert stream is not None
        if stream.target_replicas and (may_finish(stream) or stream.leader != NO_NODE):
            return f"it is on its way to {stream.target_replicas}"
        return super()._unrest()


@contextmanager
def _observed_moves() -> Iterator[None]:
    """The checker is told of logs that come and go while a process runs."""
    changed, apply = ReplicaManager._stream_changed, ReplicaManager.apply

    def set_aside(self: ReplicaManager, change: Change) -> None:
        match change:
            case StreamChanged(before, after):
                machine = owner_of(self).machine
                if machine.node_id in after.copies and machine.node_id not in before.copies:
                    machine.disk.set_aside(f"{self._directory}/{after.id}")
        apply(self, change)

    def removed(process: Process, log: CommitLog) -> None:
        if log in process.logs:  # Otherwise it could not be opened.
            process.logs.remove(log)
        process.cluster.checker_of(stream_of(log.directory)).emptied(process.node_id)

    def seen(self: ReplicaManager, stream: StreamMetadata) -> None:
        before, process = self.get(stream.id), owner_of(self)
        checker = process.cluster.checker_of(stream.id)
        try:
            changed(self, stream)
        except Killed:
            if before is not None and process.node_id not in stream.copies:
                # It died while it deleted the log: nobody counts on what is left of it.
                removed(process, before.log)
            raise
        after = self.get(stream.id)
        if before is not None and after is None:
            removed(process, before.log)
        elif before is None and after is not None:
            process.logs.append(after.log)
            checker.reopened(process.node_id, after.log)

    with (
        patch.object(ReplicaManager, "_stream_changed", seen),
        patch.object(ReplicaManager, "apply", set_aside),
    ):
        yield
