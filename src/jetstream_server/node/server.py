"""The parts of a running server, and its report on itself: addresses, use."""

from __future__ import annotations

import asyncio
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
from jetstream_server.node.node import Node
from jetstream_server.node.run_state import RunState
from jetstream_server.replication.drivers.disk_reserve import free_bytes
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.metrics.histograms import Histograms
from jetstream_server.serving.metrics.page import REPLICAS_PER_TURN


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

    async def use(self) -> pb.NodeUse:
        """What the node holds. The event loop gets a turn after each REPLICAS_PER_TURN replicas."""
        led = log_bytes = 0
        for count, replica in enumerate(list(self.node.replicas), 1):
            led += replica.leadership is not None
            log_bytes += replica.log.size_bytes
            if count % REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)
        free = free_bytes(self.config.data)
        return pb.NodeUse(
            streams=len(self.node.replicas),
            streams_led=led,
            log_bytes=log_bytes,
            disk_free_bytes=-1 if free is None else free,
            disk_reserve_bytes=self.config.log.disk_reserve_bytes,
        )
