"""The consumers of a node: for NATS clients, if there is a leaf link, and for those of gRPC."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import partial

from jetstream_server.clocks import Clocks, wall_clock
from jetstream_server.consumers.feed import Reader
from jetstream_server.consumers.leaderships import Leaderships
from jetstream_server.consumers.manager import Consumers
from jetstream_server.consumers.no_outlet import NoOutlet
from jetstream_server.jetstream_api.outlet import LeafOutlet
from jetstream_server.log.segment import LogSlice
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.node.config import Config
from jetstream_server.node.node import Node
from jetstream_server.replication.replica import Replica
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import ANONYMOUS, Identity
from jetstream_server.serving.grpc.consumer_states import ConsumerStates
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.long_poll import FetchPosition

_PEER = "the leaf link"
"""For the audit log: NATS does not say which client asks."""


@dataclass(frozen=True, slots=True)
class NodeConsumers:
    """states: what `__cursors` keeps. identity: of all NATS clients. outlet: to them; None: this
    node has no leaf link. account: in the subjects of their acknowledgements."""

    states: ConsumerStates
    consumers: Consumers
    leaderships: Leaderships
    identity: Identity
    outlet: LeafOutlet | None
    account: str


def node_consumers(config: Config, node_id: int, node: Node, peers: Peers) -> NodeConsumers:
    nats = config.nats
    streams = Streams(node.metadata, wall_clock, nodes_configured=len(config.nodes))
    states = ConsumerStates(node.drivers.cursors, node.metadata.registry, streams, peers, node_id)
    identity = Identity(nats.api_principal, _PEER) if nats.api_principal else ANONYMOUS
    account = hashlib.sha256(config.cluster.encode()).hexdigest()[:8]
    may_commit = partial(node.access.allows, identity, Operation.COMMIT)
    outlet = LeafOutlet(nats.api_domain, account, may_commit) if nats.api_domain else None

    async def pace(replica: Replica, length: int) -> None:
        node.access.check(identity, Operation.READ, replica.stream)
        await node.access.pace(identity, replica.stream, length)

    async def from_lake(replica: Replica, offset: int, bytes_max: int) -> LogSlice | None:
        position = FetchPosition(offset, -1, bytes_max, 1, 0)
        return await node.fetches.fetch(replica, position, identity)

    consumers = Consumers(
        node.replicas,
        Reader(pace, from_lake),
        outlet or NoOutlet(),
        Clocks(),
        states,
        node.metadata.note_change,
        node.access.quotas.consumers,
    )
    leaderships = Leaderships(consumers, node.replicas)
    node.metadata.watch(leaderships.apply)
    return NodeConsumers(states, consumers, leaderships, identity, outlet, account)
