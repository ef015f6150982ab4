"""One node's replicas on a real disk, without NATS or ports: for tests of what lies between them.

Flushes take place when the test says so (`flushes.run()`), in the test's own thread.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import StorageError
from jetstream_protocol.types import NodeId
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk, OsDisk
from jetstream_server.log.flusher import Flusher
from jetstream_server.metadata.state.commands import DeleteStream
from jetstream_server.metadata.state.nodes import FeatureLevel
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.listeners import Listeners, ReplicaListener
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.replication.run_record import RunRecordFile
from tests.support.clocks import FakeClocks
from tests.support.log_batches import batch
from tests.unit.metadata.cluster import Cluster

OnFlushed = Callable[[CommitLog, int | StorageError], None]


class Flushes:
    """Stands for the flusher: what was asked for waits for `run`."""

    def __init__(self) -> None:
        self.waiting: dict[CommitLog, OnFlushed] = {}

    def request(self, log: CommitLog, on_flushed: OnFlushed) -> None:
        self.waiting[log] = on_flushed

    def run(self) -> None:
        waiting, self.waiting = self.waiting, {}
        for log, on_flushed in waiting.items():
            result: int | StorageError
            try:
                result = log.flush()
            except StorageError as error:
                result = error
            on_flushed(log, result)


class Node:
    """Node 0, its registry and its replicas. `start` needs a running event loop."""

    def __init__(
        self,
        folder: Path,
        *,
        disk: Disk | None = None,
        segment_bytes: int = 1 << 20,
        nodes: int = 1,
        level: FeatureLevel | None = None,
    ) -> None:
        """level: of the cluster's features; None: the first."""
        self.folder = folder
        self.level = level or FeatureLevel(1)
        self.cluster = Cluster(nodes) if level is None else Cluster.at_level(nodes, level)
        self.flushes = Flushes()
        self.clocks = FakeClocks()
        self.flush_interval_seconds = 3600.0
        self.unsettled: dict[int, StorageError] = {}
        self.disk = OsDisk() if disk is None else disk
        self.segment_bytes = segment_bytes
        folder.mkdir(exist_ok=True)

    def start(
        self, listener: ReplicaListener | None = None, *, clean: bool = False
    ) -> ReplicaManager:
        """Open what the registry knows, and take up its roles, as a server's start does."""
        self.open(clean=clean)
        self.begin(Listeners() if listener is None else Listeners(leadership=listener))
        return self.replicas

    def begin(self, listeners: Listeners) -> None:
        self.replicas.begin(self.cluster.registry.nodes[NodeId(0)].incarnation, listeners)

    def open(self, *, clean: bool = False) -> ReplicaManager:
        """The first half of that: what a node does before it registers."""
        self.replicas = ReplicaManager(
            node_id=0,
            registry=self.cluster.registry,
            disk=self.disk,
            directory=str(self.folder),
            config=LogConfig(segment_bytes=self.segment_bytes),
            flusher=cast(Flusher, self.flushes),
            runs=RunRecordFile(self.disk, str(self.folder.with_name("runs")), "cluster/0"),
            flush_interval_seconds=self.flush_interval_seconds,
            wall_clock=self.clocks.wall,
            monotonic_clock=self.clocks.monotonic,
            lease_held=lambda: True,
            unsettled=self.unsettled,
        )
        self.replicas.open(clean=clean)
        return self.replicas

    def restart(
        self, listener: ReplicaListener | None = None, *, clean: bool = True
    ) -> ReplicaManager:
        """Close, register anew, open."""
        self.replicas.close()
        self.cluster.register(0, feature_level_max=self.level)
        return self.start(listener, clean=clean)

    def create(
        self,
        name: str = "orders",
        subject: str = "orders.>",
        replicas: tuple[int, ...] = (0,),
        **fields: object,
    ) -> Replica:
        """A stream with a replica here; applied."""
        stream = self.cluster.create(name, subject, replicas, **fields)
        self.apply()
        return self.replica(stream)

    def apply(self) -> None:
        """Hand the changes of the last command to the replicas."""
        for change in self.cluster.changes:
            self.replicas.apply(change)

    def delete(self, replica: Replica) -> None:
        self.cluster.do(DeleteStream(stream_id=replica.stream.id))
        self.apply()

    def replica(self, stream: StreamMetadata) -> Replica:
        replica = self.replicas.get(stream.id)
        assert replica is not None
        return replica

    def append(self, replica: Replica, *values: bytes, flush: bool = True) -> int:
        """One batch; committed on return unless `flush` is False. Returns its base offset."""
        base_offset = replica.append(batch(*values))
        if flush:
            self.flushes.run()
        return base_offset


def read_values(replica: Replica, offset: int = 0, bytes_max: int = 1 << 20) -> list[bytes | None]:
    """The values of what one read returns; [] when nothing is available."""
    found = replica.read(offset, bytes_max)
    if found is None:
        return []
    return [value for each in iterate(replica.log.pread(found)) for value in each.values()]
