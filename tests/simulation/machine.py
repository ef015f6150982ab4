"""A machine: a disk, a boot id, and at most one server process at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from jetstream_protocol.types import WallUs
from jetstream_server.log.state_files import write_state
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.replication.core.restart_trust import RunRecord
from tests.simulation.clocks import MonotonicClock
from tests.simulation.disk import SimulatedDisk

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process

CLUSTER_ID = "c"
WALL_CLOCK_US = 1_000_000
"""When the simulation begins, by a clock that is right."""
RUNS_PATH = "/runs"
STREAMS_PATH = "/streams"


@dataclass(slots=True)
class Kept:
    """What its member of the metadata group has on disk."""

    term: int = 0
    applied_index: int = 0
    registry: Registry | None = None


@dataclass(slots=True)
class WallClock:
    """What a machine takes the time of day to be: wrong by `offset_us`, and ever more."""

    offset_us: int = 0
    drift: float = 0.0

    def read(self, now: int) -> WallUs:
        return WallUs(WALL_CLOCK_US + self.offset_us + now + int(now * self.drift))


class Machine:
    """What outlives a process."""

    def __init__(self, cluster: Cluster, node_id: int) -> None:
        self.cluster = cluster
        self.node_id = node_id
        self.disk = SimulatedDisk()
        self.wall_clock = WallClock()
        self.clock = MonotonicClock()
        self.kept = Kept()
        self.boot = 0
        self.process: Process | None = None
        self.starts = 0
        self.has_opened = False
        """Its logs, since it last started. Before that, the files may be those of a clean stop,
        which the next start does not scan; or those of a power failure, after which nothing tells
        damage from what was never flushed."""
        self._hears_nats = True
        # As the installation left it: empty logs, and a session that the metadata knows.
        installed = RunRecord(sessions=(f"installer.{node_id}",), boot_id="0", clean=True)
        owner = f"{CLUSTER_ID}/{node_id}"
        self.disk.make_directory(STREAMS_PATH)
        self.disk.fsync_directory("/")
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
            self.has_opened = False
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
        self.has_opened = False
        self.disk.lose_power(self.cluster.world.random)
        self._suspect_every_log()

    def suspend(self, until: int, *, by_hypervisor: bool = False) -> None:
        """Nothing runs on it before then."""
        self.clock.suspend(self.cluster.world.now, until, by_hypervisor=by_hypervisor)
        if self.process is not None:
            self.process.pause(until)

    def erase(self) -> None:
        """The disk is replaced by an empty one."""
        if self.process is not None:
            self.process.die("disk replaced", silently=True)
        self.boot += 1
        self.has_opened = False
        self.disk.erase()
        self._suspect_every_log()
        for stream in self.cluster.streams:
            stream.checker.erased(self.node_id)

    def _suspect_every_log(self) -> None:
        for stream in self.cluster.streams:
            stream.checker.suspect(self.node_id)

    def rot(self) -> str:
        """A file of a log rots or is lost while no process runs; returns what."""
        assert self.process is None
        if not self.has_opened:
            return ""  # Nothing tells it from what the power failure took.
        directory = f"{STREAMS_PATH}/{self.cluster.stream_id}"
        what = self.disk.damage(self.cluster.world.random, directory)
        if what:
            self.cluster.checker.suspect(self.node_id)
        return what

    def lose_beginning(self, *, kept: int, beside: bool) -> bool:
        """Its log loses its first segments, all but `kept`, while no process runs; and if beside,
        all that says where it begins. False: it has no others."""
        assert self.process is None
        if not self.has_opened:
            return False
        directory = f"{STREAMS_PATH}/{self.cluster.stream_id}"
        is_lost = self.disk.lose_beginning(directory, kept=kept, beside=beside)
        if is_lost:
            self.cluster.checker.suspect(self.node_id)
        return is_lost
