"""A leader that has just been elected, after all nodes were killed: `latest`, purges, lags."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client, JetstreamError, Last, UnavailableError
from jetstream_client.migration.backup import back_up
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated.common_pb2 import StreamRef
from tests.support import command as command_line
from tests.support.api import call
from tests.support.browser import browser, needs_chromium
from tests.support.cluster import TestCluster
from tests.support.patient_server import PatientCluster
from tests.support.stages import cluster_stage

cluster = cluster_stage(kind=PatientCluster)

RECORDS = 10
_Query = pb.ListOffsetsRequest.Query


def list_offsets(cluster: TestCluster, node: int) -> list[pb.ListOffsetsResponse.Result]:
    """Of `earliest` and `latest`."""
    ref = StreamRef(name="orders")
    asked = [_Query(stream=ref, earliest=True), _Query(stream=ref, latest=True)]
    return list(
        call(cluster.api(node).reads.ListOffsets, pb.ListOffsetsRequest(queries=asked)).results
    )


def over_http(cluster: TestCluster, node: int, path: str) -> list[Any]:
    """The lines of the answer."""
    address = cluster.cluster.config["nodes"][node]["http"]
    with urllib.request.urlopen(f"http://{address}/v1/{path}", timeout=60) as answer:
        return list(map(json.loads, answer))


@pytest.fixture
def replicas(cluster: TestCluster) -> Iterator[tuple[int, ...]]:
    """The nodes of the replicas of `orders`, a stream of the group `sold`. The last of them is
    down; the first leads, and all nodes were killed. Of its records the cursor `billing` has one to
    read yet, and `workers` have committed nothing."""
    with Client(cluster.servers, timeout=60) as client:
        stream = client.create_stream(
            "orders", "orders", replicas=2, min_insync_replicas=2, group="sold"
        )
        for number in range(RECORDS):
            client.publish("orders", b"%d" % number, msg_id=f"m{number}")
        client.seek_cursor("billing", "orders", RECORDS - 1)
        with client.consume_group("sold", "workers", auto_commit=False) as member:
            next(member)  # It has joined.
        leader, other = stream.replicas
        client.transfer_leader(stream, leader)  # One that stood still may have lost it.
        cluster.wait_for_isr("orders", [leader, other])
        for node in cluster.nodes:
            cluster.kill(node)
        cluster.restart(*(node for node in cluster.nodes if node != other))
        cluster.wait_for(
            "it leads, below its minimum",
            lambda: list(cluster.describe("orders", [leader]).stream.isr) == [leader],
        )
        yield stream.replicas
        client.delete_stream(stream)


def shown(cluster: TestCluster) -> list[str]:
    """What the command line shows: the stream's records, then LAG and BEHIND of the cursor, and of
    the group."""
    commands = (("stream", "list"), ("cursor", "list"), ("group", "describe", "workers"))
    listed, cursors, shares = (cluster.jetstream(*command).splitlines() for command in commands)
    (stream,) = (line.split() for line in listed if line.startswith("orders "))
    (cursor,) = (line.split() for line in cursors if line.startswith("billing "))
    (share,) = (line.split() for line in shares if line.startswith("orders@orders "))
    return [stream[5], *cursor[3:5], *share[3:]]


def refused(cluster: TestCluster, ask: Callable[[], object]) -> None:
    """It is never answered, and the leader says why; one that stands still is asked once more."""

    def is_told() -> bool:
        with pytest.raises(JetstreamError) as refusal:
            ask()
        return "where its committed records end" in refusal.value.message

    cluster.wait_for("the leader says why", is_told)


def test_latest_is_refused_until_the_leader_knows_what_was_committed(
    cluster: TestCluster, replicas: tuple[int, ...], tmp_path: Path
) -> None:
    leader, other = replicas
    earliest, latest = list_offsets(cluster, leader)
    assert (earliest.offset, earliest.HasField("error")) == (0, False)
    assert (latest.error.code, latest.error.retriable) == ("unavailable", True)
    assert "2 replicas must be in sync (now 1)" in latest.error.message
    backup = tmp_path / "backup"
    with Client(cluster.servers, timeout=60) as client, Client(cluster.servers, timeout=5) as hasty:
        for position in ("latest", Last(3)):
            refused(cluster, lambda position=position: hasty.offset_at("orders", position))  # type: ignore[misc]
        assert client.offset_at("orders", "earliest") == 0
        described = client.describe_stream("orders")
        assert (described.leader, described.log_end_offset) == (leader, RECORDS)
        refused(cluster, lambda: back_up(hasty, "orders", backup, lambda offsets: None))
    assert not backup.exists()
    purge = pb.PurgeStreamRequest(stream=StreamRef(name="orders"))
    with pytest.raises(UnavailableError, match="where its committed records end"):
        call(cluster.api(leader).streams.PurgeStream, purge)
    assert over_http(cluster, leader, "streams/orders/records?from=-9") == []

    with Client(cluster.servers, timeout=60) as client:
        cluster.restart(other)
        assert client.offset_at("orders", "latest") == RECORDS
        assert client.offset_at("orders", Last(3)) == RECORDS - 3
        assert back_up(client, "orders", backup, lambda offsets: None).records == RECORDS
    rows = over_http(cluster, leader, f"streams/orders/records?from=-{RECORDS}")
    assert [each["offset"] for each in rows] == list(range(RECORDS))


def test_no_lag_is_shown_until_the_leader_knows_what_was_committed(
    cluster: TestCluster, replicas: tuple[int, ...]
) -> None:
    leader, other = replicas
    assert shown(cluster) == ["-"] * 5
    row = json.loads(cluster.jetstream("cursor", "describe", "billing", "orders", "--json"))
    assert (row["state"], row["log_start_offset"]) == ("current", 0)
    assert (row["high_watermark"], row["lag"], row["lag_seconds"]) == (None, None, None)
    described = json.loads(cluster.jetstream("stream", "describe", "orders", "--json"))
    assert (described["high_watermark"], described["log_end_offset"]) == (None, RECORDS)
    health = command_line.jetstream("--server", cluster.servers, "cluster", "health")
    assert f"node {other} " in health.stdout
    assert "stream orders@orders" in health.stdout
    (billing,) = over_http(cluster, leader, "cursors")[0]["cursors"]
    assert (billing["state"], billing["lag"]) == ("current", None)
    for node in (leader, next(node for node in cluster.nodes if node not in replicas)):
        (listed,) = over_http(cluster, node, "streams")[0]["streams"]
        assert (listed["high_watermark"], listed["log_end_offset"]) == (None, RECORDS)

    cluster.restart(other)
    with Client(cluster.servers, timeout=60) as client:
        assert client.offset_at("orders", "latest") == RECORDS
        assert client.describe_stream("orders").high_watermark == RECORDS
        assert client.describe_cursor("billing", "orders").lag == 1
    assert shown(cluster)[:2] == [str(RECORDS), "1"]
    assert shown(cluster)[3:] == [str(RECORDS), "-"]
    (listed,) = over_http(cluster, leader, "streams")[0]["streams"]
    assert listed["high_watermark"] == RECORDS


@needs_chromium
def test_the_console_makes_up_no_records_before_the_leader_knows_what_was_committed(
    cluster: TestCluster, replicas: tuple[int, ...], tmp_path: Path
) -> None:
    leader, other = replicas
    address = cluster.cluster.config["nodes"][leader]["http"]

    async def walk() -> None:
        async with browser(tmp_path) as page:
            await page.open(f"http://{address}/#/streams/orders")
            cards = "document.querySelector('.cards')"
            said = "RecordsunknownOffsets0 – unknown"
            await page.until(f"{cards} && {cards}.textContent.includes('{said}')")
            assert "Not committedunknown" in await page.value(f"{cards}.textContent")
            assert page.problems == []

    asyncio.run(walk())
    cluster.restart(other)
