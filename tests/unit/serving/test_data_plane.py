"""The data-plane listener: how many connections it accepts, and how it refuses more."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from jetstream_protocol import frames
from jetstream_protocol.errors import UnauthenticatedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.log.disk import OsDisk
from jetstream_server.metadata.state.registry import Registry
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.net.frame_socket import dial
from jetstream_server.net.node_link import NodeIdentity, connect, greet
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.serving.dataplane import connection as connection_module
from jetstream_server.serving.dataplane import server as server_module
from jetstream_server.serving.dataplane.server import DataPlaneServer
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.loops import eventually, on_loop
from tests.support.node import Node
from tests.support.server import free_port_base
from tests.support.sockets import is_readable


async def server_on(
    tmp_path: Path, port: int, connections_max: int, per_address: int = 100
) -> DataPlaneServer:
    replicas = Node(tmp_path / "streams").start()
    server = DataPlaneServer(
        replicas,
        LongPoll(lambda: True, open_to_all()),
        StreamAccess(open_to_all(), Registry()),
        node_id=0,
        cluster_id="c",
        secret=b"",
        copy_turns=CopyTurns(lambda: 0, lambda: 0),
        monotonic_clock=lambda: 0,
        disk=OsDisk(),
        connections_max=connections_max,
        connections_per_address=per_address,
    )
    await server.start("127.0.0.1", port)
    return server


async def greeted(
    port: int, host: str = "127.0.0.1", hello: pb.Hello | None = None
) -> socket.socket | None:
    """A connection that was served; None: it was turned away. host: where it comes from."""
    hello = hello or pb.Hello(version=1)
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((host, 0))
    await loop.sock_connect(sock, ("127.0.0.1", port))
    try:
        await loop.sock_sendall(sock, frames.encode(Kind.HELLO, 1, hello.SerializeToString()))
        if await loop.sock_recv(sock, 1):
            return sock
    except ConnectionError:
        pass
    sock.close()
    return None


@on_loop
async def test_so_many_connections_are_served_and_the_next_is_turned_away(tmp_path: Path) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 3)
    served = [await greeted(port) for _ in range(3)]
    assert all(served)
    assert await greeted(port) is None
    await eventually(lambda: server.connection_count == 3)
    left = served.pop()
    assert left is not None
    left.close()
    await eventually(lambda: server.connection_count == 2)
    served.append(await greeted(port))
    assert all(served)
    await server.close()
    for sock in served:
        assert sock is not None
        sock.close()


@on_loop
async def test_one_address_has_so_many_connections_and_others_have_theirs(tmp_path: Path) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 10, per_address=2)
    served = [await greeted(port), await greeted(port)]
    assert await greeted(port) is None
    await eventually(lambda: server.connections_refused == 1)
    served += [await greeted(port, "127.0.0.2"), await greeted(port, "127.0.0.2")]
    assert await greeted(port, "127.0.0.2") is None
    first = served.pop(0)
    assert first is not None
    first.close()
    await eventually(lambda: server.connection_count == 3)
    served.append(await greeted(port))
    assert all(served)
    await server.close()
    for sock in served:
        assert sock is not None
        sock.close()


async def node(port: int, secret: bytes = b"") -> FrameConnection:
    """Another node's connection, which may fetch."""
    connection = await connect(dial, ("127.0.0.1", port))
    try:
        identity = NodeIdentity(1, incarnation=1, cluster_id="c", secret=secret)
        await greet(connection, identity, 0, fetches=True)
    except BaseException:
        connection.close()
        raise
    return connection


@on_loop
async def test_nodes_are_served_where_clients_have_taken_all_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "KEPT_FOR_NODES", 2)
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 3, per_address=2)
    of_clients = [await greeted(port), await greeted(port), await greeted(port, "127.0.0.2")]
    assert await greeted(port) is await greeted(port, "127.0.0.2") is None
    with pytest.raises(UnauthenticatedError):
        await node(port, b"another")
    await eventually(lambda: server.connections_refused == 3)
    of_nodes = [await node(port), await node(port)]
    with pytest.raises((EOFError, ConnectionError)):
        await node(port)
    assert (server.connection_count, server.connections_refused) == (5, 4)
    of_nodes.pop().close()
    await eventually(lambda: server.connection_count == 4)
    of_nodes.append(await node(port))
    assert server.connections_refused == 4
    for connection in of_nodes:
        connection.close()
    await server.close()
    for sock in of_clients:
        assert sock is not None
        sock.close()


@on_loop
async def test_what_is_kept_for_nodes_serves_nobody_who_only_says_that_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 0)
    fetch = frames.encode(Kind.FETCH, 2, pb.DataFetchRequest().SerializeToString())
    loop = asyncio.get_running_loop()
    answers = []
    for more, seconds in ((b"", 0.05), (fetch, 60.0)):
        monkeypatch.setattr(connection_module, "NODE_SECONDS", seconds)
        sock = await greeted(port, hello=pb.Hello(version=1, is_node=True))
        assert sock is not None
        await loop.sock_sendall(sock, more)
        answers.append(b"")
        while received := await loop.sock_recv(sock, 65_536):
            answers[-1] += received
        sock.close()
    assert len(answers[0]) == len(answers[1]), "no answer but that to the hello"
    await eventually(lambda: server.connections_refused == 2)
    await server.close()


@on_loop
async def test_closing_ends_every_connection(tmp_path: Path) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 10)
    served = [await greeted(port) for _ in range(5)]
    await server.close()
    assert server.connection_count == 0
    for sock in served:
        assert sock is not None
        data = await asyncio.get_running_loop().sock_recv(sock, 65_536)
        while data:
            data = await asyncio.get_running_loop().sock_recv(sock, 65_536)
        sock.close()


async def silent(port: int, host: str = "127.0.0.1") -> socket.socket:
    """A connection whose client says nothing."""
    sock = socket.socket()
    sock.setblocking(False)
    sock.bind((host, 0))
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    return sock


@on_loop
@pytest.mark.parametrize(("most", "per_address"), [(4, 100), (100, 4)])
async def test_who_has_not_said_who_he_is_makes_room_the_oldest_first(
    tmp_path: Path, most: int, per_address: int
) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, most, per_address)
    known = [await greeted(port) for _ in range(2)]
    flood = [await silent(port) for _ in range(10)]
    try:
        await eventually(lambda: server.connections_refused == 8)
        await eventually(lambda: all(is_readable(each) for each in flood[:8]))
        assert not any(is_readable(each) for each in flood[8:])
        again = await greeted(port)
        assert again is not None, "who says who he is takes the place of one who does not"
        assert server.connection_count == 4
        for each in (*known, again):
            assert each is not None
            each.close()
    finally:
        for each in flood:
            each.close()
        await server.close()


@on_loop
async def test_a_flood_pushes_out_itself_and_not_others_that_have_come_before(
    tmp_path: Path,
) -> None:
    port = free_port_base(1)
    server = await server_on(tmp_path, port, 4)
    first = await silent(port, "127.0.0.2")
    flood = [await silent(port) for _ in range(10)]
    try:
        await eventually(lambda: server.connections_refused == 7)
        await asyncio.sleep(0.05)
        assert not is_readable(first)
    finally:
        for each in (first, *flood):
            each.close()
        await server.close()
