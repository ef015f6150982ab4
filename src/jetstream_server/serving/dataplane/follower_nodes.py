"""Nodes that follow streams led here: who they are, and then a LeaderStream for each."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from jetstream_protocol.errors import PermissionDeniedError, UnauthenticatedError
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.frame_connection import FrameConnection
from jetstream_server.net.node_link import NodeIdentity, check_certificate, check_proof, proofs_of
from jetstream_server.replication.drivers.copy_turns import CopyTurns
from jetstream_server.replication.drivers.leader_stream import LeaderStream
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.access_control import AccessControl
from jetstream_server.security.identity import Identity
from jetstream_server.serving.dataplane.guard import admit

logger = structlog.get_logger("jetstream.dataplane")


class Followers:
    """Serves the follower nodes of this node."""

    def __init__(
        self,
        replicas: ReplicaManager,
        access: AccessControl,
        throttle: LogThrottle,
        *,
        cluster_id: str,
        secret: bytes,
        has_tls: bool,
        copy_turns: CopyTurns,
        monotonic_clock: MonotonicClock,
    ) -> None:
        """secret: the cluster's credential, which followers must know. has_tls: they must show
        their certificate, too. copy_turns: how fast followers that are not in sync are sent
        records."""
        self._replicas = replicas
        self._access = access
        self._throttle = throttle
        self._cluster_id = cluster_id
        self._secret = secret
        self._has_tls = has_tls
        self._copy_turns = copy_turns
        self._monotonic_clock = monotonic_clock

    async def serve(
        self,
        connection: FrameConnection,
        correlation: int,
        hello: pb.NodeHello,
        nonce: bytes,
        identified: Callable[[], None],
    ) -> Identity | None:
        """Serve a follower until it leaves, and return None. If the node wants to fetch like a
        client, return its identity at once. nonce: ours. identified: called once it has proved
        which node it is."""
        node = Identity(f"node:{hello.node_id}", connection.peer, is_node=True)
        claimed = NodeIdentity(hello.node_id, hello.incarnation, self._cluster_id, self._secret)
        proofs = proofs_of(claimed, nonce + hello.nonce)
        try:
            if self._has_tls and connection.peer_identity is None:
                raise UnauthenticatedError(
                    f"no certificate: this port wants that of node {hello.node_id}"
                )
            check_certificate(connection, hello.node_id)
            check_proof(hello.proof, proofs["follower"])
            admit(self._access, node, Kind.NODE_HELLO)
            if not hello.fetches:
                admit(self._access, node, Kind.POSITIONS)
                admit(self._access, node, Kind.FIXED_POSITIONS)
        except (PermissionDeniedError, UnauthenticatedError) as error:
            if self._throttle.is_due("node_refused", connection.peer):
                logger.warning("node_refused", node=hello.node_id, reason=error.message)
            refusal = pb.NodeHelloReply(error=error.to_proto())
            await connection.send(Kind.NODE_HELLO_REPLY, correlation, refusal)
            return None
        identified()
        reply = pb.NodeHelloReply(proof=proofs["leader"], fixed_layout=hello.fixed_layout)
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
            fixed_layout=hello.fixed_layout,
        )
        await follower.run()
        return None
