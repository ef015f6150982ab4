"""The counts of leaders and ISRs, and which node makes them."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.types import NO_NODE, LeaderEpoch, NodeId
from jetstream_server.metadata.state.changes import StreamChanged
from jetstream_server.metadata.state.commands import DeleteStream
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.leaderships import Leaderships
from tests.unit.metadata.cluster import Cluster


class Watched:
    """A cluster of three nodes, each of which counts."""

    def __init__(self) -> None:
        self.cluster = Cluster(nodes=3)
        self.nodes = [Leaderships(node_id) for node_id in range(3)]

    def follow(self) -> None:
        for change in self.cluster.changes:
            for node in self.nodes:
                node.apply(change)

    def create(self) -> StreamMetadata:
        stream = self.cluster.create("orders", "orders.>", (0, 1, 2))
        self.follow()
        return stream

    def change_isr(self, stream: StreamMetadata, *isr: int) -> None:
        self.cluster.change_isr(self.cluster.now(stream), isr)
        self.follow()


def test_a_change_is_counted_once_by_the_leader() -> None:
    watched = Watched()
    stream = watched.create()
    watched.change_isr(stream, 0, 1)
    watched.change_isr(stream, 0, 1, 2)
    leader = stream.leader
    assert [(n.isr_shrinks, n.isr_expands) for n in watched.nodes] == [
        (1, 1) if node_id == leader else (0, 0) for node_id in range(3)
    ]
    assert sum(node.elections for node in watched.nodes) == 0


def test_a_stream_without_a_leader_is_known_until_it_has_one_or_is_gone() -> None:
    watched = Watched()
    stream = watched.create()
    node = Leaderships(0)
    node.know(stream)
    assert not node.leaderless
    abandoned = _led_by(stream, NO_NODE)
    node.know(abandoned)
    assert list(node.leaderless) == [stream.id]
    node.know(stream)
    assert not node.leaderless
    node.know(abandoned)
    watched.cluster.do(DeleteStream(stream_id=stream.id))
    for change in watched.cluster.changes:
        node.apply(change)
    assert not node.leaderless


def _led_by(stream: StreamMetadata, leader: int) -> StreamMetadata:
    return replace(stream, leader=NodeId(leader))


def test_a_new_leader_counts_its_election_and_whether_it_may_have_cost_records() -> None:
    stream = Watched().create()
    after = replace(
        stream,
        leader=NodeId(2),
        leader_epoch=LeaderEpoch(stream.leader_epoch + 1),
        isr=(NodeId(2),),
        lossy_elections=1,
    )
    nodes = [Leaderships(node_id) for node_id in range(3)]
    for node in nodes:
        node.apply(StreamChanged(stream, after))
    counted = [(n.elections, n.lossy_elections, n.isr_shrinks) for n in nodes]
    assert counted == [(0, 0, 0), (0, 0, 0), (1, 1, 1)]
