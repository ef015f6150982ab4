"""What one principal may take of a real node: connections, requests, streams, consumer groups, and
bytes a second over both ports."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator

import grpc
import pytest

from jetstream_client import AsyncClient, Client, QuotaExceededError, TooManyRequestsError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated.dataplane_pb2 import DataFetchRequest, DataFetchResponse
from tests.support.api import Api, DataPlane
from tests.support.deaf_call import DeafCall
from tests.support.following import Questions, some
from tests.support.loops import eventually, on_loop
from tests.support.secured import SecuredServer, secured_server

RATE = 200_000
REQUESTS = 8
POLL_MS = 300_000
RECORD = bytes(10_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    data = tmp_path_factory.mktemp("limited") / "data"
    limits = {
        "connections_per_principal": 2,
        "requests_per_principal": REQUESTS,
        "streams_per_principal": 3,
        "groups_per_principal": 1,
        "cursors_per_principal": 2,
        "consumers_per_principal": 2,
        "read_bytes_per_second": RATE,
    }
    with secured_server(data, **limits) as running:
        with running.client() as admin:
            admin.create_stream("orders", "orders")
            # A fetch returns whole batches: it takes several to read all of it.
            with admin.publisher("orders", max_bytes=64 * 1024) as publisher:
                publisher.publish_many([RECORD] * 60)
        yield running


def seconds_to_read(client: Client, count: int) -> float:
    """That many records, from the start."""
    begun = time.monotonic()
    offset = 0
    while offset < count:
        found = client.fetch("orders", offset, max_bytes=100_000)
        offset = found[-1].offset + 1
    return time.monotonic() - begun


def test_who_reads_faster_waits_and_gets_everything(server: SecuredServer) -> None:
    with server.client() as admin:
        reader = admin.create_token("user:reader").text
        other = admin.create_token("user:other").text
        admin.add_acl("*", "read", stream="orders", subject=">")
    with server.client(reader) as client:
        assert seconds_to_read(client, 60) > 1.0  # 600 kB, a burst of a second and one answer.
    with server.client(other) as client:
        assert len(client.fetch("orders", 0, max_bytes=100_000)) > 0


def test_who_follows_faster_waits_and_gets_everything(
    server: SecuredServer, questions: Questions
) -> None:
    with server.client() as admin:
        follower = admin.create_token("user:follower").text
        admin.create_stream("followed", "followed")
        admin.add_acl("user:follower", "read", stream="followed", subject=">")
        values = [b"%04d" % number + RECORD for number in range(60)]

        def publish_all() -> None:
            with admin.publisher("followed", max_bytes=64 * 1024) as publisher:
                publisher.publish_many(values)

        @on_loop
        async def scenario() -> None:
            async with (
                AsyncClient(server.grpc, token=follower, timeout=60) as client,
                client.consume("followed", "latest") as consumer,
            ):
                coming = asyncio.create_task(some(consumer, 1 + len(values)))
                await asyncio.to_thread(admin.publish, "followed", b"first")
                await eventually(lambda: questions.taken > 0)
                begun = time.monotonic()
                await asyncio.to_thread(publish_all)
                assert await coming == list(enumerate([b"first", *values]))
                # 600 kB, a burst of a second, and one answer.
                assert time.monotonic() - begun > 0.5

        scenario()
        admin.delete_stream("followed")


def test_one_principal_has_so_many_connections_and_others_have_theirs(
    server: SecuredServer,
) -> None:
    with server.client() as admin:
        first = admin.create_token("user:first").text
        second = admin.create_token("user:second").text
        admin.add_acl("*", "read", stream="orders", subject=">")
    with server.client(first) as one, server.client(first) as two:
        one.fetch("orders", "latest")
        two.fetch("orders", "latest")
        third = Client(server.grpc, token=first, timeout=5)
        with third, pytest.raises(TooManyRequestsError, match="2 connections open"):
            third.fetch("orders", "latest")
        with server.client(second) as client:
            client.fetch("orders", "latest")
    with server.client(first) as client:
        client.fetch("orders", "latest")


def test_a_principal_creates_so_many_streams_and_is_told_what_to_do(server: SecuredServer) -> None:
    with server.client() as admin:
        token = admin.create_token("user:maker").text
        admin.add_acl("user:maker", "all", subject=">")
        before = counted(server, "jetstream_quota_refusals_total")
        with server.client(token) as maker:
            for name in ("m1", "m2", "m3"):
                maker.create_stream(name, name)
            with pytest.raises(QuotaExceededError, match="delete some, or have security"):
                maker.create_stream("m4", "m4")
            maker.create_stream("m3", "m3")  # It exists.
            maker.delete_stream("m1")
            maker.create_stream("m4", "m4")
        assert counted(server, "jetstream_quota_refusals_total") > before  # A call may be repeated.
        assert "user:maker has created 3 streams" in server.log_text
        admin.create_stream("m5", "m5")
        admin.delete_stream("m5")


def test_a_principal_creates_so_many_consumers_and_others_may_use_them(
    server: SecuredServer,
) -> None:
    with server.client() as admin:
        hirer = admin.create_token("user:hirer").text
        worker = admin.create_token("user:worker").text
        admin.add_acl("*", ["read", "commit"], stream="orders", subject=">")
    with server.client(hirer) as client, server.client(worker) as other:
        for name in ("one", "two"):
            client.create_consumer("orders", name)
        with pytest.raises(QuotaExceededError, match="consumers_per_principal"):
            client.create_consumer("orders", "three")
        client.create_consumer("orders", "one", ack_wait=5)  # It exists.
        other.create_consumer("orders", "four")
    server.stop()
    server.start()
    with server.client(hirer) as client, server.client(worker) as other:
        with pytest.raises(QuotaExceededError):
            client.create_consumer("orders", "three")
        other.delete_consumer("orders", "two")
        client.create_consumer("orders", "three")


def test_a_principal_creates_so_many_cursors_and_others_may_move_them(
    server: SecuredServer,
) -> None:
    with server.client() as admin:
        keeper = admin.create_token("user:keeper").text
        mover = admin.create_token("user:mover").text
        admin.add_acl("*", ["read", "commit"], stream="orders", subject=">")
        before = counted(server, "jetstream_quota_refusals_total")
    with server.client(keeper) as client, server.client(mover) as other:
        for name in ("one", "two"):
            client.commit_cursor(name, "orders", 1)
        with pytest.raises(QuotaExceededError, match="cursors_per_principal raised"):
            client.commit_cursor("three", "orders", 1)
        assert counted(server, "jetstream_quota_refusals_total") > before  # A call may be repeated.
        assert "user:keeper has created 2 cursors" in server.log_text
        client.commit_cursor("one", "orders", 2)  # It exists.
        other.commit_cursor("two", "orders", 2)  # It stays the keeper's.
        for name in ("four", "five"):
            other.commit_cursor(name, "orders", 1)
        with pytest.raises(QuotaExceededError):
            other.commit_cursor("six", "orders", 1)

    # Who has created what is in the log.
    server.stop()
    server.start()
    with server.client(keeper) as client, server.client(mover) as other:
        for each in (client, other):
            with pytest.raises(QuotaExceededError):
                each.commit_cursor("seven", "orders", 1)
        other.delete_cursor("two", "orders")
        client.commit_cursor("seven", "orders", 1)
        with pytest.raises(QuotaExceededError):
            other.commit_cursor("eight", "orders", 1)


def test_a_principal_begins_so_many_consumer_groups(server: SecuredServer) -> None:
    with server.client() as admin:
        token = admin.create_token("user:grouped").text
        admin.add_acl("user:grouped", ["read", "commit"], stream="orders", subject="orders")
    with server.client(token) as client:
        with client.consume_group("orders", "first") as first:
            next(iter(first))
            with pytest.raises(QuotaExceededError, match="groups_per_principal raised"):
                client.consume_group("orders", "second")
        deadline = time.monotonic() + 60  # Should the first not have been able to say goodbye.
        while True:
            try:
                with client.consume_group("orders", "second") as second:
                    next(iter(second))
                return
            except QuotaExceededError:
                assert time.monotonic() < deadline
                time.sleep(0.2)


def test_a_principal_has_so_many_requests_open_and_gets_answers_when_they_end(
    server: SecuredServer,
) -> None:
    with server.client() as admin:
        token = admin.create_token("user:waiting").text
        other = admin.create_token("user:patient").text
        admin.add_acl("*", "read", stream="orders", subject=">")
    api = Api(server.grpc)

    def poll(bearer: str, wait_ms: int) -> grpc.Future:
        request = pb.FetchRequest(
            stream=common_pb2.StreamRef(name="orders"), offset=60, bytes_min=1, wait_ms_max=wait_ms
        )
        metadata = [("authorization", f"Bearer {bearer}")]
        return api.reads.Fetch.future(request, timeout=300, metadata=metadata)

    polls = [poll(token, POLL_MS) for _ in range(REQUESTS)]
    try:
        deadline = time.monotonic() + 120
        while counted(server, "jetstream_waiting_fetches") < REQUESTS:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        refused = poll(token, 0).exception()
        assert isinstance(refused, grpc.RpcError)
        assert refused.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert f"{REQUESTS} requests open" in refused.details()
        assert poll(other, 0).exception() is None
        polls.pop().cancel()
        while poll(token, 0).exception() is not None:
            assert time.monotonic() < deadline
    finally:
        for each in polls:
            each.cancel()
        api.close()


def test_the_data_plane_counts_the_requests_of_all_connections(server: SecuredServer) -> None:
    with server.client() as admin:
        token = admin.create_token("user:polling").text
        admin.add_acl("user:polling", "read", stream="orders", subject="orders")
    poll = DataFetchRequest(
        stream=common_pb2.StreamRef(name="orders"), offset=60, bytes_min=1, wait_ms_max=POLL_MS
    )
    one, two = (DataPlane(server.data_address, token=token) for _ in range(2))
    for number in range(REQUESTS - 1):
        one.send(Kind.FETCH, number, poll)
    two.send(Kind.FETCH, 0, poll)
    deadline = time.monotonic() + 120
    while counted(server, "jetstream_waiting_fetches") < REQUESTS:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    two.send(Kind.FETCH, 99, poll)
    correlation, answer, _ = two.receive(DataFetchResponse)
    assert isinstance(answer, DataFetchResponse)
    assert (correlation, answer.error.code) == (99, "too_many_requests")
    one.close()
    while two.fetch("orders", 0)[0].HasField("error"):
        assert time.monotonic() < deadline
    two.close()


def test_who_does_not_read_its_digest_keeps_nobody_from_theirs(server: SecuredServer) -> None:
    """A node digests one replica at a time."""
    with server.client() as admin:
        admin.create_stream("deaf", "deaf")
        admin.publish("deaf", b"1")
        admin.add_acl("user:deaf", "read", stream="deaf", subject="deaf")
        token = admin.create_token("user:deaf").text
    ref = common_pb2.StreamRef(name="deaf")
    api = Api(server.grpc)
    with DeafCall(
        ("127.0.0.1", server.port_base),
        "/jetstream.v1.Cluster/DigestKeys",
        pb.DigestKeysRequest(stream=ref, end_offset=1),
        token,
    ):
        *_, answer = api.cluster.DigestKeys(
            pb.DigestKeysRequest(stream=common_pb2.StreamRef(name="orders"), end_offset=60),
            timeout=60,
            metadata=[("authorization", f"Bearer {server.admin}")],
        )
    api.close()
    assert answer.records == 60


def counted(server: SecuredServer, name: str) -> float:
    request = urllib.request.Request(
        f"{server.http}/metrics", headers={"Authorization": f"Bearer {server.admin}"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = answer.read().decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name + " "))
