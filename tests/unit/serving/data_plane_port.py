"""A data plane over one node's replicas, its clients, and a reader whose rights can change."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from jetstream_protocol import frames
from jetstream_protocol.batch import iterate
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import WallUs
from jetstream_server.log.disk import OsDisk
from jetstream_server.net.frame_socket import FrameSocket
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.acl import AclRule
from jetstream_server.security.identity import Identity
from jetstream_server.security.limits import Quotas
from jetstream_server.security.state import SecurityState, Token
from jetstream_server.serving.dataplane.server import DataPlaneServer
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.stream_access import StreamAccess
from tests.support.access import open_to_all
from tests.support.loops import eventually
from tests.support.node import Node
from tests.support.virtual_time import connected_pair, loop_clock

Answered = tuple[int, pb.DataFetchResponse, bytes]


class Client:
    """The other end of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    async def send(self, correlation: int, **fields: Any) -> None:
        """Ask for the stream `orders`, with a long wait unless `wait_ms_max` says otherwise."""
        request = pb.DataFetchRequest(
            stream=common_pb2.StreamRef(name="orders"), **{"wait_ms_max": 60_000, **fields}
        )
        await self.write(frames.encode(Kind.FETCH, correlation, request.SerializeToString()))

    async def follow(self, correlation: int, credit: int = 1 << 20, **fields: Any) -> None:
        """Follow the stream `orders`."""
        request = pb.DataFetchRequest(stream=common_pb2.StreamRef(name="orders"), **fields)
        asked = pb.FollowRequest(credit=credit, **{"from": request})
        await self.write(frames.encode(Kind.FOLLOW, correlation, asked.SerializeToString()))

    async def credit(self, correlation: int, count: int = 0, *, ends: bool = False) -> None:
        said = pb.Credit(bytes=count, ends=ends)
        await self.write(frames.encode(Kind.CREDIT, correlation, said.SerializeToString()))

    async def write(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def receive(self) -> Answered:
        """Correlation, head and tail of the next answer, which comes long before a long wait is
        over."""
        async with asyncio.timeout(60):
            prefix = frames.decode_prefix(await self._exactly(frames.PREFIX_BYTES), 1 << 30)
            head = pb.DataFetchResponse.FromString(await self._exactly(prefix.head_length))
            return prefix.correlation, head, await self._exactly(prefix.tail_length)

    async def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = await asyncio.get_running_loop().sock_recv(self.sock, count - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return data


class Port:
    """A data plane over the replicas of one node, which holds the stream `orders`."""

    def __init__(self, folder: Path, access: AccessControl) -> None:
        self.node = Node(folder / "streams")
        replicas = self.node.start()
        self.replica = self.node.create()
        self.fetches = LongPoll(lambda: True, access)
        self.server = DataPlaneServer(
            replicas,
            self.fetches,
            StreamAccess(access, self.node.cluster.registry),
            node_id=0,
            cluster_id="c",
            secret=b"",
            copy_turns=CopyTurns(lambda: 0, lambda: 0),
            monotonic_clock=loop_clock,
            disk=OsDisk(),
        )
        self._clients: list[Client] = []

    async def connect(self, token: str = "", buffer: int = 0) -> Client:
        """buffer: bytes that each end's socket holds; 0: as many as usual."""
        sock, accepted = connected_pair()
        if buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        sock.setblocking(False)
        self.server.serve(FrameSocket(accepted, frames.REQUEST_BYTES_MAX, OsDisk()))
        client = Client(sock)
        self._clients.append(client)
        hello = pb.Hello(version=1, token=token)
        await client.write(frames.encode(Kind.HELLO, 1, hello.SerializeToString()))
        await client.receive()
        return client

    async def waits(self, count: int) -> None:
        await eventually(lambda: self.fetches.waiting == count)

    async def close(self) -> None:
        await self.server.close()
        for client in self._clients:
            client.sock.close()


@asynccontextmanager
async def data_plane(folder: Path, access: AccessControl | None = None) -> AsyncIterator[Port]:
    port = Port(folder, access or open_to_all())
    try:
        yield port
    finally:
        await port.close()


def values(tail: bytes) -> list[bytes | None]:
    return [value for batch in iterate(tail) for value in batch.values()]


READER = Token("0" * 12, "user:x", "", WallUs(0), expires_at_us=WallUs(1_000))
RULE = AclRule(7, "user:x", ("read",), True, "orders", ">")


class House:
    """Access control of which the reader's rule can be taken away. Every client is the reader."""

    def __init__(self, **quotas: int) -> None:
        self.state = SecurityState().with_token(READER).with_rules(RULE)
        self.access = AccessControl(
            lambda: self.state,
            lambda: WallUs(10),
            enabled=True,
            node_id=0,
            secret=b"",
            incarnation=lambda: 1,
            quotas=Quotas(**quotas),
        )
        self.access.identify_token = self._identify  # type: ignore[method-assign]
        self.access.changed()

    async def _identify(self, text: str, *, method: str, shown: Identity) -> Identity:
        return Identity("user:x", token=READER)
