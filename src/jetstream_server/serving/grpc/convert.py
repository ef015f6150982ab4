"""Converts between values of the metadata and messages of the gRPC API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.setting_messages import NUMBERS
from jetstream_protocol.settings import CLUSTER_SETTINGS, STREAM_SETTINGS
from jetstream_server.metadata.state.cluster import ClusterSettings
from jetstream_server.metadata.state.nodes import NodeMetadata
from jetstream_server.metadata.state.setting_checks import check_range
from jetstream_server.metadata.state.streams import StreamMetadata, StreamSettings
from jetstream_server.metadata.state.tables import Tables


def stream_to_proto(stream: StreamMetadata) -> pb.Stream:
    return pb.Stream(
        id=stream.id,
        name=stream.name,
        subject=stream.subject,
        config=pb.StreamConfig(
            group=stream.group,
            partition=stream.partition,
            partitions=stream.partitions,
            **_settings_to_proto(stream.config),
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
        lake_start_offset=stream.lake.start,
        lake_end_offset=stream.lake.end,
    )


def _settings_to_proto(config: StreamSettings) -> dict[str, Any]:
    values = {setting.field: getattr(config, setting.field) for setting in STREAM_SETTINGS}
    for field, numbers in NUMBERS.items():
        values[field] = numbers[values[field]]
    return values


def cluster_config_to_proto(settings: ClusterSettings) -> pb.ClusterConfig:
    return pb.ClusterConfig(
        **{setting.field: getattr(settings, setting.field) for setting in CLUSTER_SETTINGS}
    )


def cluster_config_from_proto(config: pb.ClusterConfig) -> dict[str, Any]:
    """The settings that the user gave. Raises InvalidRequestError."""
    fields: list[Any] = [setting.field for setting in CLUSTER_SETTINGS]
    given = {field: getattr(config, field) for field in fields if config.HasField(field)}
    for setting in CLUSTER_SETTINGS:
        if setting.field in given:
            check_range(setting, given[setting.field])
    return given


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
    values: dict[str, Any] = {
        "group": config.group,
        "partition": config.partition,
        "partitions": config.partitions,
    }
    for setting in STREAM_SETTINGS:
        field: Any = setting.field
        if field in NUMBERS:
            values[field] = _choice_of(field, getattr(config, field), NUMBERS[field])
        else:
            values[field] = getattr(config, field) if config.HasField(field) else None
    return values


def _choice_of(field: str, value: int, names: Mapping[str, int]) -> str | None:
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
        disk_full=node.disk_full,
        voter=voter,
    )
