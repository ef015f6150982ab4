"""Connects to another node's data plane. Both ends prove that they know the cluster's credential.

A proof is an HMAC over a node's identity and fresh nonces of both sides, so it can be neither
replayed nor used for another node. It does not encrypt or protect the frames that follow; TLS does.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass

from jetstream_protocol import frames
from jetstream_protocol.errors import UnauthenticatedError, UnavailableError, from_proto
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.version import VERSION
from jetstream_server.net.frame_connection import CONNECT_SECONDS, Dial, FrameConnection

_CLIENT = f"jetstream-server/{VERSION}"


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of this process for other nodes. secret: the cluster's credential."""

    node_id: int
    incarnation: int
    cluster_id: str
    secret: bytes


async def connect(dial: Dial, address: tuple[str, int]) -> FrameConnection:
    """Connect to a node's data plane. Raises OSError, of which TimeoutError is one."""
    async with asyncio.timeout(CONNECT_SECONDS):
        return await dial(address)


async def greet(
    connection: FrameConnection, identity: NodeIdentity, node_id: int, *, fetches: bool = False
) -> bool:
    """Authenticate this node to the other one, and check that the other one is the expected node.

    fetches: the connection will read records; otherwise it replicates. Returns whether both nodes
    know the fixed layout of positions and records. Raises UnavailableError, UnauthenticatedError,
    or the error that the other node answers.
    """
    async with asyncio.timeout(CONNECT_SECONDS):
        hello = pb.Hello(
            version=frames.PROTOCOL_VERSION,
            client=f"{_CLIENT} node {identity.node_id}",
            is_node=True,
        )
        await connection.send(Kind.HELLO, 0, hello)
        _, answer = await connection.read_frame(Kind.HELLO_REPLY, pb.HelloReply)
        _check(answer)
        if answer.cluster_id != identity.cluster_id or answer.node_id != node_id:
            raise UnavailableError(
                f"node {answer.node_id} of cluster {answer.cluster_id} answers in place of node "
                f"{node_id}"
            )
        check_certificate(connection, node_id)
        return await _prove(connection, identity, answer.nonce, fetches=fetches)


def check_certificate(connection: FrameConnection, node_id: int) -> None:
    """Raise UnauthenticatedError if the other end has shown another certificate than that node's.
    Does nothing without a certificate: a port that demands one has checked that before."""
    identity = connection.peer_identity
    if identity is not None and identity.node_id != node_id:
        raise UnauthenticatedError(
            f"the certificate is that of {identity.name}, not of node {node_id}"
        )


def proofs_of(identity: NodeIdentity, nonces: bytes) -> dict[str, bytes]:
    """What the "follower", which has this identity, and the "leader" send. nonces: the leader's,
    then the follower's."""
    text = f"/{identity.node_id}/{identity.incarnation}/{identity.cluster_id}/".encode()
    secret = identity.secret or b"no credential"
    return {
        role: hmac.digest(secret, role.encode() + text + nonces, "sha256")
        for role in ("follower", "leader")
    }


def check_proof(given: bytes, wanted: bytes) -> None:
    """Raise UnauthenticatedError unless the proof is right."""
    if not hmac.compare_digest(given, wanted):
        raise UnauthenticatedError("the other node does not know this cluster's credential")


async def _prove(
    connection: FrameConnection, identity: NodeIdentity, challenge: bytes, *, fetches: bool
) -> bool:
    nonce = secrets.token_bytes(32)
    proofs = proofs_of(identity, challenge + nonce)
    request = pb.NodeHello(
        node_id=identity.node_id,
        incarnation=identity.incarnation,
        nonce=nonce,
        proof=proofs["follower"],
        fetches=fetches,
        fixed_layout=True,
    )
    await connection.send(Kind.NODE_HELLO, 0, request)
    _, reply = await connection.read_frame(Kind.NODE_HELLO_REPLY, pb.NodeHelloReply)
    _check(reply)
    check_proof(reply.proof, proofs["leader"])
    return reply.fixed_layout


def _check(reply: pb.HelloReply | pb.NodeHelloReply) -> None:
    if reply.HasField("error"):
        raise from_proto(reply.error)
