from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Flush(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FLUSH_UNSPECIFIED: _ClassVar[Flush]
    FLUSH_NONE: _ClassVar[Flush]
    FLUSH_INTERVAL: _ClassVar[Flush]
    FLUSH_GROUP: _ClassVar[Flush]

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_REPLY: _ClassVar[Acks]
    ACKS_ENVELOPE: _ClassVar[Acks]
    ACKS_OFF: _ClassVar[Acks]

class Encryption(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENCRYPTION_UNSPECIFIED: _ClassVar[Encryption]
    ENCRYPTION_NODE: _ClassVar[Encryption]
    ENCRYPTION_AES_256_GCM: _ClassVar[Encryption]

class Key(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KEY_UNSPECIFIED: _ClassVar[Key]
    KEY_RECORD: _ClassVar[Key]
    KEY_SUBJECT: _ClassVar[Key]

class OnMismatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_MISMATCH_UNSPECIFIED: _ClassVar[OnMismatch]
    ON_MISMATCH_KEEP: _ClassVar[OnMismatch]
    ON_MISMATCH_REFUSE: _ClassVar[OnMismatch]
FLUSH_UNSPECIFIED: Flush
FLUSH_NONE: Flush
FLUSH_INTERVAL: Flush
FLUSH_GROUP: Flush
ACKS_UNSPECIFIED: Acks
ACKS_REPLY: Acks
ACKS_ENVELOPE: Acks
ACKS_OFF: Acks
ENCRYPTION_UNSPECIFIED: Encryption
ENCRYPTION_NODE: Encryption
ENCRYPTION_AES_256_GCM: Encryption
KEY_UNSPECIFIED: Key
KEY_RECORD: Key
KEY_SUBJECT: Key
ON_MISMATCH_UNSPECIFIED: OnMismatch
ON_MISMATCH_KEEP: OnMismatch
ON_MISMATCH_REFUSE: OnMismatch

class StreamConfig(_message.Message):
    __slots__ = ("replicas", "min_insync_replicas", "flush", "acks", "group", "max_age_us", "max_bytes", "max_messages", "compact", "tombstone_grace_us", "duplicate_window_us", "segment_bytes", "segment_age_us", "restoring", "partition", "partitions", "encryption", "observers", "max_message_bytes", "key", "lake", "local_max_age_us", "local_max_bytes", "lake_lag_us", "lake_object_bytes", "on_mismatch")
    replicas: int
    min_insync_replicas: int
    flush: Flush
    acks: Acks
    group: str
    max_age_us: int
    max_bytes: int
    max_messages: int
    compact: bool
    tombstone_grace_us: int
    duplicate_window_us: int
    segment_bytes: int
    segment_age_us: int
    restoring: bool
    partition: int
    partitions: int
    encryption: Encryption
    observers: int
    max_message_bytes: int
    key: Key
    lake: bool
    local_max_age_us: int
    local_max_bytes: int
    lake_lag_us: int
    lake_object_bytes: int
    on_mismatch: OnMismatch
    def __init__(self, replicas: _Optional[int] = ..., min_insync_replicas: _Optional[int] = ..., flush: _Optional[_Union[Flush, str]] = ..., acks: _Optional[_Union[Acks, str]] = ..., group: _Optional[str] = ..., max_age_us: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_messages: _Optional[int] = ..., compact: _Optional[bool] = ..., tombstone_grace_us: _Optional[int] = ..., duplicate_window_us: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., segment_age_us: _Optional[int] = ..., restoring: _Optional[bool] = ..., partition: _Optional[int] = ..., partitions: _Optional[int] = ..., encryption: _Optional[_Union[Encryption, str]] = ..., observers: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., key: _Optional[_Union[Key, str]] = ..., lake: _Optional[bool] = ..., local_max_age_us: _Optional[int] = ..., local_max_bytes: _Optional[int] = ..., lake_lag_us: _Optional[int] = ..., lake_object_bytes: _Optional[int] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ...) -> None: ...

class Stream(_message.Message):
    __slots__ = ("id", "name", "subject", "config", "replicas", "leader", "leader_epoch", "stream_epoch", "isr", "elr", "created_at_us", "lossy_elections", "readonly", "paused", "target_replicas", "observers", "lake_start_offset", "lake_end_offset")
    id: int
    name: str
    subject: str
    config: StreamConfig
    replicas: _containers.RepeatedScalarFieldContainer[int]
    leader: int
    leader_epoch: int
    stream_epoch: int
    isr: _containers.RepeatedScalarFieldContainer[int]
    elr: _containers.RepeatedScalarFieldContainer[int]
    created_at_us: int
    lossy_elections: int
    readonly: bool
    paused: bool
    target_replicas: _containers.RepeatedScalarFieldContainer[int]
    observers: _containers.RepeatedScalarFieldContainer[int]
    lake_start_offset: int
    lake_end_offset: int
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., subject: _Optional[str] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., leader: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., stream_epoch: _Optional[int] = ..., isr: _Optional[_Iterable[int]] = ..., elr: _Optional[_Iterable[int]] = ..., created_at_us: _Optional[int] = ..., lossy_elections: _Optional[int] = ..., readonly: _Optional[bool] = ..., paused: _Optional[bool] = ..., target_replicas: _Optional[_Iterable[int]] = ..., observers: _Optional[_Iterable[int]] = ..., lake_start_offset: _Optional[int] = ..., lake_end_offset: _Optional[int] = ...) -> None: ...

class StreamDescription(_message.Message):
    __slots__ = ("stream", "log_start_offset", "high_watermark", "log_end_offset", "flushed_offset", "size_bytes", "segments", "state", "records_appended", "acks_sent", "nacks_sent", "acks_suppressed", "suspected_gaps", "progress", "hand_overs", "hand_over_gap_us", "compaction", "damaged", "last_append_us", "key_id", "end_unknown", "subjects")
    stream: Stream
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    flushed_offset: int
    size_bytes: int
    segments: int
    state: str
    records_appended: int
    acks_sent: int
    nacks_sent: int
    acks_suppressed: int
    suspected_gaps: int
    progress: _containers.RepeatedCompositeFieldContainer[ReplicaProgress]
    hand_overs: int
    hand_over_gap_us: int
    compaction: Compaction
    damaged: _containers.RepeatedCompositeFieldContainer[DamagedRange]
    last_append_us: int
    key_id: str
    end_unknown: bool
    subjects: int
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., state: _Optional[str] = ..., records_appended: _Optional[int] = ..., acks_sent: _Optional[int] = ..., nacks_sent: _Optional[int] = ..., acks_suppressed: _Optional[int] = ..., suspected_gaps: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[ReplicaProgress, _Mapping]]] = ..., hand_overs: _Optional[int] = ..., hand_over_gap_us: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ..., damaged: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., last_append_us: _Optional[int] = ..., key_id: _Optional[str] = ..., end_unknown: _Optional[bool] = ..., subjects: _Optional[int] = ...) -> None: ...

class DamagedRange(_message.Message):
    __slots__ = ("node_id", "start_offset", "end_offset")
    node_id: int
    start_offset: int
    end_offset: int
    def __init__(self, node_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class Compaction(_message.Message):
    __slots__ = ("cleaned_to", "dirty_bytes", "clean_bytes", "ended_at_us", "duration_us", "bytes_before", "bytes_after", "records_removed", "tombstones")
    cleaned_to: int
    dirty_bytes: int
    clean_bytes: int
    ended_at_us: int
    duration_us: int
    bytes_before: int
    bytes_after: int
    records_removed: int
    tombstones: int
    def __init__(self, cleaned_to: _Optional[int] = ..., dirty_bytes: _Optional[int] = ..., clean_bytes: _Optional[int] = ..., ended_at_us: _Optional[int] = ..., duration_us: _Optional[int] = ..., bytes_before: _Optional[int] = ..., bytes_after: _Optional[int] = ..., records_removed: _Optional[int] = ..., tombstones: _Optional[int] = ...) -> None: ...

class ReplicaProgress(_message.Message):
    __slots__ = ("node_id", "offset")
    node_id: int
    offset: int
    def __init__(self, node_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    __slots__ = ("name", "subject", "config", "allow_same_name")
    name: str
    subject: str
    config: StreamConfig
    allow_same_name: bool
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., allow_same_name: _Optional[bool] = ...) -> None: ...

class CreateStreamResponse(_message.Message):
    __slots__ = ("stream", "created")
    stream: Stream
    created: bool
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class DescribeStreamRequest(_message.Message):
    __slots__ = ("stream", "registry_only", "min_stream_epoch")
    stream: _common_pb2.StreamRef
    registry_only: bool
    min_stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., registry_only: _Optional[bool] = ..., min_stream_epoch: _Optional[int] = ...) -> None: ...

class DescribeStreamResponse(_message.Message):
    __slots__ = ("description",)
    description: StreamDescription
    def __init__(self, description: _Optional[_Union[StreamDescription, _Mapping]] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    __slots__ = ("feeding_subject", "describe_led", "include_internal")
    feeding_subject: str
    describe_led: bool
    include_internal: bool
    def __init__(self, feeding_subject: _Optional[str] = ..., describe_led: _Optional[bool] = ..., include_internal: _Optional[bool] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    __slots__ = ("streams", "revision", "led", "ack_cluster")
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    revision: int
    led: _containers.RepeatedCompositeFieldContainer[StreamDescription]
    ack_cluster: str
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., revision: _Optional[int] = ..., led: _Optional[_Iterable[_Union[StreamDescription, _Mapping]]] = ..., ack_cluster: _Optional[str] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    __slots__ = ("stream",)
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DeleteStreamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AlterStreamRequest(_message.Message):
    __slots__ = ("stream", "config", "stream_epoch")
    stream: _common_pb2.StreamRef
    config: StreamConfig
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class AlterStreamResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PurgeStreamRequest(_message.Message):
    __slots__ = ("stream", "offset")
    stream: _common_pb2.StreamRef
    offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class PurgeStreamResponse(_message.Message):
    __slots__ = ("stream_id", "log_start_offset")
    stream_id: int
    log_start_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class SetStreamReadonlyRequest(_message.Message):
    __slots__ = ("stream", "readonly")
    stream: _common_pb2.StreamRef
    readonly: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., readonly: _Optional[bool] = ...) -> None: ...

class SetStreamReadonlyResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PauseStreamRequest(_message.Message):
    __slots__ = ("stream",)
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class PauseStreamResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class ResumeStreamRequest(_message.Message):
    __slots__ = ("stream",)
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class ResumeStreamResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class RestoreBatchesRequest(_message.Message):
    __slots__ = ("stream", "batches")
    stream: _common_pb2.StreamRef
    batches: bytes
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class RestoreBatchesResponse(_message.Message):
    __slots__ = ("stream_id", "next_offset")
    stream_id: int
    next_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class ProduceBatchRequest(_message.Message):
    __slots__ = ("stream", "subject", "batch", "ack_leader")
    stream: _common_pb2.StreamRef
    subject: str
    batch: bytes
    ack_leader: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., subject: _Optional[str] = ..., batch: _Optional[bytes] = ..., ack_leader: _Optional[bool] = ...) -> None: ...

class ProduceBatchResponse(_message.Message):
    __slots__ = ("base_offset", "record_count", "duplicate")
    base_offset: int
    record_count: int
    duplicate: bool
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class SetSchemaRequest(_message.Message):
    __slots__ = ("stream", "schema", "schema_version")
    stream: _common_pb2.StreamRef
    schema: str
    schema_version: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., schema: _Optional[str] = ..., schema_version: _Optional[int] = ...) -> None: ...

class SetSchemaResponse(_message.Message):
    __slots__ = ("schema_version",)
    schema_version: int
    def __init__(self, schema_version: _Optional[int] = ...) -> None: ...

class DescribeSchemaRequest(_message.Message):
    __slots__ = ("stream",)
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DescribeSchemaResponse(_message.Message):
    __slots__ = ("schemas", "schema_version")
    schemas: _containers.RepeatedScalarFieldContainer[str]
    schema_version: int
    def __init__(self, schemas: _Optional[_Iterable[str]] = ..., schema_version: _Optional[int] = ...) -> None: ...

class AdoptLakeRequest(_message.Message):
    __slots__ = ("stream", "table_url")
    stream: _common_pb2.StreamRef
    table_url: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., table_url: _Optional[str] = ...) -> None: ...

class AdoptLakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SweepLakeRequest(_message.Message):
    __slots__ = ("stream", "dry_run")
    stream: _common_pb2.StreamRef
    dry_run: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UnneededObject(_message.Message):
    __slots__ = ("name", "wait_us")
    name: str
    wait_us: int
    def __init__(self, name: _Optional[str] = ..., wait_us: _Optional[int] = ...) -> None: ...

class SweepLakeResponse(_message.Message):
    __slots__ = ("objects",)
    objects: _containers.RepeatedCompositeFieldContainer[UnneededObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[UnneededObject, _Mapping]]] = ...) -> None: ...

class DescribeLakeRequest(_message.Message):
    __slots__ = ("stream", "with_metadata")
    stream: _common_pb2.StreamRef
    with_metadata: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., with_metadata: _Optional[bool] = ...) -> None: ...

class DescribeLakeResponse(_message.Message):
    __slots__ = ("start_offset", "end_offset", "table_url", "metadata", "problem", "committed_offset")
    start_offset: int
    end_offset: int
    table_url: str
    metadata: bytes
    problem: str
    committed_offset: int
    def __init__(self, start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., table_url: _Optional[str] = ..., metadata: _Optional[bytes] = ..., problem: _Optional[str] = ..., committed_offset: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("stream", "offset", "last_epoch", "bytes_max", "bytes_min", "wait_ms_max", "decode")
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    bytes_min: int
    wait_ms_max: int
    decode: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bytes_min: _Optional[int] = ..., wait_ms_max: _Optional[int] = ..., decode: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("stream_id", "log_start_offset", "high_watermark", "leader_epoch", "batches", "messages", "out_of_sync", "next_offset")
    stream_id: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    batches: bytes
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    out_of_sync: bool
    next_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., batches: _Optional[bytes] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., out_of_sync: _Optional[bool] = ..., next_offset: _Optional[int] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("offset", "timestamp_us", "subject", "key", "value", "header_block")
    offset: int
    timestamp_us: int
    subject: bytes
    key: bytes
    value: bytes
    header_block: bytes
    def __init__(self, offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., subject: _Optional[bytes] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., header_block: _Optional[bytes] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("stream", "offset", "last_epoch", "bytes_max", "decode")
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    decode: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., decode: _Optional[bool] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    __slots__ = ("queries",)
    class Query(_message.Message):
        __slots__ = ("stream", "earliest", "latest", "timestamp_us", "offset", "last_of_subject")
        stream: _common_pb2.StreamRef
        earliest: bool
        latest: bool
        timestamp_us: int
        offset: int
        last_of_subject: str
        def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., earliest: _Optional[bool] = ..., latest: _Optional[bool] = ..., timestamp_us: _Optional[int] = ..., offset: _Optional[int] = ..., last_of_subject: _Optional[str] = ...) -> None: ...
    queries: _containers.RepeatedCompositeFieldContainer[ListOffsetsRequest.Query]
    def __init__(self, queries: _Optional[_Iterable[_Union[ListOffsetsRequest.Query, _Mapping]]] = ...) -> None: ...

class ListOffsetsResponse(_message.Message):
    __slots__ = ("results",)
    class Result(_message.Message):
        __slots__ = ("stream_id", "offset", "leader_epoch", "error", "append_timestamp")
        stream_id: int
        offset: int
        leader_epoch: int
        error: _common_pb2.Error
        append_timestamp: int
        def __init__(self, stream_id: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., append_timestamp: _Optional[int] = ...) -> None: ...
    results: _containers.RepeatedCompositeFieldContainer[ListOffsetsResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[ListOffsetsResponse.Result, _Mapping]]] = ...) -> None: ...

class ListSubjectsRequest(_message.Message):
    __slots__ = ("stream", "pattern", "offset", "limit", "only_live")
    stream: _common_pb2.StreamRef
    pattern: str
    offset: int
    limit: int
    only_live: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., pattern: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., only_live: _Optional[bool] = ...) -> None: ...

class ListSubjectsResponse(_message.Message):
    __slots__ = ("subjects", "total")
    class Subject(_message.Message):
        __slots__ = ("subject", "last_offset")
        subject: str
        last_offset: int
        def __init__(self, subject: _Optional[str] = ..., last_offset: _Optional[int] = ...) -> None: ...
    subjects: _containers.RepeatedCompositeFieldContainer[ListSubjectsResponse.Subject]
    total: int
    def __init__(self, subjects: _Optional[_Iterable[_Union[ListSubjectsResponse.Subject, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    __slots__ = ("readiness",)
    readiness: bool
    def __init__(self, readiness: _Optional[bool] = ...) -> None: ...

class NodeUse(_message.Message):
    __slots__ = ("streams", "streams_led", "log_bytes", "disk_free_bytes", "disk_reserve_bytes")
    streams: int
    streams_led: int
    log_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    def __init__(self, streams: _Optional[int] = ..., streams_led: _Optional[int] = ..., log_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_reserve_bytes: _Optional[int] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    __slots__ = ("cluster_id", "controller", "nodes", "nats", "server_version", "answering_node", "config")
    class Node(_message.Message):
        __slots__ = ("address", "rack", "incarnation", "fenced", "draining", "not_ready", "use", "voter")
        address: _common_pb2.NodeAddress
        rack: str
        incarnation: int
        fenced: bool
        draining: bool
        not_ready: _containers.RepeatedScalarFieldContainer[str]
        use: NodeUse
        voter: bool
        def __init__(self, address: _Optional[_Union[_common_pb2.NodeAddress, _Mapping]] = ..., rack: _Optional[str] = ..., incarnation: _Optional[int] = ..., fenced: _Optional[bool] = ..., draining: _Optional[bool] = ..., not_ready: _Optional[_Iterable[str]] = ..., use: _Optional[_Union[NodeUse, _Mapping]] = ..., voter: _Optional[bool] = ...) -> None: ...
    cluster_id: str
    controller: int
    nodes: _containers.RepeatedCompositeFieldContainer[DescribeClusterResponse.Node]
    nats: _containers.RepeatedScalarFieldContainer[str]
    server_version: str
    answering_node: int
    config: ClusterConfig
    def __init__(self, cluster_id: _Optional[str] = ..., controller: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[DescribeClusterResponse.Node, _Mapping]]] = ..., nats: _Optional[_Iterable[str]] = ..., server_version: _Optional[str] = ..., answering_node: _Optional[int] = ..., config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    __slots__ = ("stream", "node_id", "urgent")
    stream: _common_pb2.StreamRef
    node_id: int
    urgent: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., node_id: _Optional[int] = ..., urgent: _Optional[bool] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class ReplicaState(_message.Message):
    __slots__ = ("node_id", "alive", "standing", "log_start_offset", "log_end_offset", "last_epoch", "high_watermark", "problem", "can_lead")
    node_id: int
    alive: bool
    standing: str
    log_start_offset: int
    log_end_offset: int
    last_epoch: int
    high_watermark: int
    problem: str
    can_lead: bool
    def __init__(self, node_id: _Optional[int] = ..., alive: _Optional[bool] = ..., standing: _Optional[str] = ..., log_start_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., high_watermark: _Optional[int] = ..., problem: _Optional[str] = ..., can_lead: _Optional[bool] = ...) -> None: ...

class ElectLeaderRequest(_message.Message):
    __slots__ = ("stream", "node_id", "dry_run", "stream_epoch")
    stream: _common_pb2.StreamRef
    node_id: int
    dry_run: bool
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., node_id: _Optional[int] = ..., dry_run: _Optional[bool] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class ElectLeaderResponse(_message.Message):
    __slots__ = ("stream", "replicas", "records_lost_max", "unheard")
    stream: Stream
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    records_lost_max: int
    unheard: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ..., records_lost_max: _Optional[int] = ..., unheard: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeReplicaRequest(_message.Message):
    __slots__ = ("stream",)
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DescribeReplicaResponse(_message.Message):
    __slots__ = ("replica",)
    replica: ReplicaState
    def __init__(self, replica: _Optional[_Union[ReplicaState, _Mapping]] = ...) -> None: ...

class DigestReplicaRequest(_message.Message):
    __slots__ = ("stream", "start_offset", "end_offset")
    stream: _common_pb2.StreamRef
    start_offset: int
    end_offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DigestReplicaResponse(_message.Message):
    __slots__ = ("node_id", "digest", "next_offset", "log_start_offset", "high_watermark", "cleaned_to")
    node_id: int
    digest: bytes
    next_offset: int
    log_start_offset: int
    high_watermark: int
    cleaned_to: int
    def __init__(self, node_id: _Optional[int] = ..., digest: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., cleaned_to: _Optional[int] = ...) -> None: ...

class DigestKeysRequest(_message.Message):
    __slots__ = ("stream", "start_offset", "end_offset")
    stream: _common_pb2.StreamRef
    start_offset: int
    end_offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DigestKeysResponse(_message.Message):
    __slots__ = ("node_id", "done", "digest", "records")
    node_id: int
    done: float
    digest: bytes
    records: int
    def __init__(self, node_id: _Optional[int] = ..., done: _Optional[float] = ..., digest: _Optional[bytes] = ..., records: _Optional[int] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("node_id", "draining")
    node_id: int
    draining: bool
    def __init__(self, node_id: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DebugNodeRequest(_message.Message):
    __slots__ = ("node_id",)
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class DebugNodeResponse(_message.Message):
    __slots__ = ("config", "metrics", "log", "versions")
    config: str
    metrics: str
    log: _containers.RepeatedScalarFieldContainer[str]
    versions: str
    def __init__(self, config: _Optional[str] = ..., metrics: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., versions: _Optional[str] = ...) -> None: ...

class DescribeHistoryRequest(_message.Message):
    __slots__ = ("node_id", "stream", "cursor")
    node_id: int
    stream: _common_pb2.StreamRef
    cursor: str
    def __init__(self, node_id: _Optional[int] = ..., stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., cursor: _Optional[str] = ...) -> None: ...

class DescribeHistoryResponse(_message.Message):
    __slots__ = ("node_id", "times_us", "series")
    class Series(_message.Message):
        __slots__ = ("name", "stream_id", "values")
        name: str
        stream_id: int
        values: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, name: _Optional[str] = ..., stream_id: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
    node_id: int
    times_us: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedCompositeFieldContainer[DescribeHistoryResponse.Series]
    def __init__(self, node_id: _Optional[int] = ..., times_us: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[_Union[DescribeHistoryResponse.Series, _Mapping]]] = ...) -> None: ...

class Nodes(_message.Message):
    __slots__ = ("nodes",)
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class ReassignStreamRequest(_message.Message):
    __slots__ = ("stream", "replicas", "observers", "stream_epoch")
    stream: _common_pb2.StreamRef
    replicas: _containers.RepeatedScalarFieldContainer[int]
    observers: Nodes
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., observers: _Optional[_Union[Nodes, _Mapping]] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class ReassignStreamResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PlanReassignmentRequest(_message.Message):
    __slots__ = ("drain_node", "balance")
    drain_node: int
    balance: bool
    def __init__(self, drain_node: _Optional[int] = ..., balance: _Optional[bool] = ...) -> None: ...

class PlanReassignmentResponse(_message.Message):
    __slots__ = ("moves",)
    class Move(_message.Message):
        __slots__ = ("stream", "replicas", "observers")
        stream: Stream
        replicas: _containers.RepeatedScalarFieldContainer[int]
        observers: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., observers: _Optional[_Iterable[int]] = ...) -> None: ...
    moves: _containers.RepeatedCompositeFieldContainer[PlanReassignmentResponse.Move]
    def __init__(self, moves: _Optional[_Iterable[_Union[PlanReassignmentResponse.Move, _Mapping]]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    __slots__ = ("node_id",)
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Voter(_message.Message):
    __slots__ = ("node_id", "address", "is_leader", "is_linked")
    node_id: int
    address: str
    is_leader: bool
    is_linked: bool
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., is_leader: _Optional[bool] = ..., is_linked: _Optional[bool] = ...) -> None: ...

class ListVotersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVotersResponse(_message.Message):
    __slots__ = ("voters", "is_committed", "answering_node")
    voters: _containers.RepeatedCompositeFieldContainer[Voter]
    is_committed: bool
    answering_node: int
    def __init__(self, voters: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., is_committed: _Optional[bool] = ..., answering_node: _Optional[int] = ...) -> None: ...

class ChangeVotersRequest(_message.Message):
    __slots__ = ("voters",)
    voters: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, voters: _Optional[_Iterable[int]] = ...) -> None: ...

class ClusterConfig(_message.Message):
    __slots__ = ("copy_bytes_per_second", "replica_lag_max_us")
    copy_bytes_per_second: int
    replica_lag_max_us: int
    def __init__(self, copy_bytes_per_second: _Optional[int] = ..., replica_lag_max_us: _Optional[int] = ...) -> None: ...

class AlterClusterRequest(_message.Message):
    __slots__ = ("config",)
    config: ClusterConfig
    def __init__(self, config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class AlterClusterResponse(_message.Message):
    __slots__ = ("config",)
    config: ClusterConfig
    def __init__(self, config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class RecordActivityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RecordActivityResponse(_message.Message):
    __slots__ = ("stream",)
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PrepareHandOverRequest(_message.Message):
    __slots__ = ("stream", "urgent")
    stream: _common_pb2.StreamRef
    urgent: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., urgent: _Optional[bool] = ...) -> None: ...

class PrepareHandOverResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StandByRequest(_message.Message):
    __slots__ = ("stream", "silent_us", "end_offset", "leader_epoch")
    stream: _common_pb2.StreamRef
    silent_us: int
    end_offset: int
    leader_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., silent_us: _Optional[int] = ..., end_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class StandByResponse(_message.Message):
    __slots__ = ("gap_us",)
    gap_us: int
    def __init__(self, gap_us: _Optional[int] = ...) -> None: ...

class CancelStandByRequest(_message.Message):
    __slots__ = ("stream", "leader_epoch")
    stream: _common_pb2.StreamRef
    leader_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class CancelStandByResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Token(_message.Message):
    __slots__ = ("id", "principal", "created_at_us", "expires_at_us")
    id: str
    principal: str
    created_at_us: int
    expires_at_us: int
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., created_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("principal", "lifetime_us")
    principal: str
    lifetime_us: int
    def __init__(self, principal: _Optional[str] = ..., lifetime_us: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "text")
    token: Token
    text: str
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTokensResponse(_message.Message):
    __slots__ = ("tokens",)
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("id",)
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevokeTokenResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AclRule(_message.Message):
    __slots__ = ("id", "principal", "operations", "allow", "stream", "subject", "cursor")
    id: int
    principal: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    allow: bool
    stream: str
    subject: str
    cursor: str
    def __init__(self, id: _Optional[int] = ..., principal: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., allow: _Optional[bool] = ..., stream: _Optional[str] = ..., subject: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class AddAclRequest(_message.Message):
    __slots__ = ("rule",)
    rule: AclRule
    def __init__(self, rule: _Optional[_Union[AclRule, _Mapping]] = ...) -> None: ...

class AddAclResponse(_message.Message):
    __slots__ = ("rule", "created")
    rule: AclRule
    created: bool
    def __init__(self, rule: _Optional[_Union[AclRule, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    __slots__ = ("principal",)
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    __slots__ = ("rules",)
    rules: _containers.RepeatedCompositeFieldContainer[AclRule]
    def __init__(self, rules: _Optional[_Iterable[_Union[AclRule, _Mapping]]] = ...) -> None: ...

class RemoveAclRequest(_message.Message):
    __slots__ = ("id",)
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class RemoveAclResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TestAclRequest(_message.Message):
    __slots__ = ("principal", "operation", "stream", "subject", "cursor")
    principal: str
    operation: str
    stream: str
    subject: str
    cursor: str
    def __init__(self, principal: _Optional[str] = ..., operation: _Optional[str] = ..., stream: _Optional[str] = ..., subject: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class TestAclResponse(_message.Message):
    __slots__ = ("allowed", "rule", "security_off")
    allowed: bool
    rule: AclRule
    security_off: bool
    def __init__(self, allowed: _Optional[bool] = ..., rule: _Optional[_Union[AclRule, _Mapping]] = ..., security_off: _Optional[bool] = ...) -> None: ...

class BootstrapRequest(_message.Message):
    __slots__ = ("principal", "lifetime_us")
    principal: str
    lifetime_us: int
    def __init__(self, principal: _Optional[str] = ..., lifetime_us: _Optional[int] = ...) -> None: ...
