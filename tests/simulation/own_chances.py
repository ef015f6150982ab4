"""Faults with random numbers of their own: a seed that has none of them stays the story it was.

* Somebody purges the stream: records below an offset go, at once and for everybody.
* An operation of a disk fails that is neither a read, a write nor an fsync of a file.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE
from jetstream_server.metadata.state.commands import PurgeStream
from tests.simulation.disk import OPERATIONS

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

PURGED_SHARE = 0.15
FAILING_SHARE = 0.15
"""Of the seeds; with disks that are bad in every seed, three times as many."""


class OwnChances:
    """See the module."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random = Random(f"own chances of {cluster.world.seed}")

    def begin(self) -> None:
        """Draw whether this seed has any, and start."""
        share = FAILING_SHARE * (3 if self._cluster.damage > 1.0 else 1)
        is_purged = self._random.random() < PURGED_SHARE
        is_failing = self._random.random() < share
        if self._cluster.faults.scenario.is_calm:
            return
        if is_purged:
            self._purge_later()
        if is_failing:
            self._fail_later()

    def _purge_later(self) -> None:
        self._world.later(self._random.randint(100_000, 1_500_000), None, self._purge)

    def _fail_later(self) -> None:
        self._world.later(self._random.randint(100_000, 1_500_000), None, self._fail)

    def _fail(self) -> None:
        if self._cluster.faults.healing:
            return
        machine = self._random.choice(self._cluster.machines)
        if machine.process is not None:
            machine.disk.failing_operation = self._random.choice(OPERATIONS)
            self._world.count(f"next {machine.disk.failing_operation} fails")
        self._fail_later()

    def _purge(self) -> None:
        """As serving/ has the leader do it: what is purged is committed, and flushed there."""
        cluster, world = self._cluster, self._world
        if cluster.faults.healing:
            return
        self._purge_later()
        stream = cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE:
            return
        process = cluster.machines[stream.leader].process
        if process is None or process.paused_until > world.now:
            return
        replica = process.replica_of(cluster.stream_id)
        if replica is None or replica.leadership is None or replica.log.offline_reason:
            return
        log = replica.log
        limit = min(replica.high_watermark, log.flushed_offset)
        offsets = [end for end in cluster.checker.ends_of(stream.leader) if end <= limit]
        if replica.stream.leader_epoch != stream.leader_epoch or not offsets:
            return
        offset = self._random.choice(offsets)
        if offset <= log.log_start_offset:
            return
        command = PurgeStream(
            stream_id=cluster.stream_id, leader_epoch=stream.leader_epoch, offset=offset
        )
        if "error" in cluster.metadata.apply(command):
            return
        cluster.checker.purged(offset)
        world.count("purged")
        world.note(f"fault: purged to {offset} in epoch {stream.leader_epoch}")
