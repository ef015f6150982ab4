"""Options of gRPC channels and keys of their metadata, alike for clients and for nodes that call
each other."""

from __future__ import annotations

from typing import Final

MADE_AT_KEY: Final = "jetstream-made-at"
"""Metadata key of a call that changes something: the highest revision of the metadata that its
sender knew. A copy that arrives late undoes no change that was made after it was sent."""
REVISION_KEY: Final = "jetstream-revision"
"""Key in the metadata of a call: the highest revision of the metadata that its sender knew. A node
that has not reached it waits a moment before it answers. In the trailing metadata of an answer: the
revision that the node has reached."""
CONNECT_MS: Final = 500
TLS_CONNECT_MS: Final = 3000
"""At least this long an attempt to connect may take. With TLS it takes three more messages on their
way, and work on both sides. If all attempts ended too soon on a slow link or a busy machine, they
would begin anew for ever."""


def reconnect_options(*, over_tls: bool) -> tuple[tuple[str, int], ...]:
    """With these a channel finds a server about a second after it is back, however long it was
    away."""
    return (
        # gRPC's own reconnect back-off (to 120 s) would outlast a failover.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", TLS_CONNECT_MS if over_tls else CONNECT_MS),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.enable_http_proxy", 0),
        # Without this a new channel shares the back-off and the last failure of earlier ones.
        ("grpc.use_local_subchannel_pool", 1),
    )
