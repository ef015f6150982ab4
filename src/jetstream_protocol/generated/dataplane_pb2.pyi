from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("version", "client")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    version: int
    client: str
    def __init__(self, version: _Optional[int] = ..., client: _Optional[str] = ...) -> None: ...

class HelloReply(_message.Message):
    __slots__ = ("error", "node_id", "cluster_id")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    node_id: int
    cluster_id: str
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., node_id: _Optional[int] = ..., cluster_id: _Optional[str] = ...) -> None: ...

class DataFetchRequest(_message.Message):
    __slots__ = ("stream", "offset", "last_epoch", "bytes_max", "bytes_min", "wait_ms_max")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MIN_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_MAX_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    offset: int
    last_epoch: int
    bytes_max: int
    bytes_min: int
    wait_ms_max: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., bytes_max: _Optional[int] = ..., bytes_min: _Optional[int] = ..., wait_ms_max: _Optional[int] = ...) -> None: ...

class DataFetchResponse(_message.Message):
    __slots__ = ("error", "stream_id", "log_start_offset", "high_watermark", "leader_epoch")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    HIGH_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    error: _common_pb2.Error
    stream_id: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., stream_id: _Optional[int] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., leader_epoch: _Optional[int] = ...) -> None: ...
