"""Too many connections of one address: its newest are closed, and no others."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from socket import AF_INET6

import pytest

from jetstream_server.origins import origin_of
from jetstream_server.serving.grpc import connection_limiter
from jetstream_server.serving.grpc.connection_limiter import STRANGER_SECONDS, ConnectionLimiter
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import eventually, on_loop
from tests.support.sockets import is_readable


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def connected(
    sockets: ExitStack, listener: socket.socket, count: int, host: str
) -> list[socket.socket]:
    """The clients' ends; the others live in this process, too."""
    found = []
    for _ in range(count):
        client = sockets.enter_context(
            socket.create_connection(listener.getsockname()[:2], source_address=(host, 0))
        )
        accepted, _ = listener.accept()
        sockets.enter_context(accepted)
        found.append(client)
    return found


def has_ended(client: socket.socket) -> bool:
    return is_readable(client) and client.recv(1) == b""


def test_the_newest_of_an_address_that_has_too_many_are_closed(sockets: ExitStack) -> None:
    listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    other_port = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    elsewhere = connected(sockets, other_port, 5, "127.0.0.1")
    many = connected(sockets, listener, 5, "127.0.0.1")
    few = connected(sockets, listener, 3, "127.0.0.2")
    refused: Counter[str] = Counter()
    limiter = ConnectionLimiter(listener.getsockname()[1], 3, refused)
    limiter.look()
    assert [has_ended(each) for each in many] == [False, False, False, True, True]
    assert not any(has_ended(each) for each in (*few, *elsewhere))
    assert refused == {"grpc": 2}


def test_while_a_process_has_few_descriptors_nothing_is_looked_at(sockets: ExitStack) -> None:
    listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    many = connected(sockets, listener, 5, "127.0.0.1")
    ConnectionLimiter(listener.getsockname()[1], 100_000).look()
    assert not any(has_ended(each) for each in many)


def test_connections_that_come_one_after_another_are_forgotten(sockets: ExitStack) -> None:
    listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    (client,) = connected(sockets, listener, 1, "127.0.0.1")
    limiter = ConnectionLimiter(listener.getsockname()[1], 100_000, connections_max=10)
    host, port = client.getsockname()
    limiter.signed_in(f"ipv4:{host}:{port}")
    for number in range(1_000):
        limiter.called(f"ipv4:10.0.{number // 250}.{number % 250}:40000")
        limiter.look()
        assert len(limiter._standing) <= 11
    assert not has_ended(client)
    assert f"ipv4:{host}:{port}" in limiter._standing


def test_files_of_the_log_do_not_count(sockets: ExitStack) -> None:
    listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    many = connected(sockets, listener, 5, "127.0.0.1")
    descriptors = len(os.listdir("/proc/self/fd"))
    port = listener.getsockname()[1]
    ConnectionLimiter(port, 4, files_open=lambda: descriptors - 4).look()
    assert not any(has_ended(each) for each in many)
    ConnectionLimiter(port, 4, files_open=lambda: descriptors - 5).look()
    assert [has_ended(each) for each in many] == [False] * 4 + [True]


class Port:
    """A listening port, its limiter, and its clock. Every look is one at everything."""

    def __init__(self, sockets: ExitStack, per_address: int = 100, connections_max: int = 100):
        self.now = 0.0
        self.sockets = sockets
        self.listener = sockets.enter_context(
            socket.create_server(("::", 0), family=AF_INET6, dualstack_ipv6=True)
        )
        self.port = self.listener.getsockname()[1]
        self.limiter = ConnectionLimiter(
            self.port,
            per_address,
            files_open=lambda: -1000,
            connections_max=connections_max,
            seconds=lambda: self.now,
        )

    def connect(self, count: int, host: str = "127.0.0.1") -> list[socket.socket]:
        found = []
        for _ in range(count):
            client = socket.create_connection((host, self.port), source_address=(host, 0))
            found.append(self.sockets.enter_context(client))
            accepted, _ = self.listener.accept()
            self.sockets.enter_context(accepted)
        return found

    def look(self, after: float = 0.0) -> None:
        self.now += after
        self.limiter.look()


def peer_of(client: socket.socket) -> str:
    """As gRPC says it."""
    host, port = client.getsockname()[:2]
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"


def ended(clients: list[socket.socket]) -> list[bool]:
    return [has_ended(each) for each in clients]


def test_a_connection_without_a_call_is_closed_in_time(sockets: ExitStack) -> None:
    port = Port(sockets)
    silent, called, signed_in = port.connect(3)
    port.limiter.called(peer_of(called))
    port.limiter.signed_in(peer_of(signed_in))
    port.look()
    port.look(STRANGER_SECONDS - 0.1)
    assert ended([silent, called, signed_in]) == [False] * 3
    port.look(0.1)
    port.look(1000)
    assert ended([silent, called, signed_in]) == [True, False, False]


def test_of_too_many_strangers_the_oldest_go_and_clients_stay(sockets: ExitStack) -> None:
    port = Port(sockets, connections_max=4 * 3)
    client, watcher, *flood = port.connect(7)
    other = port.connect(1, "127.0.0.2")
    port.limiter.signed_in(peer_of(client))
    port.limiter.called(peer_of(watcher))
    port.look()
    assert ended([client, watcher, *flood]) == [False, True, True, True, True, False, False]
    assert ended(other) == [False], "the flood comes from one address"


def test_clients_leave_room_for_nodes(sockets: ExitStack) -> None:
    port = Port(sockets, connections_max=3)
    node, *clients = port.connect(6)
    port.limiter.signed_in(peer_of(node), is_node=True)
    for each in clients[:4]:
        port.limiter.signed_in(peer_of(each))
    port.look()
    assert ended([node, *clients]) == [False, False, False, True, True, True]


def test_an_address_of_ip6_is_its_network(sockets: ExitStack) -> None:
    assert origin_of("2001:db8::1:2:3:4") == origin_of("2001:db8::ffff") == "2001:db8::/64"
    assert origin_of("2001:db8:0:1::1") != origin_of("2001:db8::1")
    assert origin_of("::ffff:10.0.0.1") == origin_of("10.0.0.1") == "10.0.0.1"
    assert origin_of("fe80::1%eth0") == "fe80::/64"
    assert origin_of("") == ""


def test_without_a_descriptor_left_strangers_are_closed_all_the_same(sockets: ExitStack) -> None:
    port = Port(sockets)
    silent = port.connect(3)
    port.look()  # Has kept descriptors since.
    port.now += STRANGER_SECONDS
    with no_descriptor_left():
        port.look()
    assert ended(silent) == [True] * 3


@on_loop
async def test_a_look_without_a_descriptor_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_limiter, "_COUNT_SECONDS", 0.01)
    looks = []

    def look(self: ConnectionLimiter) -> None:
        looks.append(0)
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(ConnectionLimiter, "look", look)
    watching = asyncio.create_task(ConnectionLimiter(1, 1).watch())
    await eventually(lambda: len(looks) > 2 or watching.done())
    assert not watching.done()
    watching.cancel()
