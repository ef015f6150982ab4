from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    version: int
    client: str
    token: str
    is_node: bool
    def __init__(self, version: _Optional[int] = ..., client: _Optional[str] = ..., token: _Optional[str] = ..., is_node: _Optional[bool] = ...) -> None: ...

class HelloReply(_message.Message):
    error: _common_pb2.Error
    node_id: int
    cluster_id: str
    nonce: bytes
    produce_bytes_max: int
    follows: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., node_id: _Optional[int] = ..., cluster_id: _Optional[str] = ..., nonce: _Optional[bytes] = ..., produce_bytes_max: _Optional[int] = ..., follows: _Optional[bool] = ...) -> None: ...

class NodeHello(_message.Message):
    node_id: int
    incarnation: int
    nonce: bytes
    proof: bytes
    fetches: bool
    fixed_layout: bool
    def __init__(self, node_id: _Optional[int] = ..., incarnation: _Optional[int] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ..., fetches: _Optional[bool] = ..., fixed_layout: _Optional[bool] = ...) -> None: ...

class NodeHelloReply(_message.Message):
    error: _common_pb2.Error
    proof: bytes
    fixed_layout: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., proof: _Optional[bytes] = ..., fixed_layout: _Optional[bool] = ...) -> None: ...

class Positions(_message.Message):
    class Position(_message.Message):
        stream_id: int
        leader_epoch: int
        fetch_offset: int
        last_epoch: int
        flushed_offset: int
        stream_epoch: int
        refused: bool
        damaged_start_offset: int
        damaged_end_offset: int
        cannot_append: bool
        def __init__(self, stream_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., flushed_offset: _Optional[int] = ..., stream_epoch: _Optional[int] = ..., refused: _Optional[bool] = ..., damaged_start_offset: _Optional[int] = ..., damaged_end_offset: _Optional[int] = ..., cannot_append: _Optional[bool] = ...) -> None: ...
    positions: _containers.RepeatedCompositeFieldContainer[Positions.Position]
    dropped: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, positions: _Optional[_Iterable[_Union[Positions.Position, _Mapping]]] = ..., dropped: _Optional[_Iterable[int]] = ...) -> None: ...

class Records(_message.Message):
    class Part(_message.Message):
        stream_id: int
        leader_epoch: int
        fetch_offset: int
        last_epoch: int
        error: _common_pb2.Error
        high_watermark: int
        log_start_offset: int
        stream_epoch: int
        length: int
        diverging_epoch: int
        diverging_end_offset: int
        out_of_range: bool
        tombstones_gone_below: int
        def __init__(self, stream_id: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., fetch_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., high_watermark: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., stream_epoch: _Optional[int] = ..., length: _Optional[int] = ..., diverging_epoch: _Optional[int] = ..., diverging_end_offset: _Optional[int] = ..., out_of_range: _Optional[bool] = ..., tombstones_gone_below: _Optional[int] = ...) -> None: ...
    parts: _containers.RepeatedCompositeFieldContainer[Records.Part]
    def __init__(self, parts: _Optional[_Iterable[_Union[Records.Part, _Mapping]]] = ...) -> None: ...

class DataFetchRequest(_message.Message):
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    bytes_min: int
    wait_ms_max: int
    refused: bool
    filter_subject: str
    filter_key: bytes
    as_stored: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bytes_min: _Optional[int] = ..., wait_ms_max: _Optional[int] = ..., refused: _Optional[bool] = ..., filter_subject: _Optional[str] = ..., filter_key: _Optional[bytes] = ..., as_stored: _Optional[bool] = ...) -> None: ...

class DataFetchResponse(_message.Message):
    error: _common_pb2.Error
    stream_id: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    out_of_sync: bool
    tombstones_gone_below: int
    next_offset: int
    last_epoch: int
    compacted_below: int
    has_ended: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., stream_id: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., out_of_sync: _Optional[bool] = ..., tombstones_gone_below: _Optional[int] = ..., next_offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., compacted_below: _Optional[int] = ..., has_ended: _Optional[bool] = ...) -> None: ...

class FollowRequest(_message.Message):
    credit: int
    def __init__(self, credit: _Optional[int] = ..., **kwargs) -> None: ...

class Credit(_message.Message):
    bytes: int
    ends: bool
    def __init__(self, bytes: _Optional[int] = ..., ends: _Optional[bool] = ...) -> None: ...

class ProduceRequest(_message.Message):
    stream: _common_pb2.StreamRef
    subject: str
    expected_offset: int
    ack_leader: bool
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., subject: _Optional[str] = ..., expected_offset: _Optional[int] = ..., ack_leader: _Optional[bool] = ...) -> None: ...

class ProduceResponse(_message.Message):
    error: _common_pb2.Error
    stream_id: int
    base_offset: int
    record_count: int
    duplicate: bool
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., stream_id: _Optional[int] = ..., base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., duplicate: _Optional[bool] = ...) -> None: ...
