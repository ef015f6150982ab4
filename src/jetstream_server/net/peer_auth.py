"""Authenticates two nodes to each other on the data plane: both know the cluster's credential.

A node proves it by an HMAC over fresh nonces of both sides and its identity, so that a proof can be
neither replayed nor used for another node. This authenticates both ends. It does not encrypt or
protect what follows; TLS does.
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
