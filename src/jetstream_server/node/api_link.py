"""Puts the JetStream API together, if the configuration asks for it."""

from __future__ import annotations

from functools import partial

from jetstream_protocol.types import StreamId
from jetstream_server.clocks import Clocks, wall_clock
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.nats.replies import AckPolicy
from jetstream_server.jetstream_api.api import JetStreamApi
from jetstream_server.jetstream_api.bucket_puts import BucketPuts
from jetstream_server.jetstream_api.catalogue import Catalogue
from jetstream_server.jetstream_api.consumers import ConsumerRequests
from jetstream_server.jetstream_api.leaf.connection import LeafConnection, OnMessages
from jetstream_server.jetstream_api.leaf.parser import LeafMessage
from jetstream_server.jetstream_api.messages import Messages
from jetstream_server.jetstream_api.requests import announcement, withdrawal
from jetstream_server.jetstream_api.search import Search
from jetstream_server.jetstream_api.stream_changes import StreamChanges
from jetstream_server.jetstream_api.stream_reads import StreamReads
from jetstream_server.metadata.client.stream_requests import Streams
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.node.config import Config
from jetstream_server.node.consumers import NodeConsumers
from jetstream_server.node.nats_options import leaf_options, leaf_servers
from jetstream_server.node.node import Node
from jetstream_server.security.acl import Operation
from jetstream_server.security.identity import Identity
from jetstream_server.serving.grpc.peers import Peers
from jetstream_server.serving.grpc.purges import Purges


def jetstream_api(
    config: Config, node_id: int, node: Node, peers: Peers, served: NodeConsumers
) -> JetStreamApi | None:
    """The API of `nats.api_domain`; None: there is no domain. Raises ConfigurationError for TLS
    files that cannot be used."""
    nats = config.nats
    identity, outlet, account = served.identity, served.outlet, served.account
    if outlet is None:
        return None
    registry = node.metadata.registry
    reads = StreamReads(
        registry, node.replicas, node.fetches, peers, node_id, identity, served.consumers
    )
    catalogue = Catalogue(
        registry,
        node.stream_access,
        reads,
        identity,
        domain=nats.api_domain,
        cluster=config.cluster,
        wall_clock=wall_clock,
    )
    search = Search(reads, partial(node.access.pace, identity))
    requests = ConsumerRequests(
        served.consumers,
        served.leaderships,
        outlet,
        catalogue,
        search,
        reads,
        registry,
        node.replicas,
        peers,
        Clocks(),
        node_id=node_id,
        domain=nats.api_domain,
        cluster=config.cluster,
        account=account,
        creator=node.access.quota_holder(identity),
    )
    node.metadata.watch(requests.apply)
    changes = StreamChanges(
        node.metadata,
        Streams(node.metadata, wall_clock, nodes_configured=len(config.nodes)),
        node.stream_access,
        catalogue,
        reads,
        peers,
        identity,
        node.ingest.confirm,
        node.replicas,
        Purges(node.metadata, node.drivers.changes, node.drivers.retention.visit),
        node_id=node_id,
    )
    puts = _bucket_puts(node, identity, node_id, nats.api_domain)

    def connect(on_messages: OnMessages) -> LeafConnection:
        return LeafConnection(
            leaf_servers(nats),
            leaf_options(nats, node_id, config.cluster),
            announcement(nats.api_domain),
            withdrawal(nats.api_domain),
            on_messages,
            AckPolicy(config.ingest.ack_subjects),
        )

    return JetStreamApi(
        nats.api_domain,
        catalogue,
        Messages(catalogue, search),
        connect,
        requests,
        changes=changes,
        puts=puts,
        is_open=not node.access.enabled or bool(nats.api_principal),
    )


def _bucket_puts(node: Node, identity: Identity, node_id: int, domain: str) -> BucketPuts:
    def put(stream_id: StreamId, message: LeafMessage) -> None:
        headers = [message.headers] if message.headers else None
        node.ingest.take(
            stream_id, Delivery(0, [message.subject], [message.reply], [message.payload], headers)
        )

    def may_write(stream: StreamMetadata, subject: str) -> bool:
        access = node.access
        if not access.applies_to(identity) or access.allows_named(
            identity, Operation.WRITE, stream.name, subject
        ):
            return True
        access.audit.refused(identity, Operation.WRITE, stream.full_name, "no right")
        return False

    puts = BucketPuts(node.metadata.registry, put, may_write, node_id=node_id, domain=domain)
    node.metadata.watch(puts.apply)
    return puts
