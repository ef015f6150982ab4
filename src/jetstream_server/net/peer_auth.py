"""Authenticates two nodes to each other on the data plane by the credential of their cluster.

A node proves that it knows the credential by an HMAC over its identity and fresh nonces of both
sides, so that a proof can be neither replayed nor used for another node. Both ends do so. This does
not encrypt or protect the frames that follow; TLS does.
"""

from __future__ import annotations

import hmac

from jetstream_protocol.errors import UnauthenticatedError


def proof(
    secret: bytes, role: str, *, nonces: bytes, node_id: int, incarnation: int, cluster_id: str
) -> bytes:
    """The proof that `role` ("follower" or "leader") sends. nonces: the leader's, then the
    follower's."""
    text = f"{role}/{node_id}/{incarnation}/{cluster_id}/".encode()
    return hmac.digest(secret or b"no credential", text + nonces, "sha256")


def check(given: bytes, wanted: bytes) -> None:
    """Raise UnauthenticatedError unless the proof is right."""
    if not hmac.compare_digest(given, wanted):
        raise UnauthenticatedError("the other node does not know this cluster's credential")
