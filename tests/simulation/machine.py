"""A machine: a disk, a boot id, and at most one server process at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_server.log.checkpoint import write_state
from jetstream_server.metadata.registry import Registry
from jetstream_server.replication.trust import RunRecord
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process

CLUSTER_ID = "c"
RUNS_PATH = "/runs"


@dataclass(slots=True)
class Kept:
    """What its member of the metadata group has on disk."""

    term: int = 0
    applied_index: int = 0
    registry: Registry | None = None


class Machine:
    """What outlives a process."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = SimulatedDisk()
        self.kept = Kept()
        self.boot = 0
        self.process: Process | None = None
        self.starts = 0
        self._hears_nats = True
        # As the installation left it: empty logs, and a session that the metadata knows.
        installed = RunRecord(sessions=(f"installer.{node_id}",), boot_id="0", clean=True)
        owner = f"{CLUSTER_ID}/{node_id}"
        write_state(self.disk, RUNS_PATH, "runs", owner, installed.to_dict())

    @property
    def hears_nats(self) -> bool:
        """Whether NATS can be reached from here."""
        return self._hears_nats

    @hears_nats.setter
    def hears_nats(self, hears: bool) -> None:
        self._hears_nats = hears
        process = self.process
        if not hears and process is not None and process.nats_socket is not None:
            process.nats_socket.drop()

    def start(self) -> None:
        if self.process is None:
            from tests.simulation.process import Process

            self.starts += 1
            self.process = Process(self)
            self.cluster.members[self.node_id] = self.process
            self.process.begin()

    def crash(self, reason: str) -> None:
        """The process dies; what it wrote stays readable."""
        if self.process is not None:
            self.process.die(reason)

    def lose_power(self) -> None:
        """The process dies with everything that was not synced."""
        if self.process is not None:
            self.process.die("power failure", silently=True)
        self.boot += 1
        self.disk.lose_power(self.cluster.world.random)
        self.cluster.checker.suspect(self.node_id)

    def erase(self) -> None:
        """The disk is replaced by an empty one."""
        if self.process is not None:
            self.process.die("disk replaced", silently=True)
        self.boot += 1
        self.disk.erase()
        self.cluster.checker.suspect(self.node_id)

    def flip_bit(self) -> bool:
        """A bit of the last segment rots while no process runs."""
        assert self.process is None
        directory = f"/streams/{self.cluster.stream_id}"
        if not self.disk.flip_bit(self.cluster.world.random, directory):
            return False
        self.cluster.checker.suspect(self.node_id)
        return True
