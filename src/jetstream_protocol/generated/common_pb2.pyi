from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamRef(_message.Message):
    id: int
    name: str
    subject: str
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class Error(_message.Message):
    code: str
    message: str
    retriable: bool
    log_start_offset: int
    high_watermark: int
    redirect: NodeAddress
    diverging_epoch: int
    diverging_end_offset: int
    candidates: _containers.RepeatedScalarFieldContainer[str]
    damaged_start_offset: int
    damaged_end_offset: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., retriable: _Optional[bool] = ..., log_start_offset: _Optional[int] = ..., high_watermark: _Optional[int] = ..., redirect: _Optional[_Union[NodeAddress, _Mapping]] = ..., diverging_epoch: _Optional[int] = ..., diverging_end_offset: _Optional[int] = ..., candidates: _Optional[_Iterable[str]] = ..., damaged_start_offset: _Optional[int] = ..., damaged_end_offset: _Optional[int] = ...) -> None: ...

class NodeAddress(_message.Message):
    node_id: int
    grpc: str
    data: str
    http: str
    def __init__(self, node_id: _Optional[int] = ..., grpc: _Optional[str] = ..., data: _Optional[str] = ..., http: _Optional[str] = ...) -> None: ...
