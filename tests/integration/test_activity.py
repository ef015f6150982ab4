"""The stream of activity on real nodes: every change once and in order, whichever node dies
meanwhile."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client, NotFoundError, UnavailableError
from tests.support.cluster import TestCluster, running_cluster


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def recorded(client: Client) -> list[dict[str, Any]]:
    messages = client.fetch("__activity", start=0, max_messages=100_000)
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
        return any(event["type"] == "stream_deleted" for event in recorded(client))

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


def test_every_change_of_a_cursor_is_recorded_once_although_its_leader_is_killed(
    client: Client, cluster: TestCluster
) -> None:
    """Cursors are created, moved and deleted without a pause while the leader of `__cursors` is
    killed: between the commit of a cursor and its event, too."""
    client.create_stream("orders", "orders")
    client.record_activity()
    done: list[str] = []
    stop = threading.Event()

    def work() -> None:
        with Client(cluster.servers, timeout=60) as client:
            for number in itertools.count():
                if stop.is_set():
                    return
                name = f"c{number}"
                until_done(lambda name=name: client.commit_cursor(name, "orders", 0))  # type: ignore[misc]
                if number % 3 == 0:
                    until_done(lambda name=name: client.commit_cursor(name, "orders", 7))  # type: ignore[misc]
                elif number % 3 == 1:
                    until_done(lambda name=name: client.delete_cursor(name, "orders"))  # type: ignore[misc]
                done.append(name)

    with ThreadPoolExecutor() as threads:
        working = threads.submit(work)
        try:
            for _ in range(2):
                known = len(done)
                cluster.wait_for("cursors are made", lambda: len(done) > known + 20)  # noqa: B023
                leader = cluster.settled("__cursors").stream.leader
                cluster.kill(leader)
                known = len(done)
                cluster.wait_for("another one leads", lambda: len(done) > known + 5)  # noqa: B023
                cluster.restart(leader)
                cluster.wait_for_isr("__cursors", cluster.nodes)
        finally:
            stop.set()
        working.result()
    client.commit_cursor("last", "orders", 0)

    def is_complete() -> bool:
        return any(event.get("cursor") == "last" for event in recorded(client))

    cluster.wait_for("the last event is recorded", is_complete)
    found = [each for each in recorded(client) if "cursor" in each and each["cursor"] != "mine"]
    expected = Counter({("cursor_created", "last"): 1})
    for number, name in enumerate(done):
        expected["cursor_created", name] += 1
        if number % 3 == 0:
            expected["cursor_moved", name] += 1
        elif number % 3 == 1:
            expected["cursor_deleted", name] += 1
    assert Counter((event["type"], event["cursor"]) for event in found) == expected
    assert {event["stream"] for event in found} == {"orders@orders"}
    moved = [event["changes"] for event in found if event["type"] == "cursor_moved"]
    assert moved[0] == {"offset": {"before": 0, "after": 7}}


def until_done(change: Callable[[], object]) -> None:
    """Repeat a change until it is known to be made."""
    while True:
        try:
            change()
        except NotFoundError:
            return  # An earlier attempt has deleted it.
        except UnavailableError:
            time.sleep(0.05)
        else:
            return


def test_a_consumer_is_recorded_when_its_cursor_is_created_and_not_when_it_commits(
    client: Client, cluster: TestCluster
) -> None:
    client.record_activity()
    client.create_stream("invoices", "invoices")
    for number in range(30):
        client.publish("invoices", b"%d" % number, msg_id=str(number))
    with client.consume("invoices", cursor="mine") as consumer:
        for _ in range(30):
            next(consumer)
            consumer.commit()
    client.seek_cursor("mine", "invoices", 5)
    client.delete_cursor("mine", "invoices")

    def told() -> list[str]:
        return [event["type"] for event in recorded(client) if event.get("cursor") == "mine"]

    every = ["cursor_created", "cursor_moved", "cursor_deleted"]
    cluster.wait_for("the deletion is recorded", lambda: told()[-1:] == every[-1:])
    assert told() == every
    query = (
        "select decode(value)->>'cursor' as cursor, decode(value)->'changes'->'offset' as moved "
        "from __activity where decode(value)->>'type' = 'cursor_moved'"
    )
    found = [json.loads(line) for line in cluster.jetstream("sql", query, "--json").splitlines()]
    assert {"cursor": "mine", "moved": '{"before":30,"after":5}'} in found


def test_recording_has_begun_once_the_leader_of_the_cursors_knows(tmp_path: Path) -> None:
    with running_cluster(tmp_path) as cluster, Client(cluster.servers, timeout=60) as client:
        client.create_stream("orders", "orders")
        client.commit_cursor("mine", "orders", 0)
        controller = client.describe_cluster().controller
        leader, other = (node for node in cluster.nodes if node != controller)
        if client.describe_stream("__cursors").leader != leader:
            client.transfer_leader("__cursors", leader)
        cluster.wait_for_isr("__cursors", cluster.nodes)
        with (
            Client(cluster.cluster.grpc_addresses[other], timeout=60) as asking,
            ThreadPoolExecutor() as threads,
        ):
            cluster.freeze(leader)
            try:
                recording = threads.submit(asking.record_activity)
                cluster.wait_for(
                    "the stream is there", lambda: "__activity" in names_known_to(cluster, other)
                )
                time.sleep(0.2)
                # In this order: another leader of the cursors may know it.
                has_begun = recording.done()
                assert not has_begun or leader_known_to(cluster, other) != leader
            finally:
                cluster.thaw(leader)
            recording.result()
        client.commit_cursor("mine", "orders", 7)
        cluster.wait_for(
            "it is recorded",
            lambda: any(event["type"] == "cursor_moved" for event in recorded(client)),
        )


def names_known_to(cluster: TestCluster, node: int) -> list[str]:
    with Client(cluster.cluster.grpc_addresses[node], timeout=60) as client:
        return [stream.name for stream in client.list_streams(internal=True)]


def leader_known_to(cluster: TestCluster, node: int) -> int:
    """Of the cursors."""
    with Client(cluster.cluster.grpc_addresses[node], timeout=60) as client:
        streams = client.list_streams(internal=True)
        return next(stream.leader for stream in streams if stream.name == "__cursors")
