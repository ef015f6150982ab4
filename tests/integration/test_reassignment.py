"""Streams move to other nodes while they are published to; a node is emptied and removed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest

from examples.cluster.local import node_name
from jetstream_client import Client, Consumer, PreconditionFailedError
from tests.support.cluster import TestCluster, running_cluster
from tests.support.load import Load


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with running_cluster(tmp_path_factory.mktemp("reassigned") / "nodes", 4) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=20) as client:
        yield client


def holds(cluster: TestCluster, node: int, stream_id: int) -> bool:
    folder = cluster.cluster.directory / node_name(node) / "streams" / str(stream_id)
    return folder.exists()


def values_of(cluster: TestCluster, node: int) -> list[bytes | None]:
    return list(cluster.api(node).values_upto("moved", cluster.describe("moved").high_watermark))


def test_a_stream_moves_to_other_nodes_while_it_is_published_to(
    cluster: TestCluster, client: Client
) -> None:
    stream = client.create_stream("moved", "moved", replicas=2)
    old = stream.replicas
    new = tuple(node for node in cluster.nodes if node not in old)
    seen: dict[Literal["leader", "any"], list[int]] = {"leader": [], "any": []}
    consumers = {source: client.consume("moved", read_from=source) for source in seen}
    readers = ThreadPoolExecutor()
    reading = [readers.submit(read, consumers[source], seen[source]) for source in seen]
    load = Load(cluster.nats, "moved").start()
    try:
        load.wait_for_acks(200)
        client.reassign_stream("moved", new)
        cluster.wait_for("it has moved", lambda: client.describe_stream("moved").replicas == new)
        load.wait_for_acks(200)
    finally:
        books = load.stop()
    moved = client.describe_stream("moved")
    assert (moved.target_replicas, set(moved.isr)) == ((), set(new))
    cluster.wait_for(
        "the old copies are gone",
        lambda: not any(holds(cluster, node, stream.id) for node in old),
    )
    for node in new:
        cluster.wait_for(
            "it has everything",
            lambda node=node: len(values_of(cluster, node)) >= max(books.acked.values()),  # type: ignore[misc]
        )
        books.check(values_of(cluster, node))
    # Those who waited for records at a node that the stream has left went on elsewhere.
    end = client.describe_stream("moved").high_watermark
    cluster.wait_for(
        "all is read",
        lambda: all(
            each.running() and len(seen[s]) == end for each, s in zip(reading, seen, strict=True)
        ),
    )
    for consumer in consumers.values():
        consumer.close()
    readers.shutdown()
    assert all(offsets == list(range(end)) for offsets in seen.values())


def read(consumer: Consumer, seen: list[int]) -> None:
    seen.extend(message.offset for message in consumer)


def test_one_replica_becomes_three_and_one_again(cluster: TestCluster) -> None:
    with Client(cluster.servers, timeout=20) as client:
        stream = client.create_stream("grown", "grown", replicas=1)
        client.publish("grown", b"1")
        for replicas in ((0, 1, 2), (3,)):
            names = ",".join(map(str, replicas))
            cluster.jetstream("stream", "reassign", "grown", "--replicas", names, "--yes")
            found = client.describe_stream(stream)
            assert (found.replicas, found.replication_factor) == (replicas, len(replicas))
        assert [message.value for message in client.fetch("grown")] == [b"1"]


def test_an_emptied_node_is_removed_and_one_that_is_not_is_kept(
    cluster: TestCluster, client: Client
) -> None:
    for number in range(4):
        client.create_stream(f"kept{number}", f"kept.{number}", replicas=3)
        client.publish(f"kept.{number}", b"x")
    with pytest.raises(PreconditionFailedError, match="node 3 is alive or holds"):
        client.remove_node(3)
    cluster.jetstream("node", "decommission", "3", "--yes")
    assert not [stream.name for stream in client.list_streams() if 3 in stream.replicas]
    for number in range(4):
        assert len(list(client.fetch(f"kept{number}"))) == 1
    cluster.stop(3)
    cluster.wait_for("it is gone", lambda: client.describe_cluster().nodes[3].fenced)
    cluster.jetstream("node", "remove", "3")
    assert [node.id for node in client.describe_cluster().nodes] == [0, 1, 2]
    refused = cluster.jetstream("node", "decommission", "2", "--yes", code=1)
    assert "has no other node to go to: start another node, or lower its" in refused
    assert not client.describe_cluster().nodes[2].draining
