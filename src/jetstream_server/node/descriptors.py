"""File descriptors: raises the limit, and decides how many connections may use.

The usual soft limit of 1,024 is low; a process may raise it to the hard limit. The log always gets
DESCRIPTORS_MIN: a log that cannot open its file is worse than a client that cannot connect.
Connections to the data plane come next. The log then keeps as many more files open as are left, so
that appends to thousands of streams do not open theirs anew each time: at most half of all.

gRPC gets up to half of what is left beside the log's, and GRPC_CONNECTIONS_MIN where that is less.
Where the limit has no room for all of them together (13,272 by default), they can take the
descriptors of the log's files. Nothing is lost then (log/health.py): appends are refused and
flushes wait.
"""

from __future__ import annotations

import resource

from jetstream_server.log.disk import DESCRIPTORS_MIN
from jetstream_server.serving.dataplane.server import CONNECTIONS_MAX, KEPT_FOR_NODES
from jetstream_server.serving.grpc.connection_limiter import CONNECTIONS_MAX as GRPC_CONNECTIONS_MAX
from jetstream_server.serving.http.connections import CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX
from jetstream_server.serving.http.server import AT_ONCE as HTTP_AT_ONCE

_PER_CONNECTION = 2  # Its socket, and the segment that is being sent.
RESERVED = (
    DESCRIPTORS_MIN + HTTP_CONNECTIONS_MAX + HTTP_AT_ONCE + _PER_CONNECTION * KEPT_FOR_NODES + 128
)
"""Descriptors for the log's files, HTTP and other nodes; 128 for NATS, Python itself, and a few
connections of gRPC."""
LOG_FILES_MAX = 16_384
GRPC_CONNECTIONS_MIN = 64


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


def grpc_connections_max(limit: int) -> int:
    """Connections that the gRPC port keeps when `limit` descriptors may be open."""
    if limit == resource.RLIM_INFINITY:
        return GRPC_CONNECTIONS_MAX
    return min(GRPC_CONNECTIONS_MAX, max((limit - RESERVED) // 2, GRPC_CONNECTIONS_MIN))


def log_files_max(limit: int, wanted: int = CONNECTIONS_MAX) -> int:
    """How many files the log may keep open when `limit` descriptors may be. wanted: connections to
    the data plane."""
    if limit == resource.RLIM_INFINITY:
        return LOG_FILES_MAX
    connections = _PER_CONNECTION * connections_max(limit, wanted) + GRPC_CONNECTIONS_MAX
    left = min(limit - RESERVED - connections, limit // 2)
    return min(DESCRIPTORS_MIN + max(left, 0), LOG_FILES_MAX)
