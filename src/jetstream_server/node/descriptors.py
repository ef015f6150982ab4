"""File descriptors: raises the limit, and decides how many connections may use.

The usual soft limit of 1,024 is low; a process may raise it to the hard limit. Connections get the
descriptors that the log and the rest of the process do not need: a log that cannot open its file is
worse than a client that cannot connect.
"""

from __future__ import annotations

import resource

from jetstream_server.log.disk import DESCRIPTORS_MAX
from jetstream_server.serving.dataplane.server import CONNECTIONS_MAX
from jetstream_server.serving.http.server import AT_ONCE as HTTP_AT_ONCE
from jetstream_server.serving.http.server import CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX

RESERVED = DESCRIPTORS_MAX + HTTP_CONNECTIONS_MAX + HTTP_AT_ONCE + 128
"""Descriptors for the log's files, HTTP, gRPC, NATS, other nodes, and Python itself."""
_PER_CONNECTION = 2  # Its socket, and the segment that is being sent.


def raise_limit() -> int:
    """Raise this process's limit to the hard limit, and return the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def connections_max(limit: int, wanted: int = CONNECTIONS_MAX) -> int:
    """Data-plane connections to accept when `limit` descriptors may be open; at most `wanted`."""
    if limit == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max((limit - RESERVED) // _PER_CONNECTION, 1))
