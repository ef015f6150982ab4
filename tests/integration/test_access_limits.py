"""What one principal may take of a real node: connections, and bytes a second over both ports."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from jetstream_client import Client, UnavailableError
from tests.support.secured import SecuredServer, secured_server

RATE = 200_000
RECORD = bytes(10_000)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    data = tmp_path_factory.mktemp("limited") / "data"
    with secured_server(data, connections_per_principal=2, read_bytes_per_second=RATE) as running:
        with running.client() as admin:
            admin.create_stream("orders", "orders")
            with admin.publisher("orders") as publisher:
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
        assert seconds_to_read(client, 10) < 1.0


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
        third = Client(server.grpc, token=first, timeout=1)
        with third, pytest.raises(UnavailableError, match="2 connections open"):
            third.fetch("orders", "latest")
        with server.client(second) as client:
            client.fetch("orders", "latest")
    with server.client(first) as client:
        client.fetch("orders", "latest")
