"""The identity in the certificate of the other end of a TLS connection.

Only for certificates that TLS has verified: nothing here checks signatures or dates.

* A certificate with the URI `jetstream://node/ID` among its subject alternative names belongs to
  that node, and never to a client.
* Every other certificate belongs to a client. Its principal is the first of these that it has: URI,
  DNS name, e-mail address (each the first of its kind among the subject alternative names), common
  name of the subject.

A certificate identifies no node if it has none of them, has two different node ids, or if its name
is longer than NAME_LENGTH_MAX or not printable: the functions return None.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jetstream_protocol.types import NodeId

NAME_LENGTH_MAX = 255
_NODE_SCHEME = "jetstream:"
_NODE_URI = re.compile(r"jetstream://node/(0|[1-9][0-9]{0,4})")
_NODE_ID_MAX = 65535


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """name: of the principal. node_id: the node that the certificate belongs to; None: a
    client's."""

    name: str
    node_id: NodeId | None = None


def node_uri(node_id: int) -> str:
    """The URI that a node's certificate has among its subject alternative names."""
    return f"jetstream://node/{node_id}"


def of_certificate(certificate: Mapping[str, Any] | None) -> PeerIdentity | None:
    """The identity in the result of `SSLSocket.getpeercert()` or of a transport's
    `get_extra_info("peercert")`."""
    if not certificate:
        return None
    names = certificate.get("subjectAltName", ())
    return _identity(
        uris=[value for kind, value in names if kind == "URI"],
        others=[
            *(value for kind, value in names if kind == "DNS"),
            *(value for kind, value in names if kind == "email"),
            *(
                value
                for relative_name in certificate.get("subject", ())
                for kind, value in relative_name
                if kind == "commonName"
            ),
        ],
    )


def of_auth_context(context: Mapping[str, Iterable[bytes]]) -> PeerIdentity | None:
    """The identity in the result of a gRPC `ServicerContext.auth_context()`."""
    try:
        uris, *others = (
            [value.decode() for value in context.get(key, ())]
            for key in ("peer_uri", "peer_dns", "peer_email", "x509_common_name")
        )
    except UnicodeDecodeError:
        return None
    return _identity(uris, [name for names in others for name in names])


def _identity(uris: Sequence[str], others: Sequence[str]) -> PeerIdentity | None:
    nodes = {uri for uri in uris if uri.lower().startswith(_NODE_SCHEME)}
    if nodes:
        found = _NODE_URI.fullmatch(nodes.pop())
        if nodes or found is None or int(found[1]) > _NODE_ID_MAX:
            return None
        return PeerIdentity(found[0], NodeId(int(found[1])))
    name = next(iter([*uris, *others]), "")
    if not name or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        return None
    return PeerIdentity(name)
