"""Three real nodes: replication, failover, and what comes back.

The tests share them: each has a stream of its own, and leaves all nodes in sync.
"""

from __future__ import annotations

import time

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from tests.support.api import call, raw_nats
from tests.support.cluster import TestCluster
from tests.support.load import Load


def test_any_node_creates_and_every_replica_holds_the_same_bytes(cluster: TestCluster) -> None:
    for node in cluster.nodes:
        epoch = cluster.api(node).create(f"s{node}", f"s{node}.a").stream.leader_epoch
        # The leader listens by now, wherever the request went, unless another leads since.
        with raw_nats(cluster.nats) as client:
            client.subscribe("_INBOX.x")
            client.publish(f"s{node}.a", b"0", "_INBOX.x")
            heard = not client.message(60.0)[1].startswith(b"NATS/1.0 503")
        assert heard or cluster.settled(f"s{node}").stream.leader_epoch > epoch
    for node in cluster.nodes:
        name = f"s{node}"
        load = Load(cluster.nats, f"{name}.a").start()
        load.wait_for_acks(50)
        load.stop()
        cluster.wait_for_isr(name, cluster.nodes)
        stream = cluster.settled(name).stream

        def are_alike(stream_id: int = stream.id) -> bool:
            held = [cluster.segments(other, stream_id) for other in cluster.nodes]
            return bool(held[0]) and held[0] == held[1] == held[2]

        cluster.wait_for("all replicas hold the same bytes", are_alike)


def test_leader_killed_loses_nothing_acknowledged_and_it_comes_back(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(2000)
    leader = cluster.settled(name).stream.leader
    killed_at = time.monotonic()
    cluster.kill(leader)
    load.wait_for_acks(2000)
    gap = load.books.longest_gap(killed_at)
    others = [node for node in cluster.nodes if node != leader]
    cluster.wait_for(
        "another one leads, and both others are in sync",
        lambda: sorted(cluster.describe(name, others).stream.isr) == others,
    )
    assert cluster.describe(name, others).stream.leader != leader
    cluster.restart(leader)
    cluster.wait_for_isr(name, cluster.nodes)
    load.wait_for_acks(500)
    books = load.stop()
    print(
        f"gap {gap:.2f} s; sent {books.sent}, acked {len(books.acked)}, nacked {len(books.nacked)}"
    )
    cluster.check_everywhere(name, load.books)


def test_leader_frozen_is_replaced_and_says_nothing_when_it_wakes(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(1000)
    leader = cluster.settled(name).stream.leader
    frozen_at = time.monotonic()
    cluster.freeze(leader)
    load.wait_for_acks(1000)
    gap = load.books.longest_gap(frozen_at)
    cluster.thaw(leader)
    cluster.wait_for_isr(name, cluster.nodes)
    load.wait_for_acks(500)
    load.stop()
    print(f"gap {gap:.2f} s")
    cluster.check_everywhere(name, load.books)


def test_all_nodes_killed_at_once_keep_what_was_acknowledged(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(1000)
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.restart(*cluster.nodes)
    cluster.wait_for_isr(name, cluster.nodes)
    load.wait_for_acks(500)
    load.stop()
    cluster.check_everywhere(name, load.books)


def test_a_leadership_is_handed_over_on_request(cluster: TestCluster, name: str) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(500)
    cluster.wait_for_isr(name, cluster.nodes)
    before = cluster.settled(name).stream
    target = next(node for node in cluster.nodes if node != before.leader)
    request = pb.TransferLeaderRequest(stream=common_pb2.StreamRef(name=name), node_id=target)
    after = call(cluster.api(0).cluster.TransferLeader, request).stream
    assert (after.leader, after.leader_epoch > before.leader_epoch) == (target, True)
    load.wait_for_acks(500)
    load.stop()
    cluster.check_everywhere(name, load.books)


def test_a_node_that_is_stopped_hands_its_leaderships_over_first(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(500)
    for _ in range(10):
        cluster.wait_for_isr(name, cluster.nodes)
        leader = cluster.settled(name).stream.leader
        said = len(cluster.log(leader))
        cluster.stop(leader)
        has_complained = "not_handed_over" in cluster.log(leader)[said:]
        if not has_complained:
            others = [node for node in cluster.nodes if node != leader]
            assert cluster.describe(name, others).stream.leader in others
        load.wait_for_acks(500)
        cluster.restart(leader)
        if not has_complained:
            break  # Else a node stood still for longer than a hand-over may take.
    assert not has_complained
    cluster.wait_for_isr(name, cluster.nodes)
    books = load.stop()
    print(f"acked {len(books.acked)} of {books.sent}, nacked {len(books.nacked)}")
    cluster.check_everywhere(name, load.books)
