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
        cluster.api(node).create(f"s{node}", f"s{node}.>")
        # The leader listens by now, wherever the request went.
        with raw_nats(cluster.nats) as client:
            client.subscribe("_INBOX.x")
            for index in range(50):
                client.publish(f"s{node}.a", b"%d" % index, "_INBOX.x")
            for _ in range(50):
                assert b'"seq"' in client.message()[1]
    for node in cluster.nodes:
        stream = cluster.describe(f"s{node}").stream
        assert sorted(stream.isr) == cluster.nodes
        cluster.wait_for(
            "every follower knows what is committed",
            lambda name=f"s{node}": all(  # type: ignore[misc]
                len(cluster.api(other).fetch(name).batches) > 0 for other in cluster.nodes
            ),
        )
        held = [cluster.segments(other, stream.id) for other in cluster.nodes]
        assert held[0]
        assert held[0] == held[1] == held[2]


def test_leader_killed_loses_nothing_acknowledged_and_it_comes_back(
    cluster: TestCluster, name: str
) -> None:
    cluster.api(0).create(name, name)
    load = Load(cluster.nats, name).start()
    load.wait_for_acks(2000)
    leader = cluster.describe(name).stream.leader
    killed_at = time.monotonic()
    cluster.kill(leader)
    load.wait_for_acks(2000)
    gap = load.books.longest_gap(killed_at)
    others = [node for node in cluster.nodes if node != leader]
    after = cluster.describe(name, others).stream
    assert after.leader != leader
    assert sorted(after.isr) == others
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
    leader = cluster.describe(name).stream.leader
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
    before = cluster.describe(name).stream
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
    leader = cluster.describe(name).stream.leader
    options_before = len(cluster.log(leader))
    cluster.stop(leader)
    assert "not_handed_over" not in cluster.log(leader)[options_before:]
    others = [node for node in cluster.nodes if node != leader]
    stream = cluster.describe(name, others).stream
    assert stream.leader in others
    load.wait_for_acks(500)
    cluster.restart(leader)
    cluster.wait_for_isr(name, cluster.nodes)
    books = load.stop()
    print(f"acked {len(books.acked)} of {books.sent}, nacked {len(books.nacked)}")
    cluster.check_everywhere(name, load.books)
