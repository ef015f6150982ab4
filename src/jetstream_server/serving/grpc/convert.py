"""Converts between values of the metadata and messages of the gRPC API."""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_server.metadata.state.model import NodeMetadata, StreamMetadata
from jetstream_server.metadata.state.tables import Tables

_FLUSH = {"none": pb.FLUSH_NONE, "interval": pb.FLUSH_INTERVAL, "group": pb.FLUSH_GROUP}
_ENCRYPTION = {"node": pb.ENCRYPTION_NODE, "aes-256-gcm": pb.ENCRYPTION_AES_256_GCM}
_ACKS = {"reply": pb.ACKS_REPLY, "envelope": pb.ACKS_ENVELOPE, "off": pb.ACKS_OFF}

# Settings that have the same name in StreamSettings and StreamConfig: copied.
_PLAIN: tuple[Any, ...] = (
    "max_age_us", "max_bytes", "max_messages", "compact", "tombstone_grace_us",
    "duplicate_window_us", "segment_bytes", "segment_age_us",
    "restoring", "observers",
)  # fmt: skip


def stream_to_proto(stream: StreamMetadata) -> pb.Stream:
    return pb.Stream(
        id=stream.id,
        name=stream.name,
        subject=stream.subject,
        config=pb.StreamConfig(
            replicas=stream.config.replicas,
            min_insync_replicas=stream.config.min_insync_replicas,
            flush=_FLUSH[stream.config.flush],
            acks=_ACKS[stream.config.acks],
            encryption=_ENCRYPTION[stream.config.encryption],
            group=stream.group,
            partition=stream.partition,
            partitions=stream.partitions,
            **{name: getattr(stream.config, name) for name in _PLAIN},
        ),
        replicas=stream.replicas,
        leader=stream.leader,
        leader_epoch=stream.leader_epoch,
        stream_epoch=stream.stream_epoch,
        isr=stream.isr,
        elr=stream.elr,
        created_at_us=stream.created_at_us,
        lossy_elections=stream.lossy_elections,
        readonly=stream.readonly,
        paused=stream.paused,
        target_replicas=stream.target_replicas,
        observers=stream.observers,
    )


def leaderless_state(stream: StreamMetadata, tables: Tables) -> str:
    """The nodes for which a stream without a leader waits: any one that is eligible, or else all
    that may hold committed records, and then the other replicas."""
    awaited: list[str] = []
    for nodes in (stream.elr,) if stream.elr else (stream.last_known, stream.replicas):
        down = [node_id for node_id in nodes if not tables.is_alive(node_id)]
        awaited = awaited or [f"node {node_id}" for node_id in down]
    if not awaited:
        return "offline: no replica may lead it now"
    return f"offline: waits for {(' or ' if stream.elr else ' and ').join(awaited)}"


def config_from_proto(config: pb.StreamConfig) -> dict[str, Any]:
    """The settings that the user gave, None for others. Raises InvalidRequestError for unknown
    enums."""
    return {
        "replicas": config.replicas if config.HasField("replicas") else None,
        "min_insync_replicas": (
            config.min_insync_replicas if config.HasField("min_insync_replicas") else None
        ),
        "flush": _named("flush", config.flush, _FLUSH),
        "acks": _named("acks", config.acks, _ACKS),
        "encryption": _named("encryption", config.encryption, _ENCRYPTION),
        "group": config.group,
        "partition": config.partition,
        "partitions": config.partitions,
        **{name: getattr(config, name) if config.HasField(name) else None for name in _PLAIN},
    }


def _named(field: str, value: int, names: dict[str, Any]) -> str | None:
    if value == 0:
        return None
    for name, number in names.items():
        if number == value:
            return name
    raise InvalidRequestError(f"{field}: unknown value {value}; use one of {', '.join(names)}")


def node_to_proto(node: NodeMetadata, *, voter: bool) -> pb.DescribeClusterResponse.Node:
    """voter: whether it votes on the metadata."""
    return pb.DescribeClusterResponse.Node(
        address=common_pb2.NodeAddress(
            node_id=node.node_id,
            grpc=node.addresses.grpc,
            data=node.addresses.data,
            http=node.addresses.http,
        ),
        rack=node.rack,
        incarnation=node.incarnation,
        fenced=node.fenced,
        draining=node.yields_leadership,
        voter=voter,
    )
