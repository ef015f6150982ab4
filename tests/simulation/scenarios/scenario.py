"""What a scenario is, and what several of them need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jetstream_protocol.types import NO_NODE, NodeId
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.metadata.state.commands import TransferLeader
from jetstream_server.metadata.state.streams import StreamMetadata

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster
    from tests.simulation.process import Process

STRIDE = 20
"""One seed in so many is about each scenario."""


class Scenario:
    """Nothing in particular: every hook does nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.quiet_until = 0

    plans_hand_overs = False
    """Whether leaders hand over by plan; otherwise the metadata is just changed."""
    is_calm = False
    """Nothing goes wrong, and nobody may be left in doubt."""

    duration_us: int | None = None
    """For how long things go wrong; None: as drawn."""
    segment_bytes: int | None = None
    """Of its logs; None: as drawn."""
    is_read = False
    """Whether there is a reader in any case."""
    needs_repeaters = False
    """Whether there are publishers that repeat what they have no answer to."""
    fills_lake = False
    """Whether the store of the lake works, and little stays on the disks."""
    first_seed = 0
    """About it, if one kind of cluster alone has it."""

    @property
    def is_about_something(self) -> bool:
        return type(self) is not Scenario

    def prepare(self) -> None:
        """The faults begin; their appetites are drawn."""

    def strike(self) -> None:
        """Do it once more, if it can be done now."""

    def begins_to_lead(self, process: Process) -> None:
        """A process has applied its election."""

    def send_delay_us(self, process: Process, follower: int, slices: Sequence[LogSlice]) -> int:
        """How much later than they were chosen an answer's bytes are read."""
        return 0

    def flush_delay_us(self, process: Process) -> int:
        """How much longer a flush takes."""
        return 0

    def flush_told_late_us(self, process: Process) -> int:
        """How much later than it ended whoever asked for a flush hears of it."""
        return 0

    def begins_anew(self, process: Process) -> None:
        """A follower has emptied its log, to copy another."""

    def registers(self, process: Process) -> None:
        """A process is about to propose its registration."""

    def asks_to_stand_by(self, process: Process, target: int) -> None:
        """A process asks another to stand by for the leadership."""

    def log_failed(self, process: Process) -> None:
        """A process has told itself that its log failed."""

    def joins(self, leader: int, joiner: int) -> bool:
        """That leader proposes that one joins the ISR. Returns whether nothing else is to befall
        that proposal."""
        return False

    def commits_to_lake(self) -> None:
        """A leader's commit of what it has copied is proposed."""

    def restart_us(self) -> int | None:
        """After how long an ended process is started again; None: any time."""
        return None

    def stream_changed(self, before: StreamMetadata, after: StreamMetadata) -> None:
        """In truth."""

    # What several of them need.

    def keep_quiet(self, duration_us: int) -> None:
        """Mostly, nothing else strikes for so long."""
        if self.is_about_something and self.world.chance(0.8):
            self.quiet_until = self.world.now + duration_us

    def led_stream(self) -> StreamMetadata | None:
        """The stream as it truly is, while a live process leads it."""
        stream = self.cluster.metadata.now.stream
        if stream is None or stream.leader == NO_NODE:
            return None
        return stream if self.cluster.machines[stream.leader].process is not None else None

    def leader_and_followers(self, count: int) -> list[int] | None:
        """The leader and `count` others that are in sync, in any order; None: there are fewer."""
        stream = self.led_stream()
        if stream is None:
            return None
        followers = [member for member in stream.isr if member != stream.leader]
        self.world.random.shuffle(followers)
        if len(followers) < count:
            return None
        return [stream.leader, *followers[:count]]

    def transfer(self, leader: int) -> None:
        """Somebody hands the leadership over to that node."""
        if not self.cluster.faults.healing:
            self.cluster.metadata.apply(
                TransferLeader(stream_id=self.cluster.stream_id, leader=NodeId(leader))
            )

    def needs_everyone(self, stream: StreamMetadata, flush: str) -> None:
        """Whoever leaves the ISR stays eligible from now on."""
        settings = {"flush": flush, "min_insync_replicas": len(stream.replicas)}
        self.cluster.faults.alter(settings, stream.stream_epoch)

    def deafen(self, node_id: int, duration_us: int) -> None:
        if not self.cluster.faults.healing:
            self.cluster.metadata.deafen(node_id, self.world.now + duration_us)
