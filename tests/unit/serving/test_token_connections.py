"""Which connections end with a token, and which are forgotten."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jetstream_protocol.types import WallUs
from jetstream_server.security.identity import Identity
from jetstream_server.security.state import Token
from jetstream_server.serving.grpc import close_peer, token_connections
from jetstream_server.serving.grpc.token_connections import CALLERS_MAX, TokenConnections
from tests.support.access import for_the_known
from tests.support.descriptors import no_descriptor_left
from tests.support.loops import eventually, on_loop


def caller(number: int) -> Identity:
    """Its token is none that the metadata holds: it was revoked."""
    return Identity("user:x", token=Token(f"{number}", "user:x", "", WallUs(0), WallUs(0)))


CERTIFIED = Identity("user:certified")


class Port:
    """A listening port, and clients of it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.number = self._listener.getsockname()[1]

    def connect(self) -> tuple[socket.socket, str]:
        """A client, and its name at the server."""
        client = self._stack.enter_context(
            socket.create_connection(("127.0.0.1", self.number), timeout=60)
        )
        self._stack.enter_context(self._listener.accept()[0])
        return client, f"ipv4:127.0.0.1:{client.getsockname()[1]}"


@pytest.fixture
def port() -> Iterator[Port]:
    with ExitStack() as stack:
        yield Port(stack)


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_connection_ends_with_the_last_of_its_callers(port: Port) -> None:
    connections = TokenConnections(for_the_known(), port.number)
    alone, shared, unnamed = (port.connect() for _ in range(3))
    connections.called(alone[1], caller(1))
    connections.called(alone[1], caller(2))
    connections.called(shared[1], caller(1))
    connections.called(shared[1], CERTIFIED)
    connections.close_ended()
    assert [is_closed(client) for client, _ in (alone, shared, unnamed)] == [True, False, False]
    assert len(connections) == 1


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_connections, "RETRY_SECONDS", 0.05)


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """No descriptor is kept to look with: others have taken them."""
    monkeypatch.setattr(close_peer, "_kept", [])


@pytest.mark.usefixtures("hasty", "nothing_kept")
def test_a_connection_whose_token_ended_is_closed_once_there_are_descriptors(port: Port) -> None:
    @on_loop
    async def scenario() -> None:
        connections = TokenConnections(for_the_known(), port.number)
        client, peer = port.connect()
        connections.called(peer, caller(1))
        with no_descriptor_left():
            connections.close_ended()
            assert not is_closed(client)
        await eventually(lambda: is_closed(client))
        assert len(connections) == 0

    scenario()


@pytest.mark.usefixtures("nothing_kept")
def test_a_call_is_taken_though_there_is_no_descriptor_to_look_which_connections_ended(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_connections, "PEERS_MAX", 1)
    connections = TokenConnections(for_the_known(), port.number)
    connections.called("ipv4:127.0.0.1:1", CERTIFIED)
    with no_descriptor_left():
        connections.called("ipv4:127.0.0.1:2", CERTIFIED)
    assert len(connections) == 2


def test_connections_that_ended_are_forgotten_and_callers_are_bounded(
    port: Port, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_connections, "PEERS_MAX", 3)
    connections = TokenConnections(for_the_known(), port.number)
    _, peer = port.connect()
    for number in range(2 * CALLERS_MAX):
        connections.called(peer, caller(number))
    assert len(connections._callers[peer]) == CALLERS_MAX
    for number in range(1, 100):
        connections.called(f"ipv4:127.0.0.1:{number}", CERTIFIED)
        assert len(connections) <= 3
    assert peer in connections._callers
