"""The data-plane listener: accepts sockets within its limits, and serves a connection on each."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import Counter
from collections.abc import Coroutine
from typing import Any

import structlog

from jetstream_protocol import frames
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log.disk import OsDisk
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.acceptor import BACKLOG, accept_each
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.net.frame_socket import FrameSocket, peer_of
from jetstream_server.net.handshake_turns import HandshakeTurns
from jetstream_server.net.receive_budget import ReceiveBudget
from jetstream_server.net.tls import PeerIdentity
from jetstream_server.net.tls_socket import handshake
from jetstream_server.origins import Strangers, origin_of
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.dataplane.connection import (
    HELLO_SECONDS,
    NODE_SECONDS,
    Connection,
)
from jetstream_server.serving.dataplane.fetches import Fetches
from jetstream_server.serving.dataplane.follower_nodes import Followers
from jetstream_server.serving.long_poll import LongPoll
from jetstream_server.serving.produces import Produces
from jetstream_server.serving.stream_access import StreamAccess

CONNECTIONS_MAX = 4096
"""Above it new clients are closed at once, unless somebody has not identified itself yet: then the
oldest of those is closed. Each may hold 64 KiB of an unfinished frame."""
KEPT_FOR_NODES = 64
"""Connections above the limits that nodes may use: a leader whose followers find no room for theirs
is deposed. One each, and a few whose clients have not identified themselves yet."""
RECEIVED_BYTES_MAX = 256 * 1024 * 1024
"""Upper bound on the long frames that are being received, over all connections."""

logger = structlog.get_logger("jetstream.dataplane")


class DataPlaneServer:
    """`start` listens, `close` ends every connection."""

    def __init__(
        self,
        replicas: ReplicaManager,
        fetches: LongPoll,
        access: StreamAccess,
        *,
        node_id: int,
        cluster_id: str,
        secret: bytes,
        copy_turns: CopyTurns,
        monotonic_clock: MonotonicClock,
        disk: OsDisk | None = None,
        produces: Produces | None = None,
        connections_max: int = CONNECTIONS_MAX,
        connections_per_address: int = CONNECTIONS_MAX,
        certificates: Certificates | None = None,
    ) -> None:
        """secret: the cluster's credential, which followers must know. copy_turns: how fast
        followers that are not in sync are sent records. disk: of the logs that clients read.
        produces: None: producers' batches are not taken. certificates: for TLS on this port;
        followers must then show theirs."""
        self._certificates = certificates
        self._handshakes = HandshakeTurns()
        self._throttle = LogThrottle()
        self._fetches = Fetches(replicas, fetches, access)
        self._followers = Followers(
            replicas,
            access.control,
            self._throttle,
            cluster_id=cluster_id,
            secret=secret,
            has_tls=certificates is not None,
            copy_turns=copy_turns,
            monotonic_clock=monotonic_clock,
        )
        self._connections_max = connections_max
        self._connections_per_address = connections_per_address
        self.connections_refused = 0
        """Connections refused because of either limit, since the start."""
        self._access = access.control
        self._monotonic_clock = monotonic_clock
        self._disk = disk
        self._produces = produces
        self._budget = ReceiveBudget(RECEIVED_BYTES_MAX)
        self._hello = pb.HelloReply(node_id=node_id, cluster_id=cluster_id, follows=True)
        self._connections: dict[asyncio.Task[None], str] = {}  # and the peer's origin
        # Of these, those above the limits, and whether they are nodes'.
        self._extra: dict[asyncio.Task[None], bool] = {}
        self._per_origin: Counter[str] = Counter()
        # Those whose client has not identified itself, within the limits and above them.
        self._strangers: Strangers[asyncio.Task[None]] = Strangers()
        self._extra_strangers: Strangers[asyncio.Task[None]] = Strangers()
        # Of all connections, those forgotten that end at this moment, too.
        self._running: set[asyncio.Task[None]] = set()
        self._open: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._accepting = run_in_background(
            accept_each(self._listener, self._take, logger), "data plane"
        )

    def _take(self, sock: socket.socket) -> None:
        origin = origin_of(peer_of(sock))
        is_extra = not self._has_room(origin)
        if is_extra and len(self._extra) >= KEPT_FOR_NODES:
            if (first := self._extra_strangers.pop()) is None:
                self.connections_refused += 1
                sock.close()
                return
            self._evict(first)
        if self._certificates is None:
            accepted = FrameSocket(sock, frames.REQUEST_BYTES_MAX, self._disk)
            work = self._connection(accepted, nodes_only=is_extra).run()
        else:
            work = self._begin_tls(sock, self._certificates, nodes_only=is_extra)
        task = self._spawn(work, origin, is_extra)
        (self._extra_strangers if is_extra else self._strangers).add(task, origin)
        task.add_done_callback(lambda _: sock.close())  # It may have been ended before it ran.

    def _has_room(self, origin: str) -> bool:
        """Whether a client of that origin may connect, perhaps in the place of one that has not
        identified itself. Logs that it may not."""
        if self._per_origin[origin] >= self._connections_per_address:
            first = self._strangers.pop(origin)
            most = self._connections_per_address
            if first is None and self._throttle.is_due("too_many_connections", origin):
                logger.warning("too_many_connections", peer=origin, connections_per_address=most)
        elif len(self._connections) - len(self._extra) >= self._connections_max:
            first = self._strangers.pop()
            if first is None and self._throttle.is_due("too_many_connections"):
                logger.warning("too_many_connections", connections_max=self._connections_max)
        else:
            return True
        if first is None:
            return False
        self.connections_refused += 1
        self._evict(first)
        return True

    def _evict(self, connection: asyncio.Task[None]) -> None:
        connection.cancel()
        self._forget(connection)

    def _identified(self, is_node: bool) -> None:
        """Note that the peer of the connection that runs now has identified itself."""
        task = asyncio.current_task()
        assert task is not None
        if is_node and task in self._extra:
            self._extra[task] = True
        self._strangers.discard(task)
        self._extra_strangers.discard(task)

    async def _begin_tls(
        self, sock: socket.socket, certificates: Certificates, *, nodes_only: bool
    ) -> None:
        peer = peer_of(sock)
        seconds = NODE_SECONDS if nodes_only else HELLO_SECONDS
        try:
            turn = self._handshakes.of(peer)
            secured = await handshake(sock, certificates.data, seconds, server_side=True, turn=turn)
        except OSError as error:
            if self._throttle.is_due("tls_refused", peer):
                logger.info("tls_refused", peer=peer, reason=str(error) or "it took too long")
            return
        if not certificates.requires_clients and not _is_node(secured.identity):
            secured.identity = None  # Client certificates do not identify clients on this port.
        accepted = FrameSocket(secured, frames.REQUEST_BYTES_MAX, self._disk)
        await self._connection(accepted, nodes_only=nodes_only).run()

    def serve(self, accepted: FrameConnection) -> None:
        """Serve a connection until it ends, and close it."""
        self._spawn(self._connection(accepted).run(), origin_of(accepted.peer))

    def _connection(self, accepted: FrameConnection, *, nodes_only: bool = False) -> Connection:
        connection = Connection(
            accepted,
            self._hello,
            self._fetches,
            self._followers,
            self._throttle,
            self._monotonic_clock,
            self._access,
            nodes_only=nodes_only,
            identified=self._identified,
            produces=self._produces,
            budget=self._budget,
        )
        self._open.add(connection)
        return connection

    def _spawn(
        self, work: Coroutine[Any, Any, None], origin: str, is_extra: bool = False
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._connections[task] = origin
        if is_extra:
            self._extra[task] = False
        self._per_origin[origin] += 1
        self._running.add(task)
        task.add_done_callback(self._disconnected)
        return task

    def _forget(self, task: asyncio.Task[None]) -> None:
        """Count a connection no longer."""
        self._strangers.discard(task)
        self._extra_strangers.discard(task)
        origin = self._connections.pop(task, None)
        if origin is None:
            return
        if not self._extra.pop(task, True):
            self.connections_refused += 1
        self._per_origin[origin] -= 1
        if not self._per_origin[origin]:
            del self._per_origin[origin]

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        self._running.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("connection_failed", exc_info=task.exception())

    def end_revoked(self) -> None:
        """End the connections whose token is not valid any more."""
        for connection in list(self._open):
            connection.end_if_revoked()

    async def close(self) -> None:
        await end_tasks(*self._running, self._accepting)
        if self._listener is not None:
            self._listener.close()


def _is_node(identity: PeerIdentity | None) -> bool:
    return identity is not None and identity.node_id is not None
