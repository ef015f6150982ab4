"""The identity in a connection's certificate, for access control."""

from __future__ import annotations

from jetstream_server.net.tls import PeerIdentity
from jetstream_server.security.identity import ANONYMOUS, Identity


def shown_by(certificate: PeerIdentity | None, peer: str) -> Identity:
    """A client's certificate shows `user:NAME`. A node's shows nobody: it is no client, and to be a
    node it takes a proof that it knows the credential, too."""
    if certificate is None or certificate.node_id is not None:
        return Identity(ANONYMOUS.principal, peer)
    return Identity(f"user:{certificate.name}", peer)


def contradicts(certificate: PeerIdentity | None, identity: Identity) -> bool:
    """Whether somebody who has proved to be a node shows a certificate that is not that node's."""
    if certificate is None or not identity.is_node:
        return False
    return identity.principal != f"node:{certificate.node_id}"
