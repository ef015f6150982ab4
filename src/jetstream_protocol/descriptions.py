"""Streams, cursors and the cluster as fields with the names and units of programs.

The SDK's values, the command line's JSON and that of HTTP are made of these.

Durations are in seconds and times are datetimes; what is unknown is None.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jetstream_protocol.generated import api_pb2, cursors_pb2
from jetstream_protocol.setting_messages import NUMBERS
from jetstream_protocol.settings import BY_FIELD, CLUSTER_SETTINGS, STREAM_SETTINGS, Kind, Setting
from jetstream_protocol.times import timestamp_text, to_datetime

Fields = dict[str, Any]

_SHOWN = [each for each in STREAM_SETTINGS if each.name not in ("replicas", "observers")]
"""Those that a stream has under their own names."""
_CHOICES = {
    field: {0: BY_FIELD[field].default or "unspecified", **{n: name for name, n in numbers.items()}}
    for field, numbers in NUMBERS.items()
}


def _in_programs(setting: Setting, value: Any) -> Any:
    """A setting as programs have it. The number of a choice from a newer server stays a number."""
    if setting.kind is Kind.CHOICE:
        return _CHOICES[setting.field].get(value) or str(value)
    return value / 1_000_000 if setting.kind is Kind.DURATION else value


def stream_fields(stream: api_pb2.Stream) -> Fields:
    """What the registry has of a stream."""
    config = stream.config
    return {
        "id": stream.id,
        "name": stream.name,
        "subject": stream.subject,
        "group": config.group,
        "partition": config.partition if config.partitions else None,
        "partitions": config.partitions,
        "replication_factor": config.replicas,
        **{each.name: _in_programs(each, getattr(config, each.field)) for each in _SHOWN},
        "replicas": tuple(stream.replicas),
        "leader": stream.leader,
        "leader_epoch": stream.leader_epoch,
        "stream_epoch": stream.stream_epoch,
        "isr": tuple(stream.isr),
        "elr": tuple(stream.elr),
        "created_at": to_datetime(stream.created_at_us),
        "lossy_elections": stream.lossy_elections,
        "readonly": stream.readonly,
        "paused": stream.paused,
        "target_replicas": tuple(stream.target_replicas),
        "observers": tuple(stream.observers),
        "lake_start_offset": stream.lake_start_offset,
        "lake_end_offset": stream.lake_end_offset,
    }


def state_without_answer(stream: api_pb2.Stream) -> str:
    """The state of a stream whose leader, if it has one, has not answered."""
    if stream.leader >= 0:
        return "unknown: its leader does not answer"
    if stream.elr:
        return f"offline: waits for {' or '.join(f'node {node}' for node in stream.elr)}"
    return "offline: no replica may lead it now"


def undescribed_fields(stream: api_pb2.Stream, state: str) -> Fields:
    """A stream whose leader has not answered."""
    return {**stream_fields(stream), **_UNTOLD, "state": state}


def description_fields(described: api_pb2.StreamDescription) -> Fields:
    """A stream with what its leader knows."""
    if described.stream.leader < 0:
        return undescribed_fields(described.stream, described.state)
    return {
        **stream_fields(described.stream),
        "log_start_offset": described.log_start_offset,
        "high_watermark": None if described.end_unknown else described.high_watermark,
        "log_end_offset": described.log_end_offset,
        "flushed_offset": described.flushed_offset,
        "size_bytes": described.size_bytes,
        "segments": described.segments,
        "state": described.state,
        "records_appended": described.records_appended,
        "acks_sent": described.acks_sent,
        "nacks_sent": described.nacks_sent,
        "acks_suppressed": described.acks_suppressed,
        "suspected_gaps": described.suspected_gaps,
        "hand_overs": described.hand_overs,
        "hand_over_gap": described.hand_over_gap_us / 1e6,
        "progress": tuple(_progress_fields(described, each) for each in described.progress),
        "compaction": (
            _compaction_fields(described.compaction) if described.HasField("compaction") else None
        ),
        "damaged": tuple(
            {"node": each.node_id, "start": each.start_offset, "end": each.end_offset}
            for each in described.damaged
        ),
        "last_append": (
            to_datetime(described.last_append_us) if described.HasField("last_append_us") else None
        ),
        "key_id": described.key_id,
    }


_UNTOLD: Fields = {
    **dict.fromkeys(
        (
            "log_start_offset", "high_watermark", "log_end_offset", "flushed_offset", "size_bytes",
            "segments", "records_appended", "acks_sent", "nacks_sent", "acks_suppressed",
            "suspected_gaps", "hand_overs", "hand_over_gap", "compaction", "last_append", "key_id",
        )
    ),
    "progress": (),
    "damaged": (),
}  # fmt: skip
"""What only a leader knows, if none has answered."""


def _progress_fields(
    described: api_pb2.StreamDescription, follower: api_pb2.ReplicaProgress
) -> Fields:
    lag = None if follower.offset < 0 else max(0, described.log_end_offset - follower.offset)
    return {"node": follower.node_id, "offset": follower.offset, "lag": lag}


def _compaction_fields(compaction: api_pb2.Compaction) -> Fields:
    total = compaction.dirty_bytes + compaction.clean_bytes
    return {
        "cleaned_to": compaction.cleaned_to,
        "dirty_ratio": compaction.dirty_bytes / total if total else 0.0,
        "ended_at": to_datetime(compaction.ended_at_us) if compaction.ended_at_us else None,
        "duration": compaction.duration_us / 1_000_000,
        "bytes_before": compaction.bytes_before,
        "bytes_after": compaction.bytes_after,
        "records_removed": compaction.records_removed,
        "tombstones": compaction.tombstones,
    }


def cursor_fields(cursor: cursors_pb2.Cursor) -> Fields:
    return {
        "name": cursor.name,
        "stream": f"{cursor.stream_name}@{cursor.stream_subject}",
        "stream_id": cursor.stream_id,
        "offset": cursor.offset,
        "last_epoch": cursor.last_epoch if cursor.HasField("last_epoch") else -1,
        "committed_at": to_datetime(cursor.committed_at_us),
        "owner": cursor.owner,
        "metadata": cursor.metadata,
        "revision": cursor.revision,
        "stream_id_now": cursor.stream_id_now or None,
        "creator": cursor.creator,
    }


def node_fields(node: api_pb2.DescribeClusterResponse.Node) -> Fields:
    return {
        "id": node.address.node_id,
        "grpc": node.address.grpc,
        "data": node.address.data,
        "http": node.address.http,
        "rack": node.rack,
        "incarnation": node.incarnation,
        "fenced": node.fenced,
        "draining": node.draining,
        "not_ready": tuple(node.not_ready),
        "voter": node.voter if node.HasField("voter") else None,
        "disk_full": node.disk_full,
    }


def cluster_fields(answer: api_pb2.DescribeClusterResponse) -> Fields:
    settings = {
        each.name: _in_programs(each, getattr(answer.config, each.field))
        for each in CLUSTER_SETTINGS
    }
    return {
        "cluster_id": answer.cluster_id,
        "controller": answer.controller,
        "nodes": tuple(map(node_fields, answer.nodes)),
        "nats": tuple(answer.nats),
        "server_version": answer.server_version,
        "answering_node": answer.answering_node,
        **settings,
    }


def json_value(value: object) -> object:
    """The JSON form of what json.dumps has none for. Raises TypeError."""
    if isinstance(value, datetime):
        return timestamp_text(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
