"""Whence a call comes that a node's HTTP port makes in the name of its sender: for the audit log.

    jetstream-origin: PEER MAC

The MAC is made with the cluster's credential, and holds for the sender's own `authorization` only.
So no client can put another address into the audit log.
"""

from __future__ import annotations

import hashlib
import hmac
from urllib.parse import quote, unquote

HEADER = "jetstream-origin"
"""Metadata key of the call."""
PEER_LENGTH_MAX = 100


def value_of(secret: bytes, peer: str, authorization: str) -> str:
    """What to send. "": there is no credential, or no address."""
    if not secret or not peer:
        return ""
    return f"{quote(peer, safe='')} {_mac(secret, peer, authorization)}"


def checked(secret: bytes, value: str, authorization: str) -> str:
    """The sender's address. "": the value is missing, or not that of a node."""
    quoted, _, mac = value.partition(" ")
    peer = unquote(quoted)
    if not secret or not peer or len(peer) > PEER_LENGTH_MAX or not peer.isprintable():
        return ""
    genuine = hmac.compare_digest(mac.encode(), _mac(secret, peer, authorization).encode())
    return peer if genuine else ""


def _mac(secret: bytes, peer: str, authorization: str) -> str:
    signed = "\0".join(("origin", peer, authorization)).encode()
    return hmac.new(secret, signed, hashlib.sha256).hexdigest()
