"""What an operator asks of three nodes and tells them: status, hand-over, drain, lag."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jetstream_client import Client, PreconditionFailedError
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.stages import cluster_stage

cluster = cluster_stage(kind=PatientCluster)

Run = Callable[..., str]


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


@pytest.fixture
def jetstream(cluster: TestCluster) -> Run:
    return cluster.jetstream


def test_status_names_the_nodes_the_controller_and_nats(
    cluster: TestCluster, jetstream: Run
) -> None:
    status: dict[str, Any] = {}

    def all_serve() -> bool:
        status.update(json.loads(jetstream("cluster", "status", "--json")))
        return [node["state"] for node in status["nodes"]] == ["serving"] * 3

    cluster.wait_for("every node serves", all_serve)
    assert status["nats"] == [cluster.nats]
    assert status["controller"] in cluster.nodes
    assert [node["id"] for node in status["nodes"]] == cluster.nodes
    for node in status["nodes"]:
        assert {"id", "addresses", "rack", "incarnation", "fenced", "draining"} <= set(node)
        assert node["addresses"]["grpc"] == cluster.cluster.grpc_addresses[node["id"]]
        assert (node["fenced"], node["draining"]) == (False, False)
        assert node["incarnation"] > 0
        assert node["voter"] is True

    def is_shown() -> bool:
        shown = jetstream("cluster", "status")
        found = re.search(r"^controller +\d$", shown, re.MULTILINE)
        return found is not None and shown.count("serving") == 3

    cluster.wait_for("it is shown", is_shown)


def test_describe_shows_how_far_each_follower_has_come(
    cluster: TestCluster, client: Client, jetstream: Run
) -> None:
    client.create_stream("lagging", "lagging")
    for number in range(10):  # With an id it is sent again where a leader has lost its lease.
        client.publish("lagging", b"x", msg_id=f"before-{number}")
    followers: list[int] = []

    def is_told() -> bool:
        """Leaderships move by themselves, too."""
        row = json.loads(jetstream("stream", "describe", "lagging", "--json"))
        followers[:] = [node for node in cluster.nodes if node != row["leader"]]
        shown = jetstream("stream", "describe", "lagging", "--all")
        wanted = [{"node": node, "offset": 10, "lag": 0} for node in followers]
        return row["progress"] == wanted and f"node {followers[0]} at 10 (lag 0)" in shown

    cluster.wait_for("both followers have everything, and it is told", is_told)
    late, other = followers
    cluster.freeze(late)
    try:
        for number in range(5):
            client.publish("lagging", b"x", msg_id=f"after-{number}", timeout=60)

        def lags() -> dict[int, int]:
            return {each.node: each.lag for each in client.describe_stream("lagging").progress}

        cluster.wait_for(
            "the frozen one lags", lambda: lags().get(late) == 5 and lags().get(other, 0) == 0
        )
    finally:
        cluster.thaw(late)
    cluster.wait_for_isr("lagging", cluster.nodes)


def test_a_leadership_is_handed_over_and_only_to_who_can_lead(
    client: Client, cluster: TestCluster, jetstream: Run
) -> None:
    client.create_stream("handed", "handed")
    cluster.wait_for_isr("handed", cluster.nodes)
    before = client.describe_stream("handed")
    target = next(node for node in cluster.nodes if node != before.leader)
    said = jetstream("stream", "transfer-leader", "handed", str(target))
    assert said.startswith(f"node {target} leads handed")
    after = client.describe_stream("handed")
    assert (after.leader, after.leader_epoch > before.leader_epoch) == (target, True)
    assert client.publish("handed", b"x", msg_id="x").offset == 0
    again = json.loads(jetstream("stream", "transfer-leader", "handed", str(target), "--json"))
    assert again["leader_epoch"] == after.leader_epoch, "it leads already: nothing happens"
    assert "cannot lead" in jetstream("stream", "transfer-leader", "handed", "99", code=1)
    with pytest.raises(PreconditionFailedError):
        client.transfer_leader("handed", 99)
    assert "no stream" in jetstream("stream", "transfer-leader", "nobody", "0", code=3)


def test_a_drained_node_leads_nothing_until_that_is_undone(
    client: Client, cluster: TestCluster, jetstream: Run
) -> None:
    names = [f"drained-{number}" for number in range(6)]
    for name in names:
        client.create_stream(name, name)
    node = client.describe_stream(names[0]).leader
    alone = client.create_stream("drained-alone", "drained-alone", replicas=1)
    assert jetstream("node", "drain", str(node)) == f"node {node} is draining\n"
    said = jetstream("node", "drain", str(node), "--wait", "--timeout", "120")
    if alone.leader == node:
        assert said == f"node {node} leads only what nobody else can: {alone.full_name}\n"
    else:
        assert said == f"node {node} leads nothing\n"

    def led() -> set[int]:
        return {stream.leader for stream in client.list_streams() if stream.id != alone.id}

    assert node not in led()
    cluster.wait_for("all are led", lambda: -1 not in led())
    status = json.loads(jetstream("cluster", "status", "--json"))
    assert [each["draining"] for each in status["nodes"]] == [n == node for n in cluster.nodes]
    assert "draining" in jetstream("cluster", "status")
    for name in names:
        client.publish(name, b"x", msg_id="x")
    undone = json.loads(jetstream("node", "drain", str(node), "--undo", "--json"))
    assert undone == {"node": node, "draining": False}
    found = client.describe_cluster().node(node)
    assert found is not None
    assert not found.draining
    jetstream("node", "drain", "99", code=3)


def test_health_says_what_is_wrong_and_the_exit_code_says_it_too(
    client: Client, cluster: TestCluster
) -> None:
    for stream in client.list_streams():
        client.delete_stream(stream)  # Those that the frozen node led would be waited for.
    client.create_stream("healthy", "healthy", min_insync_replicas=3)
    client.commit_cursor("mine", "healthy", 0)

    def health() -> tuple[int, dict[str, Any]]:
        done = command.jetstream("--server", cluster.servers, "cluster", "health", "--json")
        return done.returncode, json.loads(done.stdout)

    cluster.wait_for(
        "all is well", lambda: health() == (0, {"healthy": True, "problems": [], "notes": []})
    )
    away = next(n for n in cluster.nodes if n != client.describe_stream("healthy").leader)
    cluster.freeze(away)
    try:
        code, found = 0, {}

        def is_told() -> bool:
            nonlocal code, found
            code, found = health()
            told = [(each["kind"], each["about"]) for each in found["problems"]]
            return told[:1] == [("node_fenced", str(away))] and {
                ("too_few_in_sync", "healthy@healthy"),
                ("out_of_sync", "__cursors"),
            } <= set(told)

        cluster.wait_for("it is fenced and out of sync", is_told)
        assert (code, found["healthy"]) == (7, False)
        kinds = {each["kind"]: each["reason"] for each in found["problems"]}
        assert f"2 of 3 needed replicas in sync, without node {away}" in kinds["too_few_in_sync"]

        def is_shown() -> bool:
            shown = command.jetstream("--server", cluster.servers, "cluster", "health").stdout
            return shown.startswith(f"not healthy:\n* node {away} is not heard")

        cluster.wait_for("it is shown first", is_shown)
    finally:
        cluster.thaw(away)
    cluster.wait_for_isr("healthy", cluster.nodes)
