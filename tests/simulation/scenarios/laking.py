"""What befalls a stream in the lake (laked.py) too seldom by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.metadata.client.raft_metadata_log import PATIENCE_SECONDS
from jetstream_server.metadata.state.commands import ReassignStream
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.scenarios.scenario import Scenario

if TYPE_CHECKING:
    from tests.simulation.laked import LakedCluster


class Outlives(Scenario):
    """One replica is cut off while the others commit, and the lake gets that too. Then these lose
    their disks, and the one that is left ends before the lake does; what they had copied last may
    be proposed by then, and applied later. Or it comes back, and its leader begins after where it
    stands."""

    duration_us = 9_000_000
    is_read = True
    _loses_at = -1

    def strike(self) -> None:
        chosen, stream = self.leader_and_followers(1), self.led_stream()
        if chosen is None or stream is None:
            return
        world, cluster = self.world, self.cluster
        behind = chosen[world.chance(0.65)]  # A leader has got what its successor never gets.
        world.count("one falls behind the lake")
        for node_id in range(len(cluster.machines)):
            cluster.network.cut(behind, node_id)
            cluster.network.cut(node_id, behind)
        away_us = world.between(2_300_000, 3_500_000)
        self.quiet_until = world.now + away_us + 800_000
        if world.chance(0.7):
            self._loses_at = world.now + away_us
            for node_id in stream.replicas:
                if node_id != behind:
                    delay_us = away_us + world.between(0, 60_000)
                    world.later(delay_us, None, self._lose, node_id)
        world.later(away_us + world.between(0, 400_000), None, cluster.network.heal)

    def _lose(self, node_id: int) -> None:
        if not self.cluster.faults.healing:
            self.cluster.machines[node_id].erase()

    def commits_to_lake(self) -> None:
        left_us = self._loses_at - self.world.now
        if 0 <= left_us < 500_000 and self.world.chance(0.7):
            self.world.count("commit to the lake delayed")
            self.cluster.metadata.delay_next(self.world.between(2_000_000, 5_000_000))

    def restart_us(self) -> int | None:
        return self.world.between(20_000, 300_000)


class CommitsTooLate(Outlives):
    """The same where much is copied, so that the last copy is proposed by who leads no more when it
    would take effect, and has records that are lost by then."""

    fills_lake = True
    first_seed = 3

    def commits_to_lake(self) -> None:
        left_us = self._loses_at - self.world.now
        if 0 <= left_us < 400_000:
            self.world.count("commit to the lake after the election")
            self.cluster.metadata.delay_next(left_us + self.world.between(3_200_000, 5_000_000))


class SweepsAlone(Scenario):
    """A leader is cut off from all other nodes, for longer than the grace time of objects, and not
    from the store. It does not hear that another leads, and copies. At times the store notes none
    of these commits, so that only the metadata tells."""

    duration_us = 10_500_000
    is_read = True
    first_seed = 8
    grace_seconds = 4.0
    """Enough, for no command is late."""
    _is_done = False

    def prepare(self) -> None:
        metadata = self.cluster.metadata
        metadata.loss, metadata.delay_us = 0.0, 2_000

    def strike(self) -> None:
        stream = self.led_stream()
        if self._is_done or stream is None or stream.lake.version < 2 or len(stream.isr) < 2:
            return
        world, cluster = self.world, self.cluster
        self._is_done = True
        world.count("sweeps alone")
        for node_id in range(len(cluster.machines)):
            cluster.network.cut(stream.leader, node_id)
            cluster.network.cut(node_id, stream.leader)
        self.quiet_until = world.now + 8_000_000
        if world.chance(0.5):
            world.count("commits are not noted")
            cast("LakedCluster", cluster).store.notes_nothing_until = world.now + 7_700_000
        world.later(7_700_000, None, cluster.network.heal)


class LateCommits(Scenario):
    """A leader hears nothing of a commit to the lake until it has given it up; then it takes
    effect."""

    duration_us = 13_000_000
    is_read = True
    first_seed = 4

    def prepare(self) -> None:
        metadata = self.cluster.metadata
        metadata.loss, metadata.delay_us = 0.0, 2_000

    def strike(self) -> None:
        """By what is proposed."""

    def commits_to_lake(self) -> None:
        if not self.cluster.faults.healing and self.world.chance(0.5):
            self.world.count("commit to the lake given up")
            patience_us = round(PATIENCE_SECONDS * 1e6)
            self.cluster.metadata.delay_next(patience_us + self.world.between(0, 400_000))


class Unheard(Scenario):
    """A node becomes an observer, reaches the leader only after a while, and hears nothing more of
    the metadata until then, and a while longer: nor that the lake has what the leader's log has
    not any more."""

    duration_us = 9_000_000
    first_seed = 9
    fills_lake = True

    def prepare(self) -> None:
        metadata = self.cluster.metadata
        metadata.loss, metadata.delay_us = 0.0, 2_000

    def strike(self) -> None:
        stream, world, cluster = self.led_stream(), self.world, self.cluster
        if stream is None:
            return
        observers: tuple[NodeId, ...] = ()
        running = [m.node_id for m in cluster.machines if m.process is not None]
        others = [node_id for node_id in running if node_id not in stream.copies]
        if others:
            observers = (NodeId(others[world.between(0, len(others) - 1)]),)
        replicas = stream.target_replicas or stream.replicas
        cluster.metadata.apply(
            ReassignStream(stream_id=stream.id, replicas=replicas, observers=observers)
        )
        for node_id in observers:
            world.count("does not hear of the lake")
            cluster.network.cut(node_id, stream.leader)
            cluster.network.cut(stream.leader, node_id)
            world.later(50_000, None, self.deafen, node_id, 1_900_000)
        self.quiet_until = world.now + 2_000_000
        world.later(1_300_000, None, cluster.network.heal)


class Diverges(Scenario):
    """A leader that is cut off goes on appending. Its successor commits other records at these
    offsets, and the lake gets the first of them. Then all but the first one lose their disks."""

    duration_us = 9_000_000
    is_read = True
    first_seed = 11
    _alone = NO_NODE
    _epoch = -1

    def prepare(self) -> None:
        metadata = self.cluster.metadata
        metadata.loss, metadata.delay_us = 0.0, 2_000

    def strike(self) -> None:
        stream, world, cluster = self.led_stream(), self.world, self.cluster
        if stream is None or len(stream.isr) < 2 or self._alone != NO_NODE:
            return
        world.count("one goes on alone")
        self._alone, self._epoch = stream.leader, stream.leader_epoch
        for node_id in range(len(cluster.machines)):
            cluster.network.cut(stream.leader, node_id)
            cluster.network.cut(node_id, stream.leader)
        self.quiet_until = world.now + 5_000_000
        world.later(4_500_000, None, cluster.network.heal)

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        lake, alone = after.lake, self._alone
        if alone == NO_NODE or lake == before.lake or lake.last_epoch <= self._epoch:
            return
        self._alone = NO_NODE
        if lake.end <= max(self.cluster.checker.ends_of(alone), default=0):
            self.world.count("the lake diverges from one log")
            for node_id in after.replicas:
                if node_id != alone:
                    self.world.later(self.world.between(0, 60_000), None, self._lose, node_id)

    def _lose(self, node_id: int) -> None:
        if not self.cluster.faults.healing:
            self.cluster.machines[node_id].erase()
