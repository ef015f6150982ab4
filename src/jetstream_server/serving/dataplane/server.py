"""The data-plane listener: accepts sockets, serves fetches from the replicas of this node."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from jetstream_protocol import frames
from jetstream_protocol.errors import PermissionDeniedError, UnauthenticatedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.background import run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log.commit_log import LogSlice
from jetstream_server.log.disk import OsDisk
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net import peer_auth
from jetstream_server.net.acceptor import accept_each
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.net.frame_socket import FrameSocket, peer_of
from jetstream_server.net.node_link import check_certificate
from jetstream_server.net.tls import PeerIdentity
from jetstream_server.net.tls_socket import handshake
from jetstream_server.origins import Strangers, origin_of
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.replication.drivers.leader_stream import LeaderStream
from jetstream_server.replication.replica import Replica
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.identity import Identity
from jetstream_server.security.requirements import Requirement
from jetstream_server.serving.dataplane.connection import (
    HELLO_SECONDS,
    NODE_SECONDS,
    Connection,
    Found,
)
from jetstream_server.serving.dataplane.guard import admit
from jetstream_server.serving.decryption import (
    DECRYPTED_BYTES_MAX,
    may_be_encrypted,
    read_plain,
)
from jetstream_server.serving.filtered_fetch import Filtered, FilteredFetches
from jetstream_server.serving.long_poll import FetchPosition, LongPoll, Poll, Refuse
from jetstream_server.serving.stream_access import StreamAccess

CONNECTIONS_MAX = 4096
"""Above it new clients are closed at once, unless somebody has not identified itself yet: then the
oldest of those is closed. Each may hold 64 KiB of an unfinished frame."""
KEPT_FOR_NODES = 64
"""Connections above the limits that nodes may use: a leader whose followers find no room for theirs
is deposed. One each, and a few whose clients have not said yet who they are."""
_BACKLOG = 512

logger = structlog.get_logger("jetstream.dataplane")


@dataclass(slots=True)
class _Fetch:
    """A fetch that its sender may make. generation: of the rights, when that was checked."""

    identity: Identity
    rule: Requirement
    generation: int
    replica: Replica
    position: FetchPosition
    is_decrypted: bool


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
        connections_max: int = CONNECTIONS_MAX,
        connections_per_address: int = CONNECTIONS_MAX,
        certificates: Certificates | None = None,
    ) -> None:
        """secret: the cluster's credential, which followers must know. copy_turns: how fast
        followers that are not in sync are sent records. disk: of the logs that
        clients read. certificates: for TLS on this port; followers must then show theirs."""
        self._certificates = certificates
        self._handshakes = asyncio.Lock()
        self._replicas = replicas
        self._fetches = fetches
        self._filtered_fetches = FilteredFetches(fetches)
        self._connections_max = connections_max
        self._connections_per_address = connections_per_address
        self.connections_refused = 0
        """Connections refused because of either limit, since the start."""
        self._access = access
        self._secret = secret
        self._copy_turns = copy_turns
        self._monotonic_clock = monotonic_clock
        self._disk = disk
        self._hello = pb.HelloReply(node_id=node_id, cluster_id=cluster_id)
        self._throttle = LogThrottle()
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
        self._listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
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

    def _identified(self) -> None:
        """Note that the client of the connection that runs now has identified itself."""
        task = asyncio.current_task()
        assert task is not None
        self._strangers.discard(task)
        self._extra_strangers.discard(task)

    async def _begin_tls(
        self, sock: socket.socket, certificates: Certificates, *, nodes_only: bool
    ) -> None:
        peer = peer_of(sock)
        seconds = NODE_SECONDS if nodes_only else HELLO_SECONDS
        try:
            secured = await handshake(
                sock, certificates.data, seconds, server_side=True, turn=self._handshakes
            )
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
            self._begin,
            self._fetch,
            self._replicate,
            self._replicas.suspect,
            self._throttle,
            self._fetches.times,
            self._monotonic_clock,
            self._access.control,
            nodes_only=nodes_only,
            identified=self._identified,
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

    def _begin(
        self,
        request: pb.DataFetchRequest,
        identity: Identity,
        answer: Callable[[Found], None],
        refuse: Refuse,
    ) -> Poll | None:
        """Serve a fetch without a task: see `LongPoll.begin`. None: it needs one, and `_fetch`.
        Raises a JetstreamError, which becomes the answer."""
        if (
            request.refused
            or request.filter_subject
            or request.HasField("filter_key")
            or self._access.control.is_paced(identity)
        ):
            return None
        fetch = self._checked(request, identity)
        if fetch.is_decrypted:
            return None
        answer_it = partial(self._answer, fetch, answer)
        return self._fetches.begin(fetch.replica, fetch.position, identity, answer_it, refuse)

    def _answer(
        self, fetch: _Fetch, answer: Callable[[Found], None], found: LogSlice | None
    ) -> None:
        self._check_again(fetch)
        if found is None:
            answer(Found(self._head(fetch.replica), []))
            return
        answer(self._fetches.shared(found, lambda: Found(self._head(fetch.replica), [found])))

    async def _fetch(self, request: pb.DataFetchRequest, identity: Identity) -> Found:
        """Serve one fetch. Raises a JetstreamError, which becomes the answer."""
        fetch = self._checked(request, identity)
        replica, position = fetch.replica, fetch.position
        if request.refused:
            await self._replicas.healer.examined(replica, position.offset)
        slices, filtered = await self._found(request, replica, position, identity)
        length = sum(each.length for each in slices)
        await self._access.control.pace(identity, replica.stream, length)
        self._check_again(fetch)
        response = self._head(replica)
        if filtered is not None and filtered.next_offset > position.offset:
            response.next_offset = filtered.next_offset
            response.last_epoch = filtered.last_epoch
        decrypt = partial(read_plain, replica, slices, partly=filtered is None)
        return Found(response, slices, decrypt if fetch.is_decrypted and slices else None)

    def _checked(self, request: pb.DataFetchRequest, identity: Identity) -> _Fetch:
        """Check a fetch. Raises a JetstreamError."""
        access = self._access.control
        generation = access.generation
        rule = admit(access, identity, Kind.FETCH)
        assert rule.operation is not None
        stream = self._access.resolve(identity, rule.operation, request.stream)
        replica = self._replicas.replica_of(stream)
        bytes_max = access.bytes_max(identity, request.bytes_max)
        is_decrypted = may_be_encrypted(replica) and not (identity.is_node or request.as_stored)
        if is_decrypted:
            bytes_max = min(bytes_max or DECRYPTED_BYTES_MAX, DECRYPTED_BYTES_MAX)
        position = FetchPosition.checked(
            offset=request.offset,
            last_epoch=request.last_epoch if request.HasField("last_epoch") else None,
            bytes_max=bytes_max,
            bytes_min=request.bytes_min,
            wait_ms_max=request.wait_ms_max,
        )
        return _Fetch(identity, rule, generation, replica, position, is_decrypted)

    def _check_again(self, fetch: _Fetch) -> None:
        """Raise an error if the sender has lost its right since the fetch was checked."""
        access = self._access.control
        if fetch.rule.again and access.generation != fetch.generation:
            assert fetch.rule.operation is not None
            access.check(fetch.identity, fetch.rule.operation, fetch.replica.stream)

    def _head(self, replica: Replica) -> pb.DataFetchResponse:
        return pb.DataFetchResponse(
            stream_id=replica.stream.id,
            log_start_offset=replica.log.log_start_offset,
            high_watermark=replica.high_watermark,
            leader_epoch=replica.stream.leader_epoch,
            out_of_sync=self._fetches.is_out_of_sync(replica),
            tombstones_gone_below=_tombstones_gone_below(replica),
            compacted_below=_compacted_below(replica),
        )

    async def _found(
        self,
        request: pb.DataFetchRequest,
        replica: Replica,
        position: FetchPosition,
        caller: Identity,
    ) -> tuple[Sequence[LogSlice], Filtered | None]:
        if request.filter_subject or request.HasField("filter_key"):
            key = request.filter_key if request.HasField("filter_key") else None
            wanted = RecordFilter(request.filter_subject, key)
            filtered = await self._filtered_fetches.fetch(replica, position, wanted, caller)
            return filtered.slices, filtered
        found = await self._fetches.fetch(replica, position, caller)
        return ([] if found is None else [found]), None

    async def _replicate(
        self, connection: FrameConnection, correlation: int, hello: pb.NodeHello, nonce: bytes
    ) -> Identity | None:
        """Serve a follower node after authenticating it. If the node wants to fetch, returns its
        identity, with nothing served yet."""
        node = Identity(f"node:{hello.node_id}", connection.peer, is_node=True)
        proofs = {
            role: peer_auth.proof(
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
            if self._certificates is not None and connection.peer_identity is None:
                raise UnauthenticatedError(
                    f"no certificate: this port wants that of node {hello.node_id}"
                )
            check_certificate(connection, hello.node_id)
            peer_auth.check(hello.proof, proofs["follower"])
            admit(self._access.control, node, Kind.NODE_HELLO)
            if not hello.fetches:
                admit(self._access.control, node, Kind.POSITIONS)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            if self._throttle.is_due("node_refused", connection.peer):
                logger.warning("node_refused", node=hello.node_id, reason=error.message)
            refusal = pb.NodeHelloReply(error=error.to_proto())
            await connection.send(Kind.NODE_HELLO_REPLY, correlation, refusal)
            return None
        task = asyncio.current_task()
        if task in self._extra:
            self._extra[task] = True
        self._identified()
        reply = pb.NodeHelloReply(proof=proofs["leader"])
        await connection.send(Kind.NODE_HELLO_REPLY, correlation, reply)
        if hello.fetches:
            return node
        follower = LeaderStream(
            connection,
            self._replicas,
            follower=hello.node_id,
            incarnation=hello.incarnation,
            copy_turns=self._copy_turns,
            monotonic_clock=self._monotonic_clock,
        )
        await follower.run()
        return None

    def end_revoked(self) -> None:
        """End the connections whose token is not valid any more."""
        for connection in list(self._open):
            connection.end_if_revoked()

    async def close(self) -> None:
        tasks = list(self._running)
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()


def _is_node(identity: PeerIdentity | None) -> bool:
    return identity is not None and identity.node_id is not None


def _tombstones_gone_below(replica: Replica) -> int:
    """What a differently compacted log must know before it takes records from this one."""
    return replica.log.tombstones_gone_below if replica.stream.was_compacted else 0


def _compacted_below(replica: Replica) -> int | None:
    """What a reader must read up to, to miss no key: a pass notes its end before it removes."""
    return replica.log.compacted_below if replica.stream.was_compacted else None
