"""An operator elects a leader by hand, where the only replica with everything is gone for good."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from jetstream_client import Client, PreconditionFailedError
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.stages import cluster_stage

cluster = cluster_stage(kind=PatientCluster)


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def test_a_stream_whose_only_good_replica_is_gone_is_elected_by_hand_and_goes_on(
    cluster: TestCluster, client: Client
) -> None:
    stream = client.create_stream("orders", "orders", replicas=2, min_insync_replicas=1)
    good = stream.leader
    (stale,) = (node for node in stream.replicas if node != good)
    for number in range(10):
        client.publish("orders", b"%d" % number, msg_id=str(number))
    # What the other replica has by then is all that will be left.
    cluster.wait_for(
        "both hold it", lambda: len(cluster.api(stale).values_upto("orders", 10)) == 10
    )
    cluster.kill(stale)
    cluster.wait_for_isr("orders", [good])
    for number in range(10, 15):
        client.publish("orders", b"%d" % number, msg_id=str(number))
    refused = cluster.jetstream("stream", "elect", "orders", "--unclean", str(good), code=1)
    assert f"node {good} leads" in refused
    assert "transfer-leader" in refused

    cluster.kill(good)
    cluster.restart(stale)
    cluster.wait_for(
        "nobody leads", lambda: client.describe_stream("orders").state.startswith("offline: waits")
    )
    (listed,) = client.describe_streams("orders")
    waits = f"offline: waits for node {good}"
    assert listed.state == client.describe_stream("orders").state == waits
    health = command.jetstream("--server", cluster.servers, "cluster", "health")
    assert f"has no leader: {waits}" in health.stdout
    elect = ("stream", "elect", "orders", "--unclean")
    assert "is not alive" in cluster.jetstream(*elect, str(good), "--yes", code=1)
    outside = next(node for node in cluster.nodes if node not in stream.replicas)
    assert "holds no replica" in cluster.jetstream(*elect, str(outside), "--yes", code=1)
    assert "--yes" in cluster.jetstream(*elect, str(stale), code=2).splitlines()[-1]
    told = cluster.jetstream(*elect, str(stale), "--dry-run")
    assert f"what only node {good} held" in told
    assert "0..10" in told
    assert client.describe_stream("orders").leader == -1

    told = cluster.jetstream(*elect, str(stale), "--yes")
    assert f"node {stale} leads orders" in told
    after = client.describe_stream("orders")
    assert (after.leader, after.lossy_elections) == (stale, 1)
    assert "leader_elected_uncleanly" in "".join(map(cluster.log, cluster.nodes))
    for number in range(100, 105):
        client.publish("orders", b"%d" % number, msg_id=str(number))
    cluster.restart(good)
    cluster.wait_for_isr("orders", [stale, good])
    health = command.jetstream("--server", cluster.servers, "cluster", "health")
    assert "note: stream orders@orders: committed records may have been lost in 1" in health.stdout
    kept = [b"%d" % number for number in (*range(10), *range(100, 105))]
    cluster.wait_for("all is there", lambda: cluster.api(stale).values_upto("orders", 15) == kept)
    cluster.wait_for(
        "the old leader holds the same",
        lambda: cluster.segments(good, stream.id) == cluster.segments(stale, stream.id),
    )


def test_a_plan_is_void_once_the_stream_has_changed(cluster: TestCluster, client: Client) -> None:
    """And says as JSON what each replica holds."""
    stream = client.create_stream("s", "s", replicas=2, min_insync_replicas=1)
    client.publish("s", b"x", msg_id="x")
    follower = next(node for node in stream.replicas if node != stream.leader)
    cluster.kill(follower)
    cluster.wait_for_isr("s", [stream.leader])
    client.publish("s", b"y", msg_id="y")
    cluster.kill(stream.leader)
    cluster.restart(follower)
    cluster.wait_for("nobody leads", lambda: client.describe_stream("s").leader == -1)
    arguments = ("stream", "elect", "s", "--unclean", str(follower), "--dry-run", "--json")
    plan = json.loads(cluster.jetstream(*arguments))
    assert plan["elected"] is False
    assert plan["unheard"] == [stream.leader]
    states = {each["node"]: each for each in plan["replicas"]}
    assert states[follower]["log_end_offset"] == 1
    assert (states[stream.leader]["alive"], states[stream.leader]["log_end_offset"]) == (
        False,
        None,
    )
    client.alter_stream("s", max_age=3600)
    with pytest.raises(PreconditionFailedError, match="changed"):
        client.elect_uncleanly("s", follower, stream_epoch=plan["stream"]["stream_epoch"])
    cluster.restart(stream.leader)
