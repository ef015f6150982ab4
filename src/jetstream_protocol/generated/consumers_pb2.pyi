from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredConsumer(_message.Message):
    __slots__ = ("leader_epoch", "created_us", "config", "position", "sequence", "last_offset", "offsets", "sequences", "counts", "selected", "rest")
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SELECTED_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    leader_epoch: int
    created_us: int
    config: str
    position: int
    sequence: int
    last_offset: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    sequences: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    selected: _containers.RepeatedScalarFieldContainer[int]
    rest: int
    def __init__(self, leader_epoch: _Optional[int] = ..., created_us: _Optional[int] = ..., config: _Optional[str] = ..., position: _Optional[int] = ..., sequence: _Optional[int] = ..., last_offset: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., sequences: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ..., selected: _Optional[_Iterable[int]] = ..., rest: _Optional[int] = ...) -> None: ...

class AskConsumersRequest(_message.Message):
    __slots__ = ("stream", "verb", "rest", "body")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    VERB_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    verb: str
    rest: str
    body: bytes
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., verb: _Optional[str] = ..., rest: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class AskConsumersResponse(_message.Message):
    __slots__ = ("answer",)
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...

class ConsumerState(_message.Message):
    __slots__ = ("key", "value", "revision", "refused")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    revision: int
    refused: bool
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., revision: _Optional[int] = ..., refused: _Optional[bool] = ...) -> None: ...

class LoadConsumersRequest(_message.Message):
    __slots__ = ("stream_ids",)
    STREAM_IDS_FIELD_NUMBER: _ClassVar[int]
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadConsumersResponse(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[ConsumerState]
    def __init__(self, states: _Optional[_Iterable[_Union[ConsumerState, _Mapping]]] = ...) -> None: ...

class StoreConsumersRequest(_message.Message):
    __slots__ = ("writes",)
    class Write(_message.Message):
        __slots__ = ("key", "value", "expected_revision")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
        key: bytes
        value: bytes
        expected_revision: int
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., expected_revision: _Optional[int] = ...) -> None: ...
    WRITES_FIELD_NUMBER: _ClassVar[int]
    writes: _containers.RepeatedCompositeFieldContainer[StoreConsumersRequest.Write]
    def __init__(self, writes: _Optional[_Iterable[_Union[StoreConsumersRequest.Write, _Mapping]]] = ...) -> None: ...

class StoreConsumersResponse(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[ConsumerState]
    def __init__(self, states: _Optional[_Iterable[_Union[ConsumerState, _Mapping]]] = ...) -> None: ...
