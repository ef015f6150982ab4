"""How a node shows another one, in a gRPC call, that it is of the same cluster.

    authorization: Node SENDER:MAC

MAC: HMAC-SHA256 under the cluster's credential over the method, the sender's and the target's ids,
and the target's incarnation. So it serves for nothing but this call, and only for this run of the
target. It hides nothing; TLS does.
"""

from __future__ import annotations

import hmac

SCHEME = "Node "
BOOTSTRAP = 0
"""The incarnation in the proof of somebody who holds the credential without being a node."""


def proof(secret: bytes, method: str, *, sender: int, target: int, incarnation: int) -> str:
    """The value of `authorization`."""
    text = f"jetstream call/{method}/{sender}/{target}/{incarnation}".encode()
    return f"{SCHEME}{sender}:{hmac.new(secret, text, 'sha256').hexdigest()}"


def sender_of(value: str) -> int | None:
    """The sender that the value names; None: it is not such a value."""
    name, _, _ = value.removeprefix(SCHEME).partition(":")
    if not value.startswith(SCHEME) or not name.isascii() or not name.isdecimal() or len(name) > 10:
        return None
    return int(name)


def check(
    secret: bytes, value: str, method: str, *, sender: int, target: int, incarnation: int
) -> bool:
    """Whether the value is right. Never without a credential: everybody knows none."""
    wanted = proof(secret, method, sender=sender, target=target, incarnation=incarnation)
    return bool(secret) and hmac.compare_digest(wanted.encode(), value.encode())
