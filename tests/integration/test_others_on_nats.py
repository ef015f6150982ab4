"""Another cluster, or NATS JetStream, hears the same subjects on the same NATS server: what it
acknowledges is not stored in our cluster."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import nats
import pytest

from jetstream_client import Client, UnavailableError, UnknownOutcomeError
from jetstream_protocol.ack_cluster import mark_of
from jetstream_protocol.generated import api_pb2 as pb
from tests.support.api import Api, raw_nats
from tests.support.loops import on_loop
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server

WAYS: tuple[Literal["nats", "direct"], ...] = ("nats", "direct")


@pytest.fixture
def nats_server(tmp_path: Path) -> Iterator[NatsServer]:
    with NatsServer(f'jetstream {{ store_dir: "{tmp_path}/js" }}') as server:
        yield server


@contextmanager
def server_on(nats_server: NatsServer, folder: Path) -> Iterator[ServerProcess]:
    """A cluster of one node, with a stream. It has told its node that all acks name it."""
    with running_server(folder, "--nats", nats_server.url) as server:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
        api = Api(server.grpc)
        deadline = time.monotonic() + 60
        while not api.streams.ListStreams(pb.ListStreamsRequest()).ack_cluster:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        api.close()
        yield server


@contextmanager
def frozen(server: ServerProcess) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def check_nothing_counts_while_frozen(server: ServerProcess) -> None:
    with Client(server.grpc) as client:
        assert client.publish("orders.eu", b"known").offset == 0
        with client.publisher("orders.eu", delivery_timeout=6.0) as publisher:
            assert publisher.send(b"known too").result().offset == 1
            with frozen(server):
                with pytest.raises(UnknownOutcomeError, match="something else acknowledges"):
                    client.publish("orders.eu", b"plain", timeout=6)
                delivery = publisher.send(b"in a batch")
                with pytest.raises(
                    (UnknownOutcomeError, UnavailableError), match="something else acknowledges"
                ):
                    delivery.result()
                delivery = publisher.send(b"later")
            assert delivery.result().stream == "orders"
        result = client.publish("orders.eu", b"afterwards")
        stored = client.fetch("orders", start=0).values()
        assert stored[result.offset] == b"afterwards"


def test_an_ack_of_another_cluster_does_not_count(nats_server: NatsServer, tmp_path: Path) -> None:
    with server_on(nats_server, tmp_path / "a") as ours, server_on(nats_server, tmp_path / "b"):
        check_nothing_counts_while_frozen(ours)


def test_both_ways_say_where_the_records_are_in_the_publisher_s_own_cluster(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    """The other cluster has the same stream, and other offsets: it answers too, in any order."""
    with (
        server_on(nats_server, tmp_path / "a") as ours,
        server_on(nats_server, tmp_path / "b") as others,
        Client(ours.grpc, timeout=60) as client,
        Client(others.grpc, timeout=60) as other,
    ):
        with other.publisher("orders.eu", via="direct") as publisher:
            publisher.publish_many([b"theirs"] * 7)
        told: dict[bytes, int] = {}
        for number in range(50):
            value = b"plain %d" % number
            told[value] = client.publish("orders.eu", value).offset
            via = WAYS[number % 2]
            with client.publisher("orders.eu", via=via, producer_id=number) as publisher:
                value = f"{via} {number}".encode()
                told[value] = publisher.send(value).result().offset
        for via in WAYS:  # The other way now: nothing is stored again.
            with client.publisher("orders.eu", via=via, producer_id=0) as publisher:
                again = publisher.send(b"nats 0").result()
            assert (again.offset, again.duplicate) == (told[b"nats 0"], True)
        stored = client.fetch("orders", start=0).values()
        assert sorted(told.values()) == list(range(100))
        assert {value: stored[offset] for value, offset in told.items()} == {
            value: value for value in told
        }
        theirs = other.fetch("orders", start=0).values()
        assert [value for value in theirs if value and value.startswith(b"direct")] == []
        with client.publisher("orders.eu", via="direct", delivery_timeout=6.0) as publisher:
            publisher.send(b"before").result()
            with frozen(ours):
                delivery = publisher.send(b"to nobody else")
                with pytest.raises((UnknownOutcomeError, UnavailableError)):
                    delivery.result()
        assert b"to nobody else" not in other.fetch("orders", start=0).values()


@on_loop
async def test_an_ack_of_nats_jetstream_does_not_count(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    client = await nats.connect(nats_server.url)
    try:
        await client.jetstream(timeout=60).add_stream(name="orders", subjects=["orders.>"])
    finally:
        await client.close()
    with server_on(nats_server, tmp_path / "a") as ours:
        check_nothing_counts_while_frozen(ours)


def test_a_node_says_that_publishers_of_another_cluster_use_its_subjects(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    with (
        server_on(nats_server, tmp_path / "a") as ours,
        server_on(nats_server, tmp_path / "b") as others,
        Client(ours.grpc, timeout=60) as client,
    ):
        client.publish("orders.eu", b"plain")
        with client.publisher("orders.eu") as publisher:
            publisher.send(b"in a batch").result()
        id_, other_id = client.describe_cluster().cluster_id, cluster_id(others)
        deadline = time.monotonic() + 60
        while not warnings(others) and time.monotonic() < deadline:
            time.sleep(0.05)
        ((stream, cluster, other),) = warnings(others)
        assert (stream, cluster, other) == ("orders@orders.>", mark_of(other_id), mark_of(id_))
        assert warnings(ours) == []


def test_groups_of_one_name_in_two_clusters_share_no_messages(
    nats_server: NatsServer, tmp_path: Path
) -> None:
    with (
        server_on(nats_server, tmp_path / "a") as ours,
        server_on(nats_server, tmp_path / "b") as others,
        Client(ours.grpc, timeout=60) as client,
        Client(others.grpc, timeout=60) as other,
    ):
        for each in (client, other):
            each.create_stream("jobs-0", "jobs", group="jobs")
        values = [b"%d" % number for number in range(40)]
        for value in values:
            client.publish("jobs", value)
        assert client.fetch("jobs-0", start=0).values() == values
        deadline = time.monotonic() + 60  # Nobody waited for the acknowledgements of the others.
        while other.fetch("jobs-0", start=0).values() != values:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def cluster_id(server: ServerProcess) -> str:
    with Client(server.grpc, timeout=60) as client:
        return client.describe_cluster().cluster_id


def warnings(server: ServerProcess) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in server.log_text.splitlines() if line.startswith("{")]
    return [
        (line["stream"], line["cluster"], line["other"])
        for line in lines
        if line["event"] == "publisher_of_another_cluster"
    ]


def test_any_client_is_told_which_cluster_answers(server: ServerProcess, client: Client) -> None:
    client.create_stream("told_which", "told_which")
    mark = mark_of(client.describe_cluster().cluster_id)
    with raw_nats(server.nats) as publisher:
        publisher.subscribe("_INBOX.>")
        publisher.publish("told_which", b"1", "_INBOX.a")
        assert json.loads(publisher.message()[1]) == {
            "stream": "told_which",
            "seq": 1,
            "cluster": mark,
        }
        block = b"NATS/1.0\r\nNats-TTL: 1\r\n\r\n"
        publisher.publish("told_which", b"2", "_INBOX.a", block)
        refusal = json.loads(publisher.message()[1])
        assert (refusal["cluster"], refusal["error"]["err_code"]) == (mark, 20001)
