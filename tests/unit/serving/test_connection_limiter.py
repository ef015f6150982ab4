"""Too many connections of one address: its newest are closed, and no others."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from jetstream_server.serving.grpc.connection_limiter import ConnectionLimiter
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


def test_files_of_the_log_do_not_count(sockets: ExitStack) -> None:
    listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
    many = connected(sockets, listener, 5, "127.0.0.1")
    descriptors = len(os.listdir("/proc/self/fd"))
    port = listener.getsockname()[1]
    ConnectionLimiter(port, 4, files_open=lambda: descriptors - 4).look()
    assert not any(has_ended(each) for each in many)
    ConnectionLimiter(port, 4, files_open=lambda: descriptors - 5).look()
    assert [has_ended(each) for each in many] == [False] * 4 + [True]
