"""What the metadata knows of a stream reaches the API, field by field."""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.descriptions import node_fields
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.state.commands import DrainNode, FenceNode
from jetstream_server.metadata.state.streams import LakeMark, StreamMetadata, StreamSettings
from jetstream_server.serving.grpc.convert import leaderless_state, node_to_proto, stream_to_proto
from tests.unit.metadata.cluster import Cluster

STREAM = StreamMetadata(
    id=7,  # type: ignore[arg-type]
    name="orders",
    subject="orders.>",
    group="g",
    config=StreamSettings.with_defaults(3),
    replicas=(0, 1, 2),  # type: ignore[arg-type]
    leader=1,  # type: ignore[arg-type]
    leader_epoch=4,  # type: ignore[arg-type]
    stream_epoch=5,
    isr=(1, 2),  # type: ignore[arg-type]
    elr=(0,),  # type: ignore[arg-type]
    created_at_us=1_700_000_000_000_000,
    lossy_elections=2,
    readonly=True,
    paused=True,
    target_replicas=(1, 2),  # type: ignore[arg-type]
    observers=(3,),  # type: ignore[arg-type]
    lake=LakeMark(5, 9),
)


def test_a_stream_reaches_the_wire_with_every_field() -> None:
    told = stream_to_proto(STREAM)
    unset = [field.name for field in pb.Stream.DESCRIPTOR.fields if not getattr(told, field.name)]
    assert unset == []
    assert (told.name, told.subject, told.config.group) == ("orders", "orders.>", "g")
    assert (told.leader, told.leader_epoch, told.stream_epoch) == (1, 4, 5)
    assert (list(told.isr), list(told.elr)) == ([1, 2], [0])
    assert told.config.flush == pb.FLUSH_INTERVAL


def test_elections_that_may_have_lost_records_are_told() -> None:
    assert stream_to_proto(STREAM).lossy_elections == 2
    assert stream_to_proto(replace(STREAM, lossy_elections=0)).lossy_elections == 0


def test_a_node_is_draining_whoever_wants_it() -> None:
    cluster = Cluster(2)
    for until_undone in (False, True):
        assert not node_to_proto(cluster.registry.nodes[NodeId(0)], voter=True).draining
        cluster.do(DrainNode(node_id=0, until_undone=until_undone))
        assert node_to_proto(cluster.registry.nodes[NodeId(0)], voter=True).draining
        cluster.do(DrainNode(node_id=0, draining=False, until_undone=until_undone))


def test_a_full_disk_is_told() -> None:
    node = Cluster(1).registry.nodes[NodeId(0)]
    told = [node_to_proto(replace(node, disk_full=full), voter=True) for full in (False, True)]
    assert [(each.disk_full, node_fields(each)["disk_full"]) for each in told] == [
        (False, False),
        (True, True),
    ]


def test_a_stream_without_a_leader_says_whose_return_it_waits_for() -> None:
    cluster = Cluster(3)
    single, triple = cluster.create("one", "one", (0,)), cluster.create()

    def state(stream: StreamMetadata) -> str:
        return leaderless_state(cluster.now(stream), cluster.registry)

    for node_id in (0, 1, 2):
        cluster.do(FenceNode(node_id=node_id))
    assert state(single) == "offline: waits for node 0"
    # Below the minimum nothing could be committed: either of the last two holds everything.
    assert state(triple) == "offline: waits for node 1 or node 2"
    cluster.register(0)
    assert state(triple) == "offline: waits for node 1 or node 2"
    cluster.register(1, trusted=False)
    assert state(triple) == "offline: waits for node 2"
    cluster.register(2, trusted=False)
    assert state(triple) == "offline: no replica may lead it now"
    cluster.do(FenceNode(node_id=0))
    assert state(triple) == "offline: waits for node 0"
    for node_id in (1, 2):
        cluster.do(FenceNode(node_id=node_id))
    assert state(triple) == "offline: waits for node 1 and node 2"
