"""What befalls a stream in the lake (laked.py) too seldom by chance."""

from __future__ import annotations

from jetstream_server.metadata.client.proposal import PATIENCE_SECONDS
from tests.simulation.scenarios.scenario import Scenario


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


class SweepsAlone(Scenario):
    """A leader is cut off from all other nodes, for longer than the grace time of objects, and not
    from the store. It does not hear that another leads, and copies."""

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
