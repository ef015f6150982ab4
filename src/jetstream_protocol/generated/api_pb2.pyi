from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Flush(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    FLUSH_UNSPECIFIED: _ClassVar[Flush]
    FLUSH_NONE: _ClassVar[Flush]
    FLUSH_INTERVAL: _ClassVar[Flush]
    FLUSH_GROUP: _ClassVar[Flush]

class Acks(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    ACKS_UNSPECIFIED: _ClassVar[Acks]
    ACKS_REPLY: _ClassVar[Acks]
    ACKS_ENVELOPE: _ClassVar[Acks]
    ACKS_OFF: _ClassVar[Acks]

class Encryption(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    ENCRYPTION_UNSPECIFIED: _ClassVar[Encryption]
    ENCRYPTION_NODE: _ClassVar[Encryption]
    ENCRYPTION_AES_256_GCM: _ClassVar[Encryption]

class Key(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    KEY_UNSPECIFIED: _ClassVar[Key]
    KEY_RECORD: _ClassVar[Key]
    KEY_SUBJECT: _ClassVar[Key]

class OnMismatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
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
    description: str
    labels: str
    def __init__(self, replicas: _Optional[int] = ..., min_insync_replicas: _Optional[int] = ..., flush: _Optional[_Union[Flush, str]] = ..., acks: _Optional[_Union[Acks, str]] = ..., group: _Optional[str] = ..., max_age_us: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_messages: _Optional[int] = ..., compact: _Optional[bool] = ..., tombstone_grace_us: _Optional[int] = ..., duplicate_window_us: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., segment_age_us: _Optional[int] = ..., restoring: _Optional[bool] = ..., partition: _Optional[int] = ..., partitions: _Optional[int] = ..., encryption: _Optional[_Union[Encryption, str]] = ..., observers: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., key: _Optional[_Union[Key, str]] = ..., lake: _Optional[bool] = ..., local_max_age_us: _Optional[int] = ..., local_max_bytes: _Optional[int] = ..., lake_lag_us: _Optional[int] = ..., lake_object_bytes: _Optional[int] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., description: _Optional[str] = ..., labels: _Optional[str] = ...) -> None: ...

class Stream(_message.Message):
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
    consumers: int
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., segments: _Optional[int] = ..., state: _Optional[str] = ..., records_appended: _Optional[int] = ..., acks_sent: _Optional[int] = ..., nacks_sent: _Optional[int] = ..., acks_suppressed: _Optional[int] = ..., suspected_gaps: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[ReplicaProgress, _Mapping]]] = ..., hand_overs: _Optional[int] = ..., hand_over_gap_us: _Optional[int] = ..., compaction: _Optional[_Union[Compaction, _Mapping]] = ..., damaged: _Optional[_Iterable[_Union[DamagedRange, _Mapping]]] = ..., last_append_us: _Optional[int] = ..., key_id: _Optional[str] = ..., end_unknown: _Optional[bool] = ..., subjects: _Optional[int] = ..., consumers: _Optional[int] = ...) -> None: ...

class DamagedRange(_message.Message):
    node_id: int
    start_offset: int
    end_offset: int
    def __init__(self, node_id: _Optional[int] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class Compaction(_message.Message):
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
    node_id: int
    offset: int
    def __init__(self, node_id: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CreateStreamRequest(_message.Message):
    name: str
    subject: str
    config: StreamConfig
    allow_same_name: bool
    def __init__(self, name: _Optional[str] = ..., subject: _Optional[str] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., allow_same_name: _Optional[bool] = ...) -> None: ...

class CreateStreamResponse(_message.Message):
    stream: Stream
    created: bool
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class DescribeStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    registry_only: bool
    min_stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., registry_only: _Optional[bool] = ..., min_stream_epoch: _Optional[int] = ...) -> None: ...

class DescribeStreamResponse(_message.Message):
    description: StreamDescription
    def __init__(self, description: _Optional[_Union[StreamDescription, _Mapping]] = ...) -> None: ...

class ListStreamsRequest(_message.Message):
    feeding_subject: str
    describe_led: bool
    include_internal: bool
    def __init__(self, feeding_subject: _Optional[str] = ..., describe_led: _Optional[bool] = ..., include_internal: _Optional[bool] = ...) -> None: ...

class ListStreamsResponse(_message.Message):
    streams: _containers.RepeatedCompositeFieldContainer[Stream]
    revision: int
    led: _containers.RepeatedCompositeFieldContainer[StreamDescription]
    ack_cluster: str
    def __init__(self, streams: _Optional[_Iterable[_Union[Stream, _Mapping]]] = ..., revision: _Optional[int] = ..., led: _Optional[_Iterable[_Union[StreamDescription, _Mapping]]] = ..., ack_cluster: _Optional[str] = ...) -> None: ...

class DeleteStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DeleteStreamResponse(_message.Message):
    def __init__(self) -> None: ...

class AlterStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    config: StreamConfig
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., config: _Optional[_Union[StreamConfig, _Mapping]] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class AlterStreamResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PurgeStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ...) -> None: ...

class PurgeStreamResponse(_message.Message):
    stream_id: int
    log_start_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., log_start_offset: _Optional[int] = ...) -> None: ...

class SetStreamReadonlyRequest(_message.Message):
    stream: _common_pb2.StreamRef
    readonly: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., readonly: _Optional[bool] = ...) -> None: ...

class SetStreamReadonlyResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PauseStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class PauseStreamResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class ResumeStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class ResumeStreamResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class RestoreBatchesRequest(_message.Message):
    stream: _common_pb2.StreamRef
    batches: bytes
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., batches: _Optional[bytes] = ...) -> None: ...

class RestoreBatchesResponse(_message.Message):
    stream_id: int
    next_offset: int
    def __init__(self, stream_id: _Optional[int] = ..., next_offset: _Optional[int] = ...) -> None: ...

class ProduceBatchRequest(_message.Message):
    stream: _common_pb2.StreamRef
    subject: str
    batch: bytes
    ack_leader: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., subject: _Optional[str] = ..., batch: _Optional[bytes] = ..., ack_leader: _Optional[bool] = ...) -> None: ...

class ProduceBatchResponse(_message.Message):
    base_offset: int
    record_count: int
    duplicate: bool
    def __init__(self, base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...

class SetSchemaRequest(_message.Message):
    stream: _common_pb2.StreamRef
    schema: str
    schema_version: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., schema: _Optional[str] = ..., schema_version: _Optional[int] = ...) -> None: ...

class SetSchemaResponse(_message.Message):
    schema_version: int
    def __init__(self, schema_version: _Optional[int] = ...) -> None: ...

class DescribeSchemaRequest(_message.Message):
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DescribeSchemaResponse(_message.Message):
    schemas: _containers.RepeatedScalarFieldContainer[str]
    schema_version: int
    def __init__(self, schemas: _Optional[_Iterable[str]] = ..., schema_version: _Optional[int] = ...) -> None: ...

class AdoptLakeRequest(_message.Message):
    stream: _common_pb2.StreamRef
    table_url: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., table_url: _Optional[str] = ...) -> None: ...

class AdoptLakeResponse(_message.Message):
    def __init__(self) -> None: ...

class SweepLakeRequest(_message.Message):
    stream: _common_pb2.StreamRef
    dry_run: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class UnneededObject(_message.Message):
    name: str
    wait_us: int
    def __init__(self, name: _Optional[str] = ..., wait_us: _Optional[int] = ...) -> None: ...

class SweepLakeResponse(_message.Message):
    objects: _containers.RepeatedCompositeFieldContainer[UnneededObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[UnneededObject, _Mapping]]] = ...) -> None: ...

class DescribeLakeRequest(_message.Message):
    stream: _common_pb2.StreamRef
    with_metadata: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., with_metadata: _Optional[bool] = ...) -> None: ...

class DescribeLakeResponse(_message.Message):
    start_offset: int
    end_offset: int
    table_url: str
    metadata: bytes
    problem: str
    committed_offset: int
    def __init__(self, start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., table_url: _Optional[str] = ..., metadata: _Optional[bytes] = ..., problem: _Optional[str] = ..., committed_offset: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    bytes_min: int
    wait_ms_max: int
    decode: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bytes_min: _Optional[int] = ..., wait_ms_max: _Optional[int] = ..., decode: _Optional[bool] = ...) -> None: ...

class FetchResponse(_message.Message):
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
    offset: int
    timestamp_us: int
    subject: bytes
    key: bytes
    value: bytes
    header_block: bytes
    def __init__(self, offset: _Optional[int] = ..., timestamp_us: _Optional[int] = ..., subject: _Optional[bytes] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., header_block: _Optional[bytes] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    decode: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., decode: _Optional[bool] = ...) -> None: ...

class ListOffsetsRequest(_message.Message):
    class Query(_message.Message):
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
    class Result(_message.Message):
        stream_id: int
        offset: int
        leader_epoch: int
        error: _common_pb2.Error
        append_timestamp: int
        def __init__(self, stream_id: _Optional[int] = ..., offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., append_timestamp: _Optional[int] = ...) -> None: ...
    results: _containers.RepeatedCompositeFieldContainer[ListOffsetsResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[ListOffsetsResponse.Result, _Mapping]]] = ...) -> None: ...

class ListSubjectsRequest(_message.Message):
    stream: _common_pb2.StreamRef
    pattern: str
    offset: int
    limit: int
    only_live: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., pattern: _Optional[str] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., only_live: _Optional[bool] = ...) -> None: ...

class ListSubjectsResponse(_message.Message):
    class Subject(_message.Message):
        subject: str
        last_offset: int
        def __init__(self, subject: _Optional[str] = ..., last_offset: _Optional[int] = ...) -> None: ...
    subjects: _containers.RepeatedCompositeFieldContainer[ListSubjectsResponse.Subject]
    total: int
    def __init__(self, subjects: _Optional[_Iterable[_Union[ListSubjectsResponse.Subject, _Mapping]]] = ..., total: _Optional[int] = ...) -> None: ...

class DescribeClusterRequest(_message.Message):
    readiness: bool
    def __init__(self, readiness: _Optional[bool] = ...) -> None: ...

class NodeUse(_message.Message):
    streams: int
    streams_led: int
    log_bytes: int
    disk_free_bytes: int
    disk_reserve_bytes: int
    def __init__(self, streams: _Optional[int] = ..., streams_led: _Optional[int] = ..., log_bytes: _Optional[int] = ..., disk_free_bytes: _Optional[int] = ..., disk_reserve_bytes: _Optional[int] = ...) -> None: ...

class DescribeClusterResponse(_message.Message):
    class Node(_message.Message):
        address: _common_pb2.NodeAddress
        rack: str
        incarnation: int
        fenced: bool
        draining: bool
        not_ready: _containers.RepeatedScalarFieldContainer[str]
        use: NodeUse
        voter: bool
        disk_full: bool
        def __init__(self, address: _Optional[_Union[_common_pb2.NodeAddress, _Mapping]] = ..., rack: _Optional[str] = ..., incarnation: _Optional[int] = ..., fenced: _Optional[bool] = ..., draining: _Optional[bool] = ..., not_ready: _Optional[_Iterable[str]] = ..., use: _Optional[_Union[NodeUse, _Mapping]] = ..., voter: _Optional[bool] = ..., disk_full: _Optional[bool] = ...) -> None: ...
    cluster_id: str
    controller: int
    nodes: _containers.RepeatedCompositeFieldContainer[DescribeClusterResponse.Node]
    nats: _containers.RepeatedScalarFieldContainer[str]
    server_version: str
    answering_node: int
    config: ClusterConfig
    def __init__(self, cluster_id: _Optional[str] = ..., controller: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[DescribeClusterResponse.Node, _Mapping]]] = ..., nats: _Optional[_Iterable[str]] = ..., server_version: _Optional[str] = ..., answering_node: _Optional[int] = ..., config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class TransferLeaderRequest(_message.Message):
    stream: _common_pb2.StreamRef
    node_id: int
    urgent: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., node_id: _Optional[int] = ..., urgent: _Optional[bool] = ...) -> None: ...

class TransferLeaderResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class ReplicaState(_message.Message):
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
    stream: _common_pb2.StreamRef
    node_id: int
    dry_run: bool
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., node_id: _Optional[int] = ..., dry_run: _Optional[bool] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class ElectLeaderResponse(_message.Message):
    stream: Stream
    replicas: _containers.RepeatedCompositeFieldContainer[ReplicaState]
    records_lost_max: int
    unheard: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., replicas: _Optional[_Iterable[_Union[ReplicaState, _Mapping]]] = ..., records_lost_max: _Optional[int] = ..., unheard: _Optional[_Iterable[int]] = ...) -> None: ...

class DescribeReplicaRequest(_message.Message):
    stream: _common_pb2.StreamRef
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ...) -> None: ...

class DescribeReplicaResponse(_message.Message):
    replica: ReplicaState
    def __init__(self, replica: _Optional[_Union[ReplicaState, _Mapping]] = ...) -> None: ...

class DigestReplicaRequest(_message.Message):
    stream: _common_pb2.StreamRef
    start_offset: int
    end_offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DigestReplicaResponse(_message.Message):
    node_id: int
    digest: bytes
    next_offset: int
    log_start_offset: int
    high_watermark: int
    cleaned_to: int
    def __init__(self, node_id: _Optional[int] = ..., digest: _Optional[bytes] = ..., next_offset: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., cleaned_to: _Optional[int] = ...) -> None: ...

class DigestKeysRequest(_message.Message):
    stream: _common_pb2.StreamRef
    start_offset: int
    end_offset: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ...) -> None: ...

class DigestKeysResponse(_message.Message):
    node_id: int
    done: float
    digest: bytes
    records: int
    def __init__(self, node_id: _Optional[int] = ..., done: _Optional[float] = ..., digest: _Optional[bytes] = ..., records: _Optional[int] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    node_id: int
    draining: bool
    def __init__(self, node_id: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...

class DrainNodeResponse(_message.Message):
    def __init__(self) -> None: ...

class DebugNodeRequest(_message.Message):
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class DebugNodeResponse(_message.Message):
    config: str
    metrics: str
    log: _containers.RepeatedScalarFieldContainer[str]
    versions: str
    def __init__(self, config: _Optional[str] = ..., metrics: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., versions: _Optional[str] = ...) -> None: ...

class DescribeHistoryRequest(_message.Message):
    node_id: int
    stream: _common_pb2.StreamRef
    cursor: str
    def __init__(self, node_id: _Optional[int] = ..., stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., cursor: _Optional[str] = ...) -> None: ...

class DescribeHistoryResponse(_message.Message):
    class Series(_message.Message):
        name: str
        stream_id: int
        values: _containers.RepeatedScalarFieldContainer[float]
        def __init__(self, name: _Optional[str] = ..., stream_id: _Optional[int] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...
    node_id: int
    times_us: _containers.RepeatedScalarFieldContainer[int]
    series: _containers.RepeatedCompositeFieldContainer[DescribeHistoryResponse.Series]
    def __init__(self, node_id: _Optional[int] = ..., times_us: _Optional[_Iterable[int]] = ..., series: _Optional[_Iterable[_Union[DescribeHistoryResponse.Series, _Mapping]]] = ...) -> None: ...

class Nodes(_message.Message):
    nodes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, nodes: _Optional[_Iterable[int]] = ...) -> None: ...

class ReassignStreamRequest(_message.Message):
    stream: _common_pb2.StreamRef
    replicas: _containers.RepeatedScalarFieldContainer[int]
    observers: Nodes
    stream_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., observers: _Optional[_Union[Nodes, _Mapping]] = ..., stream_epoch: _Optional[int] = ...) -> None: ...

class ReassignStreamResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PlanReassignmentRequest(_message.Message):
    drain_node: int
    balance: bool
    def __init__(self, drain_node: _Optional[int] = ..., balance: _Optional[bool] = ...) -> None: ...

class PlanReassignmentResponse(_message.Message):
    class Move(_message.Message):
        stream: Stream
        replicas: _containers.RepeatedScalarFieldContainer[int]
        observers: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ..., replicas: _Optional[_Iterable[int]] = ..., observers: _Optional[_Iterable[int]] = ...) -> None: ...
    moves: _containers.RepeatedCompositeFieldContainer[PlanReassignmentResponse.Move]
    def __init__(self, moves: _Optional[_Iterable[_Union[PlanReassignmentResponse.Move, _Mapping]]] = ...) -> None: ...

class RemoveNodeRequest(_message.Message):
    node_id: int
    def __init__(self, node_id: _Optional[int] = ...) -> None: ...

class RemoveNodeResponse(_message.Message):
    def __init__(self) -> None: ...

class Voter(_message.Message):
    node_id: int
    address: str
    is_leader: bool
    is_linked: bool
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., is_leader: _Optional[bool] = ..., is_linked: _Optional[bool] = ...) -> None: ...

class ListVotersRequest(_message.Message):
    def __init__(self) -> None: ...

class ListVotersResponse(_message.Message):
    voters: _containers.RepeatedCompositeFieldContainer[Voter]
    is_committed: bool
    answering_node: int
    def __init__(self, voters: _Optional[_Iterable[_Union[Voter, _Mapping]]] = ..., is_committed: _Optional[bool] = ..., answering_node: _Optional[int] = ...) -> None: ...

class ChangeVotersRequest(_message.Message):
    voters: _containers.RepeatedScalarFieldContainer[int]
    noted_at: int
    def __init__(self, voters: _Optional[_Iterable[int]] = ..., noted_at: _Optional[int] = ...) -> None: ...

class ClusterConfig(_message.Message):
    copy_bytes_per_second: int
    replica_lag_max_us: int
    def __init__(self, copy_bytes_per_second: _Optional[int] = ..., replica_lag_max_us: _Optional[int] = ...) -> None: ...

class AlterClusterRequest(_message.Message):
    config: ClusterConfig
    def __init__(self, config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class AlterClusterResponse(_message.Message):
    config: ClusterConfig
    def __init__(self, config: _Optional[_Union[ClusterConfig, _Mapping]] = ...) -> None: ...

class RecordActivityRequest(_message.Message):
    def __init__(self) -> None: ...

class RecordActivityResponse(_message.Message):
    stream: Stream
    def __init__(self, stream: _Optional[_Union[Stream, _Mapping]] = ...) -> None: ...

class PrepareHandOverRequest(_message.Message):
    stream: _common_pb2.StreamRef
    urgent: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., urgent: _Optional[bool] = ...) -> None: ...

class PrepareHandOverResponse(_message.Message):
    def __init__(self) -> None: ...

class StandByRequest(_message.Message):
    stream: _common_pb2.StreamRef
    silent_us: int
    end_offset: int
    leader_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., silent_us: _Optional[int] = ..., end_offset: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class StandByResponse(_message.Message):
    gap_us: int
    def __init__(self, gap_us: _Optional[int] = ...) -> None: ...

class CancelStandByRequest(_message.Message):
    stream: _common_pb2.StreamRef
    leader_epoch: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., leader_epoch: _Optional[int] = ...) -> None: ...

class CancelStandByResponse(_message.Message):
    def __init__(self) -> None: ...

class Token(_message.Message):
    id: str
    principal: str
    created_at_us: int
    expires_at_us: int
    def __init__(self, id: _Optional[str] = ..., principal: _Optional[str] = ..., created_at_us: _Optional[int] = ..., expires_at_us: _Optional[int] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    principal: str
    lifetime_us: int
    def __init__(self, principal: _Optional[str] = ..., lifetime_us: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    token: Token
    text: str
    def __init__(self, token: _Optional[_Union[Token, _Mapping]] = ..., text: _Optional[str] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    def __init__(self) -> None: ...

class ListTokensResponse(_message.Message):
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class RevokeTokenResponse(_message.Message):
    def __init__(self) -> None: ...

class AclRule(_message.Message):
    id: int
    principal: str
    operations: _containers.RepeatedScalarFieldContainer[str]
    allow: bool
    stream: str
    subject: str
    cursor: str
    def __init__(self, id: _Optional[int] = ..., principal: _Optional[str] = ..., operations: _Optional[_Iterable[str]] = ..., allow: _Optional[bool] = ..., stream: _Optional[str] = ..., subject: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class AddAclRequest(_message.Message):
    rule: AclRule
    def __init__(self, rule: _Optional[_Union[AclRule, _Mapping]] = ...) -> None: ...

class AddAclResponse(_message.Message):
    rule: AclRule
    created: bool
    def __init__(self, rule: _Optional[_Union[AclRule, _Mapping]] = ..., created: _Optional[bool] = ...) -> None: ...

class ListAclsRequest(_message.Message):
    principal: str
    def __init__(self, principal: _Optional[str] = ...) -> None: ...

class ListAclsResponse(_message.Message):
    rules: _containers.RepeatedCompositeFieldContainer[AclRule]
    def __init__(self, rules: _Optional[_Iterable[_Union[AclRule, _Mapping]]] = ...) -> None: ...

class RemoveAclRequest(_message.Message):
    id: int
    def __init__(self, id: _Optional[int] = ...) -> None: ...

class RemoveAclResponse(_message.Message):
    def __init__(self) -> None: ...

class TestAclRequest(_message.Message):
    principal: str
    operation: str
    stream: str
    subject: str
    cursor: str
    def __init__(self, principal: _Optional[str] = ..., operation: _Optional[str] = ..., stream: _Optional[str] = ..., subject: _Optional[str] = ..., cursor: _Optional[str] = ...) -> None: ...

class TestAclResponse(_message.Message):
    allowed: bool
    rule: AclRule
    security_off: bool
    def __init__(self, allowed: _Optional[bool] = ..., rule: _Optional[_Union[AclRule, _Mapping]] = ..., security_off: _Optional[bool] = ...) -> None: ...

class BootstrapRequest(_message.Message):
    principal: str
    lifetime_us: int
    def __init__(self, principal: _Optional[str] = ..., lifetime_us: _Optional[int] = ...) -> None: ...
