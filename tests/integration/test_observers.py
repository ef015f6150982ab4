"""Observers on real nodes: they serve readers nearby, nothing waits for them, they are promoted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client, Stream
from tests.support import command
from tests.support.browser import Page, browser, needs_chromium
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.stages import cluster_stage

RACKS = ("east", "east", "east", "far")
FAR = 3


cluster = cluster_stage(len(RACKS), RACKS, kind=PatientCluster)
"""Node 3 is in another rack."""


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def level(cluster: TestCluster) -> None:
    """Every node understands observers, and the controller has noticed that."""
    with Client(cluster.servers, timeout=60) as client:
        cluster.wait_for(
            "streams can have observers",
            lambda: bool(client.create_stream("first", "first", replicas=1, observers=1)),
        )


def observed(cluster: TestCluster, client: Client, name: str) -> Stream:
    """On two nodes of the east, observed by the far one."""
    stream = client.create_stream(name, name, replicas=2)
    client.reassign_stream(stream, [0, 1], observers=[FAR])
    cluster.wait_for("it is in the east", lambda: client.describe_stream(stream).replicas == (0, 1))
    return client.describe_stream(stream)


def follows(cluster: TestCluster, client: Client, name: str) -> None:
    cluster.wait_for(
        "the observer has everything",
        lambda: any(
            each.node == FAR and each.lag == 0 for each in client.describe_stream(name).progress
        ),
    )


def test_a_reader_nearby_reads_from_the_observer(cluster: TestCluster, client: Client) -> None:
    stream = observed(cluster, client, "near")
    assert stream.observers == (FAR,)
    assert FAR not in (*stream.replicas, *stream.isr)
    client.publish("near", b"1", msg_id="1")
    follows(cluster, client, "near")
    with Client(cluster.servers, timeout=60, rack="far") as reader:
        found = reader.fetch("near", 0, read_from="nearest", max_wait=60.0)
        assert found.values() == [b"1"]
        routes = reader._client._reader._data._routes
        assert (
            routes._chosen[(stream.id, "", ""), "nearest"]
            == (cluster.cluster.config["nodes"][FAR]["data"])
        )
    described = json.loads(cluster.jetstream("stream", "describe", "near", "--json"))
    assert described["observers"] == [FAR]
    assert "2/2+1" in cluster.jetstream("stream", "list")


def test_nothing_waits_for_an_observer_that_is_gone(cluster: TestCluster, client: Client) -> None:
    stream = observed(cluster, client, "alone")
    client.publish("alone", b"before", msg_id="before")
    follows(cluster, client, "alone")
    cluster.kill(FAR)
    try:
        for number in range(20):
            client.publish("alone", b"%d" % number, msg_id=f"{number}")
        found = client.describe_stream("alone")
        assert (found.isr, found.high_watermark) == (stream.isr, 21)
        health = ("--server", cluster.servers, "cluster", "health", "--all")
        complaint = f"stream alone@alone: its observer on node {FAR} does not follow"
        # Any node may answer, also one that has not heard yet that the observer is missed.
        cluster.wait_for("it is told", lambda: complaint in command.jetstream(*health).stdout)
    finally:
        cluster.restart(FAR)
    follows(cluster, client, "alone")
    assert len(cluster.api(FAR).values_upto("alone", 21)) == 21


def test_it_is_promoted_and_takes_the_place_of_a_replica(
    cluster: TestCluster, client: Client
) -> None:
    stream = observed(cluster, client, "promoted")
    client.publish("promoted", b"1", msg_id="1")
    gone, kept = stream.replicas
    if gone == stream.leader:
        gone, kept = kept, gone
    cluster.jetstream(
        *("stream", "reassign", "promoted", "--replicas", f"{kept},{FAR}"),
        *("--observers", str(gone), "--yes"),
    )
    # Its leader may apply the end of the move a moment later than the node that was asked.
    cluster.wait_for(
        "its leader knows",
        lambda: client.describe_stream("promoted").replicas == tuple(sorted((kept, FAR))),
    )
    found = client.describe_stream("promoted")
    assert set(found.isr) == {kept, FAR}
    assert found.observers == (gone,)
    client.transfer_leader("promoted", FAR)
    assert client.publish("promoted", b"2", msg_id="2").offset == 1
    assert client.fetch("promoted").values() == [b"1", b"2"]
    cluster.jetstream("stream", "reassign", "promoted", "--observers", "none", "--yes")
    cluster.wait_for(
        "it has no observer", lambda: client.describe_stream("promoted").observers == ()
    )


def test_their_number_is_altered_and_a_node_that_is_emptied_gives_them_away(
    cluster: TestCluster, client: Client
) -> None:
    stream = client.create_stream("counted", "counted", replicas=1)
    altered = client.alter_stream(stream, observers=2, max_messages=1000)
    assert len(altered.observers) == 2
    assert altered.max_messages == 1000
    again = client.alter_stream(stream, observers=2)
    assert again == altered
    given = altered.observers[0]
    moves = client.plan_reassignment(drain=given)
    (move,) = [each for each in moves if each.stream.id == stream.id]
    assert move.observers is not None
    assert given not in (*move.replicas, *move.observers)
    assert len(move.observers) == 2
    moved = client.reassign_stream(stream, move.replicas, observers=move.observers)
    assert moved.observers == move.observers
    assert client.alter_stream(stream, observers=0).observers == ()


@pytest.mark.parametrize("backup", ["folder", "file.parquet"])
def test_a_restored_stream_has_as_many_observers_as_before(
    cluster: TestCluster, client: Client, tmp_path: Path, backup: str
) -> None:
    client.create_stream("saved", "saved", replicas=1, observers=2)
    client.publish("saved", b"x", msg_id="x")
    run, to = cluster.jetstream, str(tmp_path / backup)
    run("stream", "backup", "saved", to)
    run("stream", "restore", to, "again", "--subject", "again")
    run("stream", "restore", to, "fewer", "--subject", "fewer", "--observers", "0")
    found = {name: client.describe_stream(name).observers for name in ("again", "fewer")}
    assert {name: len(observers) for name, observers in found.items()} == {"again": 2, "fewer": 0}
    for name in ("saved", "again", "fewer"):
        client.delete_stream(name)


@needs_chromium
def test_they_are_created_named_and_promoted_in_the_console(
    cluster: TestCluster, client: Client, tmp_path: Path
) -> None:
    async def fill(page: Page, button: str, **fields: str) -> str:
        """Open a dialog, fill it in and send it. Returns the command that it shows."""
        await page.until(f"document.getElementById('{button}')")
        await page.value(f"document.getElementById('{button}').click()")
        for field, value in fields.items():
            found = f"document.querySelector('dialog [name={field}]')"
            await page.value(f"{found}.value = {json.dumps(value)}")
        form = "document.querySelector('dialog form')"
        await page.value(f"{form}.dispatchEvent(new Event('input', {{bubbles: true}}))")
        shown = str(await page.value("document.querySelector('dialog code').textContent"))
        await page.value(f"{form}.requestSubmit()")
        await page.until("!document.getElementById('dialog').open")
        return shown

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"{http}/#/streams")
            await page.until("document.getElementById('search')")
            await page.value("document.getElementById('changes').click()")
            made = {"name": "shown", "subject": "shown", "replicas": "2", "observers": "1"}
            assert (await fill(page, "create", **made)).endswith("--replicas 2 --observers 1")
            stream = client.describe_stream("shown")
            assert (len(stream.replicas), len(stream.observers)) == (2, 1)
            await page.value("location.hash = '#/streams/shown@shown'")
            shown = await fill(page, "reassign", replicas="0, 1", observers="3")
            assert shown.endswith("reassign shown@shown --replicas 0,1 --observers 3")
            await asyncio.to_thread(_wait_for_nodes, cluster, client, (0, 1), (3,))
            shown = await fill(page, "reassign", replicas="0,1,3")
            assert shown.endswith("reassign shown@shown --replicas 0,1,3")
            await asyncio.to_thread(_wait_for_nodes, cluster, client, (0, 1, 3), ())
            text = "document.querySelector('#main').innerText"
            moving = f"/observer|out of sync|Moves to nodes/.test({text})"
            await page.until(f"!{moving}")  # Otherwise it would alter what has changed since.
            assert (await fill(page, "alter", observers="1")).endswith("--observers 1")
            assert client.describe_stream("shown").observers == (2,)
            await page.until(f"{text}.includes('observer')")
            assert page.problems == []

    http = f"http://{client.describe_cluster().nodes[0].http}"
    asyncio.run(walk())
    client.delete_stream("shown")


def _wait_for_nodes(
    cluster: TestCluster, client: Client, replicas: tuple[int, ...], observers: tuple[int, ...]
) -> None:
    def is_there() -> bool:
        stream = client.describe_stream("shown")
        found = (stream.replicas, stream.observers, stream.target_replicas)
        return found == (replicas, observers, ())

    cluster.wait_for("the stream is where it should be", is_there)
