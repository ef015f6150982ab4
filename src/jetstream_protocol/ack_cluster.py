"""The mark by which acknowledgements say from which cluster they come.

    {"stream":"orders","seq":43,"cluster":"3f9a12c07be4"}      an ack, or a nack
    _INBOX.<random>.1f@3f9a12c07be4                            where the SDK expects it

Several clusters, and NATS JetStream, may hear one subject, and each answers. A publisher must not
take the answer of another one for that of its own. The mark is a digest: it does not tell the
cluster's id to publishers.
"""

from __future__ import annotations

import hashlib
from typing import Final

MARK_LENGTH: Final = 12
SIGN: Final = "@"
"""Between the rest of a reply subject and the mark."""
_DIGITS: Final = frozenset(b"0123456789abcdef")


def mark_of(cluster_id: str) -> str:
    """The mark of the cluster; "" if it has no id."""
    if not cluster_id:
        return ""
    return hashlib.sha256(f"jetstream acks/{cluster_id}".encode()).hexdigest()[:MARK_LENGTH]


def mark_in(reply: bytes) -> str:
    """The mark at the end of a reply subject; "" if there is none."""
    mark = reply[-MARK_LENGTH:]
    if reply[-MARK_LENGTH - 1 : -MARK_LENGTH] != SIGN.encode() or not _DIGITS.issuperset(mark):
        return ""
    return mark.decode()
