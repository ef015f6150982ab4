"""Batches that go straight to the leader of their stream, past NATS."""

from __future__ import annotations

import secrets
import time
from typing import Literal

import pytest

from jetstream_client import Client
from jetstream_protocol.errors import (
    InvalidRequestError,
    MessageTooLargeError,
    NoStreamError,
    StreamPausedError,
    StreamReadonlyError,
)
from tests.support.cluster import TestCluster
from tests.support.server import ServerProcess


def values_of(client: Client, stream: str) -> list[bytes | None]:
    return [each.value for each in client.consume(stream, stop="latest", patience=60)]


def test_batches_are_stored_once_and_in_order(client: Client) -> None:
    client.create_stream("straight", "straight.>")
    with client.publisher("straight.a", via="direct", linger=0.0) as publisher:
        first = publisher.send(b"0", key=b"k", headers={"h": "v"})
        many = publisher.publish_many([b"%d" % number for number in range(1, 10_000)])
        publisher.flush()
        assert (first.result().stream, first.result().offset) == ("straight", 0)
        assert many.result().offsets[-1] == 9_999
    assert values_of(client, "straight") == [b"%d" % number for number in range(10_000)]
    record = client.fetch("straight", 0, max_messages=1)[0]
    assert (record.subject, record.key, dict(record.headers)) == ("straight.a", b"k", {"h": "v"})


def test_what_was_sent_by_one_way_and_is_repeated_by_the_other_is_stored_once(
    client: Client,
) -> None:
    client.create_stream("ways", "ways")
    for via in ("nats", "direct", "nats"):
        with client.publisher("ways", via=via, producer_id=7, linger=60.0) as publisher:  # type: ignore[arg-type]
            found = publisher.publish_many([b"a", b"b", b"c"])
            publisher.flush()
        assert found.result().offsets == [0, 1, 2]
    assert values_of(client, "ways") == [b"a", b"b", b"c"]


def test_a_record_may_be_longer_than_nats_takes(client: Client) -> None:
    client.create_stream("long", "long")
    value = secrets.token_bytes(12 * 1024 * 1024)
    options = {"max_bytes": 16 * 1024 * 1024, "buffer_bytes": 64 * 1024 * 1024}
    with client.publisher("long", via="direct", **options) as publisher:  # type: ignore[arg-type]
        assert publisher.batch_bytes > len(value)
        publisher.send(value)
        with pytest.raises(MessageTooLargeError):
            publisher.send(bytes(17 * 1024 * 1024))
    assert values_of(client, "long") == [value]


def test_what_a_stream_refuses_on_nats_it_refuses_here(client: Client) -> None:
    client.create_stream("refusing", "refusing")
    with pytest.raises(NoStreamError):
        client.publisher("nobody.listens", via="direct")
    with pytest.raises(InvalidRequestError, match="say 'nats', 'direct' or 'auto'"):
        client.publisher("refusing", via="kafka")  # type: ignore[arg-type]
    client.set_stream_readonly("refusing")
    with client.publisher("refusing", via="direct") as publisher:
        delivery = publisher.send(b"x")
        with pytest.raises(StreamReadonlyError):
            delivery.result()
    client.set_stream_readonly("refusing", False)
    client.pause_stream("refusing")
    with pytest.raises(StreamPausedError):
        client.publisher("refusing", via="direct")
    client.resume_stream("refusing")
    assert values_of(client, "refusing") == []


def test_every_stream_on_the_subject_gets_the_batch(client: Client) -> None:
    client.create_stream("all_of", "both.>")
    client.create_stream("one_of", "both.a")
    with client.publisher("both.a", via="direct") as publisher:
        acks = publisher.send(b"x").result().acks
    assert {each.stream for each in acks} == {"all_of", "one_of"}
    assert values_of(client, "all_of") == values_of(client, "one_of") == [b"x"]


def test_a_keyed_group_is_written_partition_by_partition(client: Client) -> None:
    client.create_group("shards", "shards", streams=3)
    with client.publisher("shards", via="direct") as publisher:
        many = publisher.publish_many(
            [b"%d" % number for number in range(300)], [b"%d" % (n % 40) for n in range(300)]
        )
        publisher.flush()
    streams = many.result().streams
    assert len(set(streams)) == 3
    with client.publisher("shards", via="nats") as publisher:
        again = publisher.publish_many([b"x"] * 40, [b"%d" % number for number in range(40)])
        publisher.flush()
    assert again.result().streams == streams[:40]


@pytest.mark.parametrize("via", ["direct", "auto"])
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_nothing_is_lost_doubled_or_reordered_when_the_leader_goes(
    cluster: TestCluster, how: str, via: Literal["direct", "auto"]
) -> None:
    with Client(cluster.servers, timeout=60) as client:
        name = f"failing_{how}_{via}"
        client.create_stream(name, name, replicas=3)
        sent = 0
        with client.publisher(name, via=via, linger=0.002, max_bytes=8_192) as publisher:
            deliveries = []
            for moment in range(3):
                ends = time.monotonic() + 1.0
                if moment == 1:
                    leader = client.describe_stream(name).leader
                    getattr(cluster, how)(leader)
                while time.monotonic() < ends:
                    deliveries.append(publisher.send(b"%d" % sent))
                    sent += 1
                    time.sleep(0.0005)
            publisher.flush()
            if how == "kill":
                cluster.restart(leader)
            else:
                cluster.thaw(leader)
            offsets = [each.result().offset for each in deliveries]
        assert offsets == list(range(sent))
        assert values_of(client, name) == [b"%d" % number for number in range(sent)]


@pytest.mark.parametrize("via", ["direct", "auto"])
def test_a_client_needs_no_nats(own_server: ServerProcess, via: Literal["direct", "auto"]) -> None:
    own_server.start()
    with Client(own_server.grpc, nats=["nats://127.0.0.1:1"], timeout=60) as client:
        client.create_stream("alone", "alone")
        with client.publisher("alone", via=via) as publisher:
            assert publisher.send(b"x").result().offset == 0
