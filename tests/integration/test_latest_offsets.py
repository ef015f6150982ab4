"""A leader that has just been elected, after all nodes were killed: `latest`, and purges."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client, Last, UnavailableError
from jetstream_client.migration.backup import back_up
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated.common_pb2 import StreamRef
from tests.support import command as command_line
from tests.support.api import call
from tests.support.cluster import TestCluster

RECORDS = 10
_Query = pb.ListOffsetsRequest.Query


def list_offsets(cluster: TestCluster, node: int) -> list[pb.ListOffsetsResponse.Result]:
    """Of `earliest` and `latest`."""
    ref = StreamRef(name="orders")
    asked = [_Query(stream=ref, earliest=True), _Query(stream=ref, latest=True)]
    return list(
        call(cluster.api(node).reads.ListOffsets, pb.ListOffsetsRequest(queries=asked)).results
    )


def console(cluster: TestCluster, node: int, path: str) -> Any:
    address = cluster.cluster.config["nodes"][node]["http"]
    with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=20) as answer:
        return json.load(answer)


def test_latest_is_refused_until_the_leader_knows_what_was_committed(
    cluster: TestCluster, tmp_path: Path
) -> None:
    with Client(cluster.servers) as client:
        stream = client.create_stream("orders", "orders", replicas=2, min_insync_replicas=2)
        for number in range(RECORDS):
            client.publish("orders", b"%d" % number)
        client.commit_cursor("billing", "orders", RECORDS - 1)
    leader, other = stream.replicas
    outside = next(node for node in cluster.nodes if node not in stream.replicas)
    for node in cluster.nodes:
        cluster.kill(node)
    cluster.restart(leader, outside)
    cluster.wait_for(
        "it leads, below its minimum",
        lambda: list(cluster.describe("orders", [leader]).stream.isr) == [leader],
    )

    earliest, latest = list_offsets(cluster, leader)
    assert (earliest.offset, earliest.HasField("error")) == (0, False)
    assert (latest.error.code, latest.error.retriable) == ("unavailable", True)
    assert "2 replicas must be in sync (now 1)" in latest.error.message
    backup = tmp_path / "backup"
    with Client(cluster.servers, timeout=2) as client:
        for position in ("latest", Last(3)):
            with pytest.raises(UnavailableError, match="where its committed records end"):
                client.offset_at("orders", position)
        assert client.offset_at("orders", "earliest") == 0
        described = client.describe_stream("orders")
        assert (described.leader, described.log_end_offset) == (leader, RECORDS)
        with pytest.raises(UnavailableError, match="where its committed records end"):
            back_up(client, "orders", backup, lambda offsets: None)
    assert not backup.exists()
    purge = pb.PurgeStreamRequest(stream=StreamRef(name="orders"))
    with pytest.raises(UnavailableError, match="where its committed records end"):
        call(cluster.api(leader).streams.PurgeStream, purge)
    for command in (("stream", "list"), ("stream", "describe", "orders")):
        assert "orders" in cluster.jetstream(*command)
    health = command_line.jetstream("--server", cluster.servers, "cluster", "health")
    assert f"node {other} " in health.stdout
    assert "stream orders@orders" in health.stdout
    billing = json.loads(cluster.jetstream("cursor", "describe", "billing", "orders", "--json"))
    assert billing["state"] == "current"
    page = console(cluster, leader, "streams/orders/messages")
    assert (page["messages"], page["high_watermark"]) == ([], 0)
    (billing,) = console(cluster, leader, "cursors")["cursors"]
    assert (billing["state"], billing["lag"]) == ("current", None)

    with Client(cluster.servers, timeout=60) as client:
        cluster.restart(other)
        assert client.offset_at("orders", "latest") == RECORDS
        assert client.offset_at("orders", Last(3)) == RECORDS - 3
        assert back_up(client, "orders", backup, lambda offsets: None).records == RECORDS
    page = console(cluster, leader, "streams/orders/messages")
    assert [each["offset"] for each in page["messages"]] == list(range(RECORDS))
