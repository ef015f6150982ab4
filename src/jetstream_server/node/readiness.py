"""Why a node should not be sent work, or not be relied on: for /readyz and the other nodes."""

from __future__ import annotations

from jetstream_server.node.server import Server


def not_ready(server: Server) -> list[str]:
    """Why the node should not be sent work; empty: it is ready."""
    reasons = server.state.reasons_not_ready
    if not reasons:
        if not server.connection.is_connected:
            reasons.append("not connected to NATS")
        elif not server.connection.is_responsive:
            reasons.append("NATS is not heard")
        if not server.node.membership.lease_held():
            reasons.append("no session: the controller does not answer")
        if server.node.replicas.full_reason:
            reasons.append(server.node.replicas.full_reason)
    return reasons


def not_to_be_relied_on(server: Server) -> list[str]:
    """Why /readyz says no: the node is not ready, or it serves and has not caught up since its
    start, or hears no stream, so that no other node should be stopped yet."""
    reasons = not_ready(server) or server.catching_up.reasons()
    if not reasons and server.node.ingest.hears_nothing:
        reasons = ["NATS refuses every subscription of this node"]
    return reasons


def notes(server: Server) -> list[str]:
    """What /readyz says beside. One stream that is not heard is no reason to stop using the node.
    Strangers may read it, so it names none."""
    refused, api = server.connection.subscriptions_refused, server.api
    found = [f"NATS refuses subscriptions: {refused}"] if refused else []
    if api is not None and not api.link.is_connected:
        found.append("the leaf link is not connected: the JetStream API is not served here")
    return found
