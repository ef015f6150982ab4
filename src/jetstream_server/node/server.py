"""The parts of a running server, and its report on itself: readiness, addresses, metrics."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.jetstream_api.api import JetStreamApi
from jetstream_server.log.disk import OsDisk
from jetstream_server.net.certificates import Certificates
from jetstream_server.node.banner import banner
from jetstream_server.node.catching_up import CatchingUp
from jetstream_server.node.config import Config, NodeConfig
from jetstream_server.node.consumers import NodeConsumers
from jetstream_server.node.metrics_snapshot import snapshot_of, use_of
from jetstream_server.node.node import Node
from jetstream_server.node.run_state import RunState
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose node has joined its cluster. configured: its entry in the file of `config`.
    certificates: None without TLS. bounds: of acks and bytes that wait for commits. api: None
    without `nats.api_domain`. refused: counts connections of gRPC and HTTP that were closed because
    there were too many, by port."""

    config: Config
    configured: NodeConfig
    state: RunState
    certificates: Certificates | None
    histograms: Histograms
    node: Node
    connection: NatsConnection
    bounds: Bounds
    grpc_loop: GrpcLoop
    peers: Peers
    disk: OsDisk
    catching_up: CatchingUp
    consumers: NodeConsumers
    api: JetStreamApi | None
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def connections_per_address(self) -> int:
        """Upper bound on one address's connections to one port."""
        limits = self.config.limits
        return limits.connections_per_address or max(limits.connections // 2, 1)

    def not_ready(self) -> list[str]:
        """Why the node should not be sent work; empty: it is ready."""
        reasons = self.state.reasons_not_ready
        if not reasons:
            if not self.connection.is_connected:
                reasons.append("not connected to NATS")
            elif not self.connection.is_responsive:
                reasons.append("NATS is not heard")
            if not self.node.membership.lease_held():
                reasons.append("no session: the controller does not answer")
            if self.node.replicas.full_reason:
                reasons.append(self.node.replicas.full_reason)
        return reasons

    def not_to_be_relied_on(self) -> list[str]:
        """Why /readyz says no: the node is not ready, or it serves and has not caught up since its
        start, or hears no stream, so that no other node should be stopped yet."""
        reasons = self.not_ready() or self.catching_up.reasons()
        if not reasons and self.node.ingest.hears_nothing:
            reasons = ["NATS refuses every subscription of this node"]
        return reasons

    def notes(self) -> list[str]:
        """What /readyz says beside. One stream that is not heard is no reason to stop using the
        node. Strangers may read it, so it names none."""
        refused, api = self.connection.subscriptions_refused, self.api
        found = [f"NATS refuses subscriptions: {refused}"] if refused else []
        if api is not None and not api.link.is_connected:
            found.append("the leaf link is not connected: the JetStream API is not served here")
        return found

    def nats_urls(self) -> tuple[str, ...]:
        """The URLs to which clients publish."""
        return tuple(self.config.nats.advertise) or self.connection.urls

    def announcement(self, not_ready: list[str], for_people: bool) -> str:
        """The addresses and the readiness: a banner, or one line for people and scripts."""
        state = f"not ready ({', '.join(not_ready)})" if not_ready else "ready"
        node = self.configured
        scheme = "http" if self.certificates is None else "https"
        http = f"{scheme}://{node.http.advertise}"
        if for_people:
            return banner(state, node.grpc.advertise, http, self.nats_urls(), self.config.data)
        return (
            f"jetstream-server {state}: node={node.id} grpc={node.grpc.advertise} "
            f"data={node.data.advertise} http={http} "
            f"tls={'off' if self.certificates is None else 'on'} "
            f"nats={','.join(self.nats_urls())} folder={self.config.data}"
        )

    def snapshot(self) -> Snapshot:
        """The numbers of its metrics, without the sums over streams."""
        return snapshot_of(
            self.node,
            self.connection,
            self.bounds,
            folder=self.config.data,
            disk_reserve_bytes=self.config.log.disk_reserve_bytes,
            is_ready=not self.not_ready(),
            refused=self.refused,
            api=self.api,
        )

    async def use(self) -> pb.NodeUse:
        """What the node holds."""
        reserve = self.config.log.disk_reserve_bytes
        return await use_of(self.node.replicas, self.config.data, reserve)
