"""One stream of a cluster: who publishes to it, and what is held against its logs."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import TYPE_CHECKING

from jetstream_protocol.types import NodeId, StreamId, WallUs
from jetstream_server.metadata.state.commands import CreateStream
from jetstream_server.metadata.state.streams import StreamMetadata
from tests.simulation.checker import Checker
from tests.simulation.head_readers import HeadReader
from tests.simulation.producers import Repeating
from tests.simulation.publishers import Publishers
from tests.simulation.readers import Reader

if TYPE_CHECKING:
    from tests.simulation.cluster import Cluster

NUMBERS = 10_000_000_000
"""So many publishes there may be of each stream: no two of a cluster's have the same number."""


class WatchedStream:
    """See the module. `create` must follow, before anybody publishes."""

    def __init__(self, cluster: Cluster, name: str, index: int, checker: Checker) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.nats = cluster.nats
        self.name = name
        self.subject = name.encode()
        self.checker = checker
        self.publishers = Publishers(self, index * NUMBERS)
        self.repeating = Repeating(self, index * NUMBERS)
        self.reader = Reader(self)
        self.head_reader = HeadReader(self, Random(f"head reader of {self.world.seed} at {index}"))
        self.stream_id = StreamId(-1)
        self.stream: StreamMetadata
        """As it truly is."""

    def create(
        self, config: dict[str, object], replicas: Sequence[int], observers: Sequence[int] = ()
    ) -> None:
        """It exists; nobody leads it."""
        metadata = self.cluster.metadata
        result = metadata.apply(
            CreateStream(
                name=self.name,
                subject=self.name,
                config=config,
                replicas=tuple(map(NodeId, replicas)),
                observers=tuple(map(NodeId, observers)),
                created_at_us=WallUs(0),
            )
        )
        self.stream_id = self.checker.stream_id = StreamId(result["stream_id"])
        self.stream = metadata.registry.streams[self.stream_id]
        self.checker.stream_changed(self.stream, self.stream)

    def keys(self, numbers: Sequence[int]) -> list[bytes | None] | None:
        """The keys of publishes; None: they have none."""
        return None

    def values(self, ids: list[int]) -> list[bytes]:
        """What publishes say."""
        return [b"%d" % number for number in ids]

    def header_blocks(self, ids: list[int]) -> list[bytes] | None:
        """What publishes say in their headers."""
        return None
