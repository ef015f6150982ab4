from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Cursor(_message.Message):
    name: str
    stream_id: int
    stream_name: str
    stream_subject: str
    offset: int
    last_epoch: int
    committed_at_us: int
    owner: str
    metadata: str
    revision: int
    stream_id_now: int
    creator: str
    def __init__(self, name: _Optional[str] = ..., stream_id: _Optional[int] = ..., stream_name: _Optional[str] = ..., stream_subject: _Optional[str] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., committed_at_us: _Optional[int] = ..., owner: _Optional[str] = ..., metadata: _Optional[str] = ..., revision: _Optional[int] = ..., stream_id_now: _Optional[int] = ..., creator: _Optional[str] = ...) -> None: ...

class CommitCursorsRequest(_message.Message):
    class Commit(_message.Message):
        name: str
        stream: _common_pb2.StreamRef
        offset: int
        last_epoch: int
        owner: str
        metadata: str
        expected_revision: int
        member_id: str
        generation: int
        def __init__(self, name: _Optional[str] = ..., stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., offset: _Optional[int] = ..., last_epoch: _Optional[int] = ..., owner: _Optional[str] = ..., metadata: _Optional[str] = ..., expected_revision: _Optional[int] = ..., member_id: _Optional[str] = ..., generation: _Optional[int] = ...) -> None: ...
    commits: _containers.RepeatedCompositeFieldContainer[CommitCursorsRequest.Commit]
    def __init__(self, commits: _Optional[_Iterable[_Union[CommitCursorsRequest.Commit, _Mapping]]] = ...) -> None: ...

class CommitCursorsResponse(_message.Message):
    class Result(_message.Message):
        error: _common_pb2.Error
        cursor: Cursor
        def __init__(self, error: _Optional[_Union[_common_pb2.Error, _Mapping]] = ..., cursor: _Optional[_Union[Cursor, _Mapping]] = ...) -> None: ...
    results: _containers.RepeatedCompositeFieldContainer[CommitCursorsResponse.Result]
    def __init__(self, results: _Optional[_Iterable[_Union[CommitCursorsResponse.Result, _Mapping]]] = ...) -> None: ...

class ListCursorsRequest(_message.Message):
    name: str
    stream: _common_pb2.StreamRef
    page: bytes
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., page: _Optional[bytes] = ...) -> None: ...

class ListCursorsResponse(_message.Message):
    cursors: _containers.RepeatedCompositeFieldContainer[Cursor]
    next_page: bytes
    def __init__(self, cursors: _Optional[_Iterable[_Union[Cursor, _Mapping]]] = ..., next_page: _Optional[bytes] = ...) -> None: ...

class DeleteCursorRequest(_message.Message):
    name: str
    stream: _common_pb2.StreamRef
    expected_revision: int
    def __init__(self, name: _Optional[str] = ..., stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., expected_revision: _Optional[int] = ...) -> None: ...

class DeleteCursorResponse(_message.Message):
    def __init__(self) -> None: ...
