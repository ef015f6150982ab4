"""Two nodes of three are dead: what the one that is left can still tell and serve."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from jetstream_client import Client, UnavailableError
from tests.support.cluster import TestCluster, running_cluster

Run = Callable[..., str]
RECORDS = 20


@pytest.fixture(scope="module")
def minority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Of `orders` all replicas are in sync; node 2 alone is left, and leads `kept`."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        with Client(running.servers, timeout=20) as client:
            for name, leader in (("orders", 1), ("kept", 2)):
                client.create_stream(name, f"{name}.>")
                running.wait_for_isr(name, running.nodes)
                client.transfer_leader(name, leader)
                with client.publisher(f"{name}.x") as publisher:
                    publisher.publish_many([b"%d" % number for number in range(RECORDS)])
        running.wait_for(
            "node 2 knows what is committed",
            lambda: len(running.api(2).values_upto("orders", RECORDS)) == RECORDS,
        )
        running.freeze(0)  # Neither may notice the other's end.
        running.freeze(1)
        running.kill(0)
        running.kill(1)
        running.wait_for(
            "node 2 knows that nobody leads the metadata", lambda: controller(running) == -1
        )
        yield running


def controller(cluster: TestCluster) -> int:
    with Client(cluster.cluster.grpc_addresses[2]) as client:
        return client.describe_cluster().controller


@pytest.fixture
def jetstream(minority: TestCluster) -> Run:
    return minority.jetstream


def test_a_reader_of_the_leader_is_served_by_the_replica_that_is_left(
    minority: TestCluster,
) -> None:
    for _ in range(5):
        with Client(minority.servers, timeout=4) as client:
            assert client.fetch("orders", RECORDS - 1).offsets() == [RECORDS - 1]


def test_a_stream_whose_leader_holds_no_lease_is_served_by_it(minority: TestCluster) -> None:
    with Client(minority.servers, timeout=4) as client:
        assert len(client.fetch("kept", 0)) == RECORDS


@pytest.mark.parametrize("read_from", ["any", "nearest"])
def test_a_bounded_read_from_any_replica_ends_where_the_replica_does(
    jetstream: Run, read_from: str
) -> None:
    wished = ("--read-from", read_from, "--timeout", "4")
    assert jetstream("fetch", "orders", "--offset", "12", *wished).count("\n") == RECORDS - 12
    assert jetstream("fetch", "orders", "--max", "1", *wished).count("\n") == 1
    assert jetstream("fetch", "orders", "--from", "last:3", *wished).count("\n") == 3
    assert jetstream("export", "orders", *wished).count("\n") == RECORDS


def test_a_scan_and_a_query_from_any_replica_work(minority: TestCluster, jetstream: Run) -> None:
    pytest.importorskip("duckdb")
    with Client(minority.servers, timeout=4) as client:
        assert client.scan("orders", 0, read_from="any").to_table().num_rows == RECORDS
    counted = jetstream("sql", "select count(*) as n from orders", "--read-from", "any", "--json")
    assert json.loads(counted) == {"n": RECORDS}


def test_a_read_that_needs_the_leader_says_which_is_missing_and_what_to_do(jetstream: Run) -> None:
    said = jetstream("fetch", "orders", "--offset", "12", "--timeout", "2", code=4)
    assert said.startswith("error: node 1, leader of stream 'orders', cannot be reached: ")
    assert "--read-from any" in said


def test_a_publish_says_that_the_stream_has_no_leader_and_where_to_look(
    minority: TestCluster, jetstream: Run
) -> None:
    why = "stream 'orders' has no leader now that takes messages: see 'jetstream cluster health'"
    said = jetstream("publish", "orders.x", "v", "--timeout", "15", code=4)
    assert said == f"error: nobody listens on 'orders.x' at the moment: {why}\n"
    with (
        Client(minority.servers, timeout=3) as client,
        pytest.raises(UnavailableError, match=re.escape(why)),
    ):
        client.publisher("orders.x", delivery_timeout=3).send(b"v").result()


def test_what_a_server_says_is_told_and_not_that_the_others_are_dead(jetstream: Run) -> None:
    said = jetstream("stream", "create", "late", "--subject", "late.>", "--timeout", "3", code=4)
    assert "there is no metadata leader" in said


def test_a_stream_without_its_leader_is_described_as_far_as_it_is_known(jetstream: Run) -> None:
    row = json.loads(jetstream("stream", "describe", "orders", "--timeout", "2", "--json"))
    assert (row["leader"], sorted(row["isr"]), row["elr"]) == (1, [0, 1, 2], [])
    assert row["state"] == "unknown: node 1 does not answer as its leader"
    assert [row["high_watermark"], row["log_end_offset"], row["size_bytes"]] == [None] * 3
    shown = jetstream("stream", "describe", "orders", "--timeout", "2", "--all").splitlines()
    fields = dict(line.split(maxsplit=1) for line in shown)
    assert fields["isr"] == "nodes 0, 1, 2"
    assert (fields["high_watermark"], fields["hand_over_gap"]) == ("-", "-")


def test_without_a_controller_no_node_is_called_serving(jetstream: Run) -> None:
    status = json.loads(jetstream("cluster", "status", "--json"))
    assert [node["state"] for node in status["nodes"]] == ["unknown"] * 3
    shown = jetstream("cluster", "status")
    assert "serving" not in shown
    assert shown.count("unknown") == 3
