"""The identity in a connection's certificate, for access control."""

from __future__ import annotations

from jetstream_server.net.tls import PeerIdentity
from jetstream_server.security.identity import ANONYMOUS, Identity


def shown_by(certificate: PeerIdentity | None, peer: str) -> Identity:
    """The identity that a certificate shows: `user:NAME` for a client's. A node's certificate shows
    no identity: it is not a client's, and a node must also prove that it knows the credential."""
    if certificate is None or certificate.node_id is not None:
        return Identity(ANONYMOUS.principal, peer)
    return Identity(f"user:{certificate.name}", peer)


def contradicts(certificate: PeerIdentity | None, identity: Identity) -> bool:
    """Whether a caller that has proved to be a node shows a certificate that is not that node's."""
    if certificate is None or not identity.is_node:
        return False
    return identity.principal != f"node:{certificate.node_id}"
