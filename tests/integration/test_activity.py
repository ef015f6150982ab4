"""The stream of activity on real nodes: every change once and in order, whichever node dies
meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from jetstream_client import Client
from tests.support.cluster import TestCluster


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers) as client:
        yield client


def recorded(client: Client) -> list[dict[str, Any]]:
    messages = client.fetch("__activity", offset=0, max_messages=100_000)
    return [json.loads(message.value or b"") for message in messages]


def test_every_change_is_recorded_once_although_leaders_are_killed(
    client: Client, cluster: TestCluster
) -> None:
    said = cluster.jetstream("cluster", "record-activity")
    assert said.startswith("changes are written to __activity")
    assert client.record_activity().name == "__activity", "again is fine"
    names = []
    for turn in range(2):
        for number in range(4):
            names.append(f"s{turn}-{number}")
            client.create_stream(names[-1], names[-1])
        leader = client.describe_stream("__activity").leader
        cluster.kill(leader)  # What it led, and perhaps the controller.
        names.append(f"meanwhile-{turn}")
        client.create_stream(names[-1], names[-1], replicas=2)
        cluster.restart(leader)
        cluster.wait_for_isr("__activity", cluster.nodes)
    client.delete_stream(names[0])

    def is_complete() -> bool:
        found = recorded(client)
        return bool(found) and found[-1].get("stream", "").startswith(f"{names[0]}@")

    cluster.wait_for("the deletion is recorded", is_complete)
    time.sleep(0.3)  # Whatever were to come twice would come now.
    found = recorded(client)
    assert [event["sequence"] for event in found] == list(range(1, len(found) + 1))
    created = [e["stream"].partition("@")[0] for e in found if e["type"] == "stream_created"]
    assert created == ["__activity", *names]
    runs = [event for event in found if "incarnation" in event.get("changes", ())]
    assert len(runs) == 2, "each node that was started again"
    led = [event for event in found if "leader" in event.get("changes", ())]
    assert {event["stream"] for event in led} >= {"__activity"}
    query = "select count(*) as n from __activity where decode(value)->>'type' = 'stream_deleted'"
    assert json.loads(cluster.jetstream("sql", query, "--json"))["n"] == 1
