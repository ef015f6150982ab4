"""Collects the numbers of the metrics (serving/metrics)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path

from jetstream_protocol.generated import api_pb2 as pb
from jetstream_server.ingest.nats.compiled import INGEST_FORM
from jetstream_server.ingest.nats.connection import NatsConnection
from jetstream_server.ingest.stream.stream_ingest import Bounds
from jetstream_server.jetstream_api.api import JetStreamApi
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.node.node import Node
from jetstream_server.node.output import LOST
from jetstream_server.replication.drivers.disk_reserve import free_bytes
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.serving.metrics.page import REPLICAS_PER_TURN
from jetstream_server.serving.metrics.snapshot import ApiNumbers, LakeNumbers, Snapshot


def snapshot_of(
    node: Node,
    connection: NatsConnection,
    bounds: Bounds,
    *,
    folder: Path,
    disk_reserve_bytes: int,
    is_ready: bool,
    refused: Mapping[str, int],
    api: JetStreamApi | None,
) -> Snapshot:
    """The numbers of a node that has joined, without the sums over its streams. refused: closed
    connections of gRPC and HTTP, by port."""
    counters = connection.counters
    keys = node.replicas.log_config.keys
    return Snapshot(
        raft=node.metadata.status(),
        leaderships=node.leaderships,
        compaction=node.drivers.compaction.counters,
        lake=_lake(node),
        fetches=node.fetches.times,
        nodes=_nodes(node.metadata.registry.nodes.values()),
        ingest_form=INGEST_FORM,
        key_ids=() if keys is None else keys.ids,
        is_ready=is_ready,
        session_held=node.membership.lease_held(),
        nats_connected=connection.is_connected,
        nats_messages=counters.messages,
        nats_disconnects=counters.disconnects,
        nats_reconnects=counters.reconnects,
        nats_writes_refused=counters.writes_refused,
        nats_subscriptions_refused=connection.subscriptions_refused,
        data_plane_connections=node.data_plane.connection_count,
        waiting_fetches=node.fetches.waiting,
        pending_acks=bounds.pending_acks,
        cursors=node.drivers.cursors.cursors_known(),
        uncommitted_bytes=bounds.uncommitted_bytes,
        scrubbed_bytes=node.drivers.scrub.bytes_read,
        damaged_ranges_found=node.drivers.healing.ranges_found,
        damaged_ranges_repaired=node.drivers.healing.ranges_repaired,
        retention_removed_records=node.drivers.retention.records_removed,
        authentication_failures=node.access.audit.authentication_failures,
        authorization_failures=node.access.audit.authorization_failures,
        quota_refusals=node.access.audit.quota_refusals,
        log_lines_lost=LOST.count,
        connections_refused={"data": node.data_plane.connections_refused, **refused},
        disk_free_bytes=free_bytes(folder),
        disk_reserve_bytes=disk_reserve_bytes,
        api=None if api is None else _api(api),
    )


def _lake(node: Node) -> LakeNumbers | None:
    uploading, reader = node.drivers.uploading, node.fetches.lake
    sweeping = node.drivers.sweeping
    if uploading is None or reader is None or sweeping is None:
        return None
    counters = uploading.counters
    return LakeNumbers(
        objects=counters.objects,
        bytes=counters.bytes,
        stored_bytes=counters.stored_bytes,
        failures=counters.failures,
        streams_failing=uploading.streams_failing,
        reads=reader.reads,
        read_failures=reader.failures,
        cache_bytes=reader.kept_bytes,
        objects_waiting=sweeping.objects_waiting,
        objects_removed=sweeping.objects_removed,
        sweep_failures=sweeping.failures,
    )


def _api(api: JetStreamApi) -> ApiNumbers:
    return ApiNumbers(
        is_connected=api.link.is_connected,
        requests=api.counters.requests,
        errors=api.counters.errors,
        refused=api.counters.refused,
        answers_dropped=api.link.counters.answers_dropped,
    )


async def use_of(replicas: ReplicaManager, folder: Path, disk_reserve_bytes: int) -> pb.NodeUse:
    """What the node holds. The event loop gets a turn after each REPLICAS_PER_TURN replicas."""
    led = log_bytes = 0
    for count, replica in enumerate(list(replicas), 1):
        led += replica.leadership is not None
        log_bytes += replica.log.size_bytes
        if count % REPLICAS_PER_TURN == 0:
            await asyncio.sleep(0)
    free = free_bytes(folder)
    return pb.NodeUse(
        streams=len(replicas),
        streams_led=led,
        log_bytes=log_bytes,
        disk_free_bytes=-1 if free is None else free,
        disk_reserve_bytes=disk_reserve_bytes,
    )


def _nodes(nodes: Iterable[NodeMetadata]) -> dict[str, int]:
    counts = {"serving": 0, "draining": 0, "fenced": 0}
    for node in nodes:
        counts[_state(node)] += 1
    return counts


def _state(node: NodeMetadata) -> str:
    if node.fenced:
        return "fenced"
    return "draining" if node.yields_leadership else "serving"
