"""Nodes that have not joined, are drained, stop or are away: what becomes of streams meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from jetstream_client import Client, InvalidRequestError, UnavailableError
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster

WAITING = "waiting_for_metadata_leader"


@pytest.fixture
def unstarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Not started yet, but for NATS."""
    cluster = PatientCluster(tmp_path_factory.mktemp("cluster") / "nodes")
    try:
        cluster.cluster.start_nats()
        yield cluster
    finally:
        cluster.close()


def draining(client: Client) -> list[int]:
    return [node.id for node in client.describe_cluster().nodes if node.draining]


def test_a_new_cluster_waits_for_all_voters_and_a_stream_for_as_many_nodes_as_its_replicas(
    tmp_path: Path,
) -> None:
    cluster = PatientCluster(tmp_path / "four", nodes=4)
    try:
        cluster.cluster.start_nats()
        for node in (0, 1):
            cluster.cluster.start_node(node)
            cluster.wait_for(
                "the node waits",
                lambda node=node: WAITING in cluster.log(node),  # type: ignore[misc]
            )
        cluster.wait_for("it says for what", lambda: "heard from every voter" in cluster.log(0))
        time.sleep(2.0)
        assert not any("jetstream-server ready" in cluster.log(node) for node in (0, 1))
        lines = [json.loads(line) for line in cluster.log(0).splitlines() if WAITING in line]
        reasons = [line["reason"] for line in lines]
        assert all(a != b for a, b in pairwise(reasons)), "the same was said again and again"
        cluster.restart(2)
        cluster.cluster.wait_for_nodes(0, 1)
        three = ",".join(cluster.cluster.grpc_addresses[:3])
        for seconds in (1.0, 5.0, 25.0):  # A node may not answer in the shortest.
            with Client(three, timeout=seconds) as hasty, pytest.raises(UnavailableError) as late:
                hasty.create_stream("first", "first", replicas=4)
            if "only 3 of 4 have joined" in str(late.value):
                break
        assert "only 3 of 4 have joined" in str(late.value)
        with Client(three, timeout=60) as client:
            with pytest.raises(InvalidRequestError, match="the cluster has 4 nodes"):
                client.create_stream("first", "first", replicas=5)
            assert client.create_stream("small", "small", replicas=2).replicas == (0, 1)
            assert client.create_stream("small", "small").replicas == (0, 1), "it is there already"
            assert {stream.name for stream in client.list_streams()} == {"small"}
        cluster.cluster.start_node(3)
        with Client(three, timeout=60) as client:
            stream = client.create_stream("first", "first", replicas=4)
            assert stream.replicas == (0, 1, 2, 3)
    finally:
        cluster.close()


def test_a_drained_node_holds_replicas_and_leads_nothing_whatever_its_runs_until_that_is_undone(
    unstarted: TestCluster,
) -> None:
    unstarted.start()
    with Client(unstarted.servers, timeout=60) as client:
        client.drain_node(1)
        for number in range(4):
            name = f"s{number}"
            stream = client.create_stream(name, name, replicas=None if number % 2 else 3)
            assert (stream.replicas, stream.min_insync_replicas) == ((0, 1, 2), 2)
            assert stream.leader in (0, 2)
        for end in (unstarted.kill, unstarted.stop):
            end(1)
            unstarted.restart(1)
            for number in range(4):
                unstarted.wait_for_isr(f"s{number}", unstarted.nodes)
            assert draining(client) == [1]
        for number in range(4):
            client.transfer_leader(f"s{number}", 0)

        def leaders() -> list[int]:
            return sorted(stream.leader for stream in client.list_streams())

        unstarted.wait_for("leaderships are evened out", lambda: leaders() == [0, 0, 2, 2])
        client.drain_node(1, undo=True)
        assert draining(client) == []
        unstarted.wait_for(
            "node 1 leads again",
            lambda: any(stream.leader == 1 for stream in client.list_streams()),
        )


def test_a_node_that_was_stopped_leads_again_and_its_streams_say_that_they_wait_for_it(
    unstarted: TestCluster,
) -> None:
    unstarted.start()
    with Client(unstarted.servers, timeout=60) as client:
        alone = client.create_stream("alone", "alone", replicas=1)
        unstarted.stop(alone.leader)
        unstarted.wait_for("it is told", lambda: draining(client) == [alone.leader])
        assert client.create_stream("meanwhile", "meanwhile").replicas == (0, 1, 2)
        waits = f"offline: waits for node {alone.leader}"
        unstarted.wait_for("so is why", lambda: client.describe_stream("alone").state == waits)
        unstarted.restart(alone.leader)
        unstarted.wait_for("it is back", lambda: draining(client) == [])
        unstarted.wait_for(
            "it leads again", lambda: client.describe_stream("alone").leader == alone.leader
        )
