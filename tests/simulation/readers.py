"""A reader of one stream that goes from replica to replica, as `read_from="any"` has it.

It asks whoever holds a replica for what follows its position, by the shipped rule
(`Replica.read`), and knows of what it has read the last leader epoch only. It sees what is
committed, each record once and in order; it is told that its history is gone, or that it is
beyond the end, only after an election that lost records. After such an election it begins anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.errors import DivergedError, JetstreamError, OffsetOutOfRangeError
from jetstream_protocol.types import NO_EPOCH
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.replication.core.lake_bounds import start_offset
from jetstream_server.replication.replica import Replica
from tests.simulation.world import Violation

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.watched import WatchedStream

BYTES_MAX = 1_000


class Reader:
    """See the module."""

    def __init__(self, stream: WatchedStream) -> None:
        self._stream = stream
        self._world = stream.world
        self._lossy_elections = 0
        self.position = 0
        self._last_epoch = int(NO_EPOCH)
        self._last_node = -1

    def tick(self) -> None:
        """Read once, from anybody."""
        world = self._world
        machines = self._stream.cluster.machines
        process = machines[world.between(0, len(machines) - 1)].process
        if process is not None and process.serves and process.paused_until <= world.now:
            replica = process.replica_of(self._stream.stream_id)
            if replica is not None:
                self._ask(process, replica)
        world.later(world.between(5_000, 120_000), None, self.tick)

    def _ask(self, process: Process, replica: Replica) -> None:
        known = self._stream.stream.lossy_elections
        if self._lossy_elections != known:
            self._lossy_elections = known
            if self.begins_anew():
                self._begin_at(0)
        is_leader = replica.leadership is not None and process.node.membership.lease_held()
        if known and not (is_leader and replica.stream.lossy_elections == known):
            return  # Who has not heard of the election, or not from its leader, shows what is lost.
        try:
            self._read(process, replica, is_leader=is_leader)
        except OffsetOutOfRangeError as error:
            start = start_offset(replica.stream, replica.log)
            if self.position >= start and self._may_have_been_replaced(process):
                self._world.count("read: beyond the end of a leader of yesterday")
                return
            if not known and self.position >= start:
                raise Violation(
                    f"a reader at {self.position} is told by node {process.node_id}: "
                    f"{error.message}"
                ) from error
            self._stream.checker.skips(process.node_id, replica)
            self._world.count("read: begun anew after a log's start")
            self._begin_at(start)
        except DivergedError as error:
            if not known:
                raise Violation(
                    f"a reader at {self.position} is told by node {process.node_id}: "
                    f"{error.message}"
                ) from error
            self._world.count("read: told that records were lost")
            self._begin_at(start_offset(replica.stream, replica.log))
        except JetstreamError as error:
            self._world.count(f"read refused: {error.code}")

    def begins_anew(self) -> bool:
        """Whether it does, after an election that lost records."""
        return True

    def _may_have_been_replaced(self, process: Process) -> bool:
        """Whether another node leads by now. A reader without an epoch cannot be told so."""
        return self._last_epoch == NO_EPOCH and self._stream.stream.leader != process.node_id

    def _begin_at(self, offset: int) -> None:
        self.position, self._last_epoch = offset, int(NO_EPOCH)

    def _read(self, process: Process, replica: Replica, *, is_leader: bool) -> None:
        slice_ = self._find(process, replica, is_leader=is_leader)
        if slice_ is None:
            return
        if self._last_node not in (-1, process.node_id):
            self._world.count("read: from another replica")
        self._last_node = process.node_id
        for header in self._stream.checker.read(process.node_id, replica, slice_, self.position):
            self.position, self._last_epoch = header.next_offset, header.leader_epoch

    def _find(self, process: Process, replica: Replica, *, is_leader: bool) -> LogSlice | None:
        return replica.read(self.position, BYTES_MAX, self._last_epoch, is_leader=is_leader)
