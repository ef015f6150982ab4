"""Options of gRPC channels, alike for clients and for nodes that call each other."""

from __future__ import annotations

from typing import Final

RECONNECT_OPTIONS: Final = (
    # gRPC's own reconnect back-off (to 120 s) would outlast a failover.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # This long an attempt to connect may take.
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
    # Without this a new channel shares the back-off and the last failure of earlier ones.
    ("grpc.use_local_subchannel_pool", 1),
)
"""With these a channel finds a server about a second after it is back, however long it was away."""
