"""Two nodes of three are dead: what the one that is left can still tell and serve."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import pytest

from jetstream_client import Client, UnavailableError, UnknownOutcomeError
from tests.support import command
from tests.support.cluster import TestCluster, running_cluster

_T = TypeVar("_T")
Run = Callable[..., str]
RECORDS = 20
PATIENCES = (4, 16, 64)
"""Of who tries: two nodes of three take their shares, and the third may stand still."""


@pytest.fixture(scope="module")
def minority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Of `orders` all replicas are in sync; node 2 alone is left, and leads `kept`."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        with Client(running.servers, timeout=60) as client:
            wanted = {"orders": 1, "kept": 2}
            for name in wanted:
                client.create_stream(name, f"{name}.>")
                with client.publisher(f"{name}.x") as publisher:
                    publisher.publish_many([b"%d" % number for number in range(RECORDS)])

            def all_is_as_wanted() -> bool:
                """Leaderships move by themselves, too."""
                for name, leader in wanted.items():
                    if client.describe_stream(name).leader != leader:
                        client.transfer_leader(name, leader)
                        return False
                streams = [running.api(2).known(name) for name in wanted]
                return (
                    [each.leader for each in streams] == list(wanted.values())
                    and all(sorted(each.isr) == running.nodes for each in streams)
                    and len(running.api(2).values_upto("orders", RECORDS)) == RECORDS
                )

            running.wait_for("node 2 leads one, and knows the other", all_is_as_wanted)
        running.freeze(0)  # Neither may notice the other's end.
        running.freeze(1)
        running.kill(0)
        running.kill(1)
        running.wait_for(
            "node 2 knows that nobody leads the metadata", lambda: controller(running) == -1
        )
        yield running


def controller(cluster: TestCluster) -> int:
    with Client(cluster.cluster.grpc_addresses[2], timeout=60) as client:
        return client.describe_cluster().controller


@pytest.fixture
def jetstream(minority: TestCluster) -> Run:
    return minority.jetstream


def patiently(minority: TestCluster, read: Callable[[Client], _T]) -> _T:
    for seconds in PATIENCES:
        with Client(minority.servers, timeout=seconds) as client, suppress(UnavailableError):
            return read(client)
    raise AssertionError("the replica that is left does not serve")


def said_of(minority: TestCluster, *words: str) -> str:
    """What a command says that succeeds."""
    for seconds in PATIENCES:
        timeout = ("--timeout", str(seconds))
        done = command.jetstream(*words, "--server", minority.servers, *timeout)
        if done.returncode == 0:
            return done.stdout
    raise AssertionError(done)


def complaint_of(minority: TestCluster, words: str, *arguments: str) -> str:
    """What a command complains of that ends for lack of an answer, once it says these words."""
    for seconds in PATIENCES:
        timeout = ("--timeout", str(seconds))
        done = command.jetstream(*arguments, "--server", minority.servers, *timeout)
        # An attempt that is on its way when the time is over leaves the outcome unknown.
        assert done.returncode in (4, 5), done
        if done.returncode == 4 and words in done.stderr:
            return done.stderr
    raise AssertionError(done)


def test_a_reader_of_the_leader_is_served_by_the_replica_that_is_left(
    minority: TestCluster,
) -> None:
    for _ in range(5):
        found = patiently(minority, lambda client: client.fetch("orders", RECORDS - 1))
        assert found.offsets() == [RECORDS - 1]


def test_a_stream_whose_leader_holds_no_lease_is_served_by_it(minority: TestCluster) -> None:
    assert len(patiently(minority, lambda client: client.fetch("kept", 0))) == RECORDS


@pytest.mark.parametrize("read_from", ["any", "nearest"])
def test_a_bounded_read_from_any_replica_ends_where_the_replica_does(
    minority: TestCluster, read_from: str
) -> None:
    for words, count in (
        (("fetch", "orders", "--offset", "12"), RECORDS - 12),
        (("fetch", "orders", "--max", "1"), 1),
        (("fetch", "orders", "--from", "last:3"), 3),
        (("export", "orders"), RECORDS),
    ):
        assert said_of(minority, *words, "--read-from", read_from).count("\n") == count


def test_a_scan_and_a_query_from_any_replica_work(minority: TestCluster) -> None:
    pytest.importorskip("duckdb")
    table = patiently(minority, lambda own: own.scan("orders", 0, read_from="any").to_table())
    assert table.num_rows == RECORDS
    query = "select count(*) as n from orders"
    counted = said_of(minority, "sql", query, "--read-from", "any", "--json")
    assert json.loads(counted) == {"n": RECORDS}


def test_a_read_that_needs_the_leader_says_which_is_missing_and_what_to_do(
    minority: TestCluster,
) -> None:
    missing = "node 1, leader of stream 'orders', cannot be reached: "
    said = complaint_of(minority, missing, "fetch", "orders", "--offset", "12")
    assert said.startswith(f"error: {missing}")
    assert "--read-from any" in said


def test_a_publish_says_that_the_stream_has_no_leader_and_where_to_look(
    minority: TestCluster,
) -> None:
    why = "stream 'orders' has no leader now that takes messages: see 'jetstream cluster health'"
    said = complaint_of(minority, why, "publish", "orders.x", "v")
    assert said == f"error: nobody listens on 'orders.x' at the moment: {why}\n"
    with (
        Client(minority.servers, timeout=3) as client,
        # An attempt that is on its way when the time is over leaves the outcome unknown.
        pytest.raises((UnavailableError, UnknownOutcomeError), match=re.escape(why)),
    ):
        client.publisher("orders.x", delivery_timeout=3).send(b"v").result()


def test_what_a_server_says_is_told_and_not_that_the_others_are_dead(
    minority: TestCluster,
) -> None:
    create = ("stream", "create", "late", "--subject", "late.>")
    assert complaint_of(minority, "there is no metadata leader", *create)


def test_a_stream_without_its_leader_is_described_as_far_as_it_is_known(
    minority: TestCluster,
) -> None:
    row = json.loads(said_of(minority, "stream", "describe", "orders", "--json"))
    assert (row["leader"], sorted(row["isr"]), row["elr"]) == (1, [0, 1, 2], [])
    assert row["state"] == "unknown: node 1 does not answer as its leader"
    assert [row["high_watermark"], row["log_end_offset"], row["size_bytes"]] == [None] * 3
    shown = said_of(minority, "stream", "describe", "orders", "--all").splitlines()
    fields = dict(line.split(maxsplit=1) for line in shown)
    assert fields["isr"] == "nodes 0, 1, 2"
    assert (fields["high_watermark"], fields["hand_over_gap"]) == ("-", "-")


def test_without_a_controller_no_node_is_called_serving(
    minority: TestCluster, jetstream: Run
) -> None:
    status = json.loads(jetstream("cluster", "status", "--json"))
    assert [node["state"] for node in status["nodes"]] == ["unknown"] * 3

    def reasons() -> list[list[str]]:
        nodes = json.loads(jetstream("cluster", "status", "--json"))["nodes"]
        return [node["not_ready"] for node in nodes]

    minority.wait_for("each has a reason", lambda: all(reasons()))
    assert reasons()[:2] == [["does not answer node 2"]] * 2
    shown = jetstream("cluster", "status")
    assert "serving" not in shown
    assert shown.count("unknown (") == 3
    assert "none: most of the voters, nodes 0, 1, 2, must run and reach each other" in shown
