"""A machine: a disk, a boot id, and at most one server process at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_server.log.checkpoint import write_state
from jetstream_server.replication.trust import RunRecord
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process

SESSION_PATH = "/session"


class Machine:
    """What outlives a process."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = SimulatedDisk()
        self.boot = 0
        self.process: Process | None = None
        self.starts = 0
        self.hears_nats = True
        # As the installation left it: empty logs, and a session that the metadata knows.
        installed = RunRecord(sessions=(f"installer.{node_id}",), boot_id="0", clean=True)
        write_state(self.disk, SESSION_PATH, "session", str(node_id), installed.to_dict())

    def start(self) -> None:
        if self.process is None:
            from tests.simulation.process import Process

            self.starts += 1
            self.process = Process(self)
            self.cluster.members[self.node_id] = self.process
            self.cluster.world.later(0, self.process, self.process.start)

    def crash(self, reason: str) -> None:
        """The process dies; what it wrote stays readable."""
        if self.process is not None:
            self.process.die(reason)

    def lose_power(self) -> None:
        """The process dies with everything that was not synced."""
        self.crash("power failure")
        self.boot += 1
        self.disk.lose_power(self.cluster.world.random)
        self.cluster.checker.suspect(self.node_id)

    def erase(self) -> None:
        """The disk is replaced by an empty one."""
        self.crash("disk replaced")
        self.boot += 1
        self.disk.erase()
        self.cluster.checker.suspect(self.node_id)

    def rot(self) -> str:
        """A file of the log rots or is lost while no process runs; returns what."""
        assert self.process is None
        directory = f"/streams/{self.cluster.stream_id}"
        what = self.disk.damage(self.cluster.world.random, directory)
        if what:
            self.cluster.checker.suspect(self.node_id)
        return what
