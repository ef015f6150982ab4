"""The data-plane listener: accepts sockets, serves fetches from the replicas of this node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import UnauthenticatedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.accepting import accept_each
from jetstream_server.authorization import ANONYMOUS, Authorize, Operation
from jetstream_server.background import run_in_background
from jetstream_server.complaints import Complaints
from jetstream_server.dataplane.connection import Connection
from jetstream_server.dataplane.replica_session import ReplicaSession
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.replication import credential
from jetstream_server.replication.fetch import Fetches, FetchPosition
from jetstream_server.replication.frame_connection import FrameConnection
from jetstream_server.replication.frame_socket import FrameSocket
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replicas import Replicas

CONNECTIONS_MAX = 4096
"""Beyond it new clients are closed at once. Each may hold 64 KiB of an unfinished frame."""
_BACKLOG = 512

logger = structlog.get_logger("jetstream.dataplane")


class DataPlaneServer:
    """`start` listens, `close` ends every connection."""

    def __init__(
        self,
        replicas: Replicas,
        fetches: Fetches,
        authorize: Authorize,
        *,
        node_id: int,
        cluster_id: str,
        secret: bytes,
        now_us: Callable[[], int],
        disk: OsDisk | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """secret: the cluster's credential, which followers must know. disk: where the logs are
        that are read by clients of `start`."""
        self._replicas = replicas
        self._fetches = fetches
        self._connections_max = connections_max
        self._authorize = authorize
        self._secret = secret
        self._now_us = now_us
        self._disk = disk
        self._hello = pb.HelloReply(node_id=node_id, cluster_id=cluster_id)
        self._complaints = Complaints()
        self._connections: dict[asyncio.Task[None], None] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the address cannot be listened on."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        self._listener.setblocking(False)
        self._accepting = run_in_background(
            accept_each(self._listener, self._take, logger), "data plane"
        )

    def _take(self, sock: socket.socket) -> None:
        if len(self._connections) >= self._connections_max:
            if self._complaints.is_due("too_many_connections"):
                logger.warning("too_many_connections", connections_max=self._connections_max)
            sock.close()
            return
        self.serve(FrameSocket(sock, frames.REQUEST_BYTES_MAX, self._disk))

    def serve(self, accepted: FrameConnection) -> None:
        """Serve a connection until it ends, and close it."""
        connection = Connection(
            accepted,
            self._hello,
            self._fetch,
            self._replicate,
            self._replicas.suspect,
            self._complaints,
        )
        task = asyncio.get_running_loop().create_task(connection.run())
        self._connections[task] = None
        task.add_done_callback(self._disconnected)

    def _disconnected(self, task: asyncio.Task[None]) -> None:
        self._connections.pop(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("connection_failed", exc_info=task.exception())

    async def _fetch(
        self, request: pb.DataFetchRequest
    ) -> tuple[pb.DataFetchResponse, LogSlice | None]:
        """Serve one fetch. Raises the JetstreamError that is its answer."""
        replica = self._replicas.resolve(request.stream)
        self._authorize(ANONYMOUS, Operation.READ, replica.stream.full_name)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=request.bytes_max,
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        if request.refused and self._replicas.healer is not None:
            await self._replicas.healer.examined(replica, position.offset)
        found = await self._fetches.fetch(replica, position)
        response = pb.DataFetchResponse(
            stream_id=replica.stream.id,
            log_start_offset=replica.log.log_start_offset,
            high_watermark=replica.high_watermark,
            leader_epoch=replica.stream.leader_epoch,
            out_of_sync=self._fetches.is_out_of_sync(replica),
            tombstones_gone_below=_tombstones_gone_below(replica),
        )
        return response, found

    async def _replicate(
        self, connection: FrameConnection, correlation: int, hello: pb.NodeHello, nonce: bytes
    ) -> bool:
        """Serve a follower node, once it has shown that it belongs to this cluster; True, and
        nothing is served yet, when it is to fetch."""
        proofs = {
            role: credential.proof(
                self._secret,
                role,
                nonces=nonce + hello.nonce,
                node_id=hello.node_id,
                incarnation=hello.incarnation,
                cluster_id=self._hello.cluster_id,
            )
            for role in ("follower", "leader")
        }
        try:
            credential.check(hello.proof, proofs["follower"])
        except UnauthenticatedError as error:
            if self._complaints.is_due("node_refused", connection.peer):
                logger.warning("node_refused", node=hello.node_id, reason=error.message)
            refusal = pb.NodeHelloReply(error=error.to_proto())
            await connection.send(Kind.NODE_HELLO_REPLY, correlation, refusal)
            return False
        reply = pb.NodeHelloReply(proof=proofs["leader"])
        await connection.send(Kind.NODE_HELLO_REPLY, correlation, reply)
        if hello.fetches:
            return True
        session = ReplicaSession(
            connection,
            self._replicas,
            follower=hello.node_id,
            incarnation=hello.incarnation,
            now_us=self._now_us,
        )
        await session.run()
        return False

    async def close(self) -> None:
        tasks = list(self._connections)
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()


def _tombstones_gone_below(replica: Replica) -> int:
    """What a log that is compacted otherwise has to know before it takes records from this one."""
    return replica.log.tombstones_gone_below if replica.stream.was_compacted else 0
