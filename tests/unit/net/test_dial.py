from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from jetstream_server.net import frame_socket
from jetstream_server.net.acceptor import listen_on
from jetstream_server.net.dial import dial, dial_any
from tests.support.loops import on_loop
from tests.support.virtual_time import on_virtual_loop

Place = tuple[str, int]


@contextmanager
def listening() -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()


@contextmanager
def silent() -> Iterator[Place]:
    """A place whose queue is full: packets to it go unanswered."""
    with ExitStack() as stack:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(server.getsockname())
        yield server.getsockname()


def refusing() -> Place:
    with listening() as place:
        return place


def all_ip4(*places: Any) -> list[tuple[socket.AddressFamily, Any]]:
    return [(socket.AF_INET, place) for place in places]


@on_virtual_loop
async def test_the_addresses_share_the_time_until_one_answers() -> None:
    loop = asyncio.get_running_loop()
    began, tried = loop.time(), []

    async def connect(sock: socket.socket, place: str) -> None:
        tried.append((place, round(loop.time() - began, 3)))
        if place == "silent":
            await asyncio.Event().wait()
        if place == "refuses":
            raise ConnectionRefusedError

    loop.sock_connect = connect  # type: ignore[assignment]
    with await dial_any(all_ip4("silent", "refuses", "answers", "later"), 1.2):
        assert tried == [("silent", 0.0), ("refuses", 0.3), ("answers", 0.3)]
    with pytest.raises(ConnectionRefusedError):
        await dial_any(all_ip4("silent", "refuses"), 0.2)


@on_loop
async def test_the_last_failure_is_told_when_none_answers() -> None:
    with silent() as swallowing, pytest.raises(TimeoutError):
        await dial_any(all_ip4(refusing(), swallowing), 0.2)
    with pytest.raises(OSError, match="no address"):
        await dial_any([], 0.2)


@on_loop
async def test_names_are_resolved() -> None:
    with listening() as place, await dial("localhost", place[1], 60.0) as sock:
        assert sock.getpeername() == place


@on_loop
@pytest.mark.parametrize("host", ["node4..example.org", f"{'a' * 64}.org"])
async def test_an_impossible_name_is_a_host_that_does_not_answer(host: str) -> None:
    with pytest.raises(OSError, match=f"'{host}' is no possible host name"):
        await dial(host, 1, 60.0)


@on_loop
async def test_a_data_plane_is_dialled_at_each_address_of_its_name() -> None:
    with listening() as place:
        connection = await frame_socket.dial(("localhost", place[1]))
        assert connection.peer == place[0]
        connection.close()


@on_loop
async def test_a_cancelled_attempt_leaves_no_socket_open() -> None:
    with silent() as swallowing:
        attempt = asyncio.create_task(dial_any(all_ip4(swallowing), 60.0))
        await asyncio.sleep(0.05)
        attempt.cancel()
        with pytest.raises(asyncio.CancelledError):
            await attempt


@on_loop
async def test_an_address_of_a_family_that_the_machine_lacks_is_passed_over() -> None:
    """As IPv6 on some machines, where a name has addresses of both."""
    lacking = socket.AddressFamily.AF_X25
    with pytest.raises(OSError) as lacked:
        socket.socket(lacking, socket.SOCK_STREAM)
    assert lacked.value.errno == errno.EAFNOSUPPORT
    with listening() as answering:
        places = [(lacking, answering), (socket.AF_INET, answering)]
        with await dial_any(places, 60.0) as sock:
            assert sock.getpeername() == answering
        with pytest.raises(OSError) as failed:
            await dial_any(places[:1], 60.0)
        assert failed.value.errno == errno.EAFNOSUPPORT


@on_loop
async def test_a_port_listens_at_every_address_of_its_name() -> None:
    listeners = await listen_on("localhost", 0)
    try:
        for listener in listeners:
            with await dial_any([(listener.family, listener.getsockname())], 60.0):
                pass
        assert {each.family for each in listeners} <= {socket.AF_INET, socket.AF_INET6}
    finally:
        for listener in listeners:
            listener.close()
