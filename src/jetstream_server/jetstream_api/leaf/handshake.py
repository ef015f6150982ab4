"""The login on a leaf link. Pure, except that credentials may be read from files.

NATS takes this node for a leaf node: its own name, the cluster's name beside it, so that NATS
passes nothing from one node of ours to another.
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import Any

from jetstream_protocol.errors import PreconditionFailedError
from jetstream_server.ingest.nats.handshake import Dialect, LinkOptions, login_fields
from jetstream_server.ingest.nats.server_pool import ServerAddress
from jetstream_server.jetstream_api.leaf.parser import LeafParser

LEAF_PORT_DEFAULT = 7422
_PROTOCOL = 1
"""Without message tracing, which leaf nodes of level 2 announce."""
_VERSION = "2.12.0"
"""Announced to a server that does not say its own."""


def leaf_dialect(domain: str, cluster: str) -> Dialect:
    """domain: the one that this link serves. cluster: the name of ours."""
    group = f"jetstream-{re.sub(r'[^A-Za-z0-9_-]', '_', cluster)}"
    return Dialect(LeafParser, partial(_connect_line, domain, group))


def _connect_line(
    domain: str, group: str, options: LinkOptions, address: ServerAddress, info: dict[str, Any]
) -> bytes:
    """The CONNECT line. Raises PreconditionFailedError where clients would not reach us, and
    UnauthenticatedError for credentials that cannot be used."""
    if info.get("domain") == domain:
        raise PreconditionFailedError(
            f"the NATS server {address.url} has JetStream itself, with the domain {domain!r}, and "
            "would answer what clients ask of ours: choose another nats.api_domain, or another "
            "jetstream.domain there"
        )
    name = f"{group}-{options.name}"
    fields = {
        # A server may be configured to refuse leaf nodes below a version; we speak what it speaks.
        "version": str(info.get("version") or _VERSION),
        "server_id": name,
        "name": name,
        "cluster": group,
        "headers": True,
        "protocol": _PROTOCOL,
        **login_fields(options, address, info),
    }
    return b"CONNECT %b\r\n" % json.dumps(fields, separators=(",", ":")).encode()
