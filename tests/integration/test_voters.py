"""The voters of the metadata group change while real nodes work, die and come back."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator

import pytest

from jetstream_client import (
    Client,
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
    Voters,
)
from jetstream_protocol.errors import JetstreamError
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.support.stages import cluster_stage

from .test_unsafe_recover import folder, name_voters, refused_start, unsafe_recover

cluster = cluster_stage(4, scope="function")


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def agreed(cluster: TestCluster, client: Client, voters: tuple[int, ...]) -> Voters:
    """Change the voters by one, however often that has to be asked for."""
    found: list[Voters] = []

    def ask() -> bool:
        try:
            found.append(client.change_voters(voters))
        except UnavailableError:
            return False
        return True

    cluster.wait_for(f"the voters are {voters}", ask)
    return found[-1]


def changes(client: Client) -> None:
    """The metadata changes, on a majority of those who vote."""
    client.drain_node(3, undo=True)


def group_of(cluster: TestCluster, node: int) -> dict[str, object]:
    file = cluster.cluster.data(node) / "metadata" / "group.json"
    values: dict[str, object] = json.loads(file.read_text())
    return values


def test_a_dead_voter_is_replaced_under_load_and_nobody_restarts(
    cluster: TestCluster, client: Client
) -> None:
    client.create_stream("orders", "orders", replicas=3)
    dead = next(node for node in (2, 1) if node != client.list_voters().leader)
    load = Load(cluster.nats, "orders").start()
    try:
        load.wait_for_acks(100)
        cluster.kill(dead)
        told = cluster.jetstream("voters", "replace", str(dead), "3", "--yes")
        left = tuple(sorted({0, 1, 2, 3} - {dead}))
        assert told == f"the voters are {', '.join(map(str, left))}\n"
        load.wait_for_acks(100)
        # The new one makes a majority.
        also_dead = next(node for node in left if node not in (3, client.list_voters().leader))
        cluster.kill(also_dead)
        changes(client)
    finally:
        books = load.stop()
    cluster.restart(dead, also_dead)
    cluster.wait_for_isr("orders", list(client.describe_stream("orders").replicas))
    assert client.list_voters().nodes == left
    cluster.wait_for(
        "the returned node knows that it votes no more",
        lambda: str(dead) not in group_of(cluster, dead)["voters"],  # type: ignore[operator]
    )
    high = client.describe_stream("orders").high_watermark
    books.check(list(cluster.api(cluster.nodes[0]).values_upto("orders", high)))
    refused = cluster.jetstream("node", "remove", str(left[0]), "--yes", code=1)
    assert f"jetstream voters remove {left[0]}" in refused


def test_the_command_says_what_a_change_waits_for(cluster: TestCluster, client: Client) -> None:
    cluster.kill(3)
    asked = ("--server", cluster.servers, "voters", "add", "3", "--yes", "--timeout", "6")
    why = "the voters are not changed yet: node 3 has not caught up with the metadata leader"

    def is_told() -> bool:
        done = command.jetstream(*asked)
        # On a slow machine the cluster may be about something else first, or an answer come late.
        assert done.returncode in {4, 5}, done
        return (done.returncode, done.stderr) == (4, f"error: {why}\n")

    cluster.wait_for("the command says what the change waits for", is_told)
    assert client.list_voters().nodes == (0, 1, 2)


def test_three_voters_become_one_and_three_others(cluster: TestCluster, client: Client) -> None:
    for voters in ((0, 1), (0,), (0, 3), (0, 2, 3), (2, 3), (1, 2, 3)):
        found = agreed(cluster, client, voters)
        assert (found.nodes, found.is_committed) == (voters, True)
    with pytest.raises(InvalidRequestError, match="one at a time"):
        client.change_voters((0, 1))
    with pytest.raises(PreconditionFailedError, match="node 9 is no node of this cluster"):
        client.change_voters((1, 2, 3, 9))
    # All together, and those that the file names come up to others that vote.
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.restart(*cluster.nodes)
    cluster.wait_for("they vote", lambda: client.list_voters().nodes == (1, 2, 3))
    cluster.kill(0)
    changes(client)
    listed = json.loads(cluster.jetstream("voters", "list", "--json"))
    assert [voter["node"] for voter in listed["voters"]] == [1, 2, 3]
    told = json.loads(cluster.jetstream("cluster", "status", "--json"))["nodes"]
    assert {node["id"]: node["voter"] for node in told} == {0: False, 1: True, 2: True, 3: True}
    shown = cluster.jetstream("cluster", "status").splitlines()
    column = next(line.index("VOTER") for line in shown if line.startswith("NODE"))
    assert [line[column:].split()[0] for line in shown[-4:]] == ["no", "yes", "yes", "yes"]
    assert "configured_voters_ignored" in cluster.log(3)


def test_a_node_whose_folder_was_lost_finds_voters_that_its_file_does_not_name(
    cluster: TestCluster, client: Client
) -> None:
    for voters in ((0, 1), (0,), (0, 3), (3,)):
        agreed(cluster, client, voters)
    cluster.kill(2)
    shutil.rmtree(cluster.cluster.data(2))
    cluster.restart(2)
    cluster.wait_for("it knows", lambda: group_of(cluster, 2)["voters"] == {"3": raft(cluster, 3)})
    changes(client)


def test_a_leader_that_is_killed_in_the_middle_of_changes_stops_none(
    cluster: TestCluster, client: Client
) -> None:
    """They are repeated, and what had been agreed on stays."""
    client.create_stream("kept", "kept", replicas=3)
    client.publish("kept", b"1", msg_id="1")
    for wanted in ((0, 1, 2, 3), (1, 2, 3), (0, 1, 2, 3), (0, 2, 3)):
        leader = client.list_voters().leader
        asked = threading.Thread(target=change_or_fail, args=(client, wanted))
        asked.start()
        cluster.kill(leader)
        asked.join()
        cluster.restart(leader)
        assert agreed(cluster, client, wanted).nodes == wanted
    assert [message.value for message in client.fetch("kept")] == [b"1"]


def change_or_fail(client: Client, wanted: tuple[int, ...]) -> None:
    try:
        client.change_voters(wanted)
    except JetstreamError:
        pass  # It is asked for again.


def test_a_recovery_counts_whatever_voters_the_log_names(cluster: TestCluster) -> None:
    """Most of those that the log has named are lost for good."""
    with Client(cluster.servers, timeout=60) as client:
        for voters in ((0, 1, 2, 3), (0, 1, 3)):
            agreed(cluster, client, voters)
        cluster.wait_for("it is known", lambda: group_of(cluster, 3)["format"] == 2)
    for node in cluster.nodes:
        cluster.kill(node)
    name_voters(cluster, [3])
    plan = unsafe_recover(cluster, 3, "--yes")
    assert "voters of its metadata  0, 1, 3" in plan
    cluster.restart(3)
    with Client(cluster.cluster.grpc_addresses[3], timeout=60) as client:
        assert client.list_voters().nodes == (3,)
        changes(client)
        # Who follows anew reads of the lost ones in the log, and of the recovery after them.
        assert "recovered without this node" in refused_start(cluster, 2)
        shutil.move(folder(cluster, 2), folder(cluster, 2).with_suffix(".old"))
        cluster.restart(2)
        cluster.wait_for(
            "it knows", lambda: group_of(cluster, 2)["voters"] == {"3": raft(cluster, 3)}
        )
        agreed(cluster, client, (2, 3))
        cluster.kill(2)
        cluster.restart(2)
        changes(client)


def raft(cluster: TestCluster, node: int) -> str:
    address: str = cluster.cluster.config["nodes"][node]["raft"]
    return address
