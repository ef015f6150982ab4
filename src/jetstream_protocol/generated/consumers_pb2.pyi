from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateConsumerRequest(_message.Message):
    stream: _common_pb2.StreamRef
    name: str
    start_offset: int
    filters: _containers.RepeatedScalarFieldContainer[str]
    ack_wait_ms: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    max_deliver: int
    dead_letter: str
    max_ack_pending: int
    description: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., start_offset: _Optional[int] = ..., filters: _Optional[_Iterable[str]] = ..., ack_wait_ms: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., max_deliver: _Optional[int] = ..., dead_letter: _Optional[str] = ..., max_ack_pending: _Optional[int] = ..., description: _Optional[str] = ...) -> None: ...

class ConsumerDescription(_message.Message):
    name: str
    created_us: int
    stream: str
    stream_id: int
    is_durable: bool
    is_push: bool
    ack_policy: str
    description: str
    filters: _containers.RepeatedScalarFieldContainer[str]
    ack_wait_ms: int
    backoff_ms: _containers.RepeatedScalarFieldContainer[int]
    max_deliver: int
    dead_letter: str
    max_ack_pending: int
    paused_until_us: int
    position: int
    ack_floor: int
    pending: int
    ack_pending: int
    redelivered: int
    waiting: int
    oldest_unacknowledged_ms: int
    redeliveries: int
    given_up: int
    def __init__(self, name: _Optional[str] = ..., created_us: _Optional[int] = ..., stream: _Optional[str] = ..., stream_id: _Optional[int] = ..., is_durable: _Optional[bool] = ..., is_push: _Optional[bool] = ..., ack_policy: _Optional[str] = ..., description: _Optional[str] = ..., filters: _Optional[_Iterable[str]] = ..., ack_wait_ms: _Optional[int] = ..., backoff_ms: _Optional[_Iterable[int]] = ..., max_deliver: _Optional[int] = ..., dead_letter: _Optional[str] = ..., max_ack_pending: _Optional[int] = ..., paused_until_us: _Optional[int] = ..., position: _Optional[int] = ..., ack_floor: _Optional[int] = ..., pending: _Optional[int] = ..., ack_pending: _Optional[int] = ..., redelivered: _Optional[int] = ..., waiting: _Optional[int] = ..., oldest_unacknowledged_ms: _Optional[int] = ..., redeliveries: _Optional[int] = ..., given_up: _Optional[int] = ...) -> None: ...

class DescribeConsumerRequest(_message.Message):
    stream: _common_pb2.StreamRef
    name: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class ListConsumersRequest(_message.Message):
    stream: _common_pb2.StreamRef
    after: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., after: _Optional[str] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerDescription]
    next: str
    def __init__(self, consumers: _Optional[_Iterable[_Union[ConsumerDescription, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class DeleteConsumerRequest(_message.Message):
    stream: _common_pb2.StreamRef
    name: str
    created_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ...) -> None: ...

class DeleteConsumerResponse(_message.Message):
    def __init__(self) -> None: ...

class PauseConsumerRequest(_message.Message):
    stream: _common_pb2.StreamRef
    name: str
    until_us: int
    created_us: int
    for_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., until_us: _Optional[int] = ..., created_us: _Optional[int] = ..., for_us: _Optional[int] = ...) -> None: ...

class PullMessagesRequest(_message.Message):
    stream: _common_pb2.StreamRef
    name: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    created_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class PullMessagesResponse(_message.Message):
    messages: _containers.RepeatedCompositeFieldContainer[DeliveredMessage]
    created_us: int
    def __init__(self, messages: _Optional[_Iterable[_Union[DeliveredMessage, _Mapping]]] = ..., created_us: _Optional[int] = ...) -> None: ...

class DeliveredMessage(_message.Message):
    offset: int
    appended_us: int
    subject: str
    key: bytes
    value: bytes
    headers: bytes
    deliveries: int
    def __init__(self, offset: _Optional[int] = ..., appended_us: _Optional[int] = ..., subject: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., deliveries: _Optional[int] = ...) -> None: ...

class AcknowledgeMessagesRequest(_message.Message):
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        ACK: _ClassVar[AcknowledgeMessagesRequest.Kind]
        NAK: _ClassVar[AcknowledgeMessagesRequest.Kind]
        IN_PROGRESS: _ClassVar[AcknowledgeMessagesRequest.Kind]
        TERM: _ClassVar[AcknowledgeMessagesRequest.Kind]
    ACK: AcknowledgeMessagesRequest.Kind
    NAK: AcknowledgeMessagesRequest.Kind
    IN_PROGRESS: AcknowledgeMessagesRequest.Kind
    TERM: AcknowledgeMessagesRequest.Kind
    class Acknowledgement(_message.Message):
        offset: int
        kind: AcknowledgeMessagesRequest.Kind
        delay_ms: int
        delivery: int
        def __init__(self, offset: _Optional[int] = ..., kind: _Optional[_Union[AcknowledgeMessagesRequest.Kind, str]] = ..., delay_ms: _Optional[int] = ..., delivery: _Optional[int] = ...) -> None: ...
    stream: _common_pb2.StreamRef
    name: str
    created_us: int
    acknowledgements: _containers.RepeatedCompositeFieldContainer[AcknowledgeMessagesRequest.Acknowledgement]
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ..., acknowledgements: _Optional[_Iterable[_Union[AcknowledgeMessagesRequest.Acknowledgement, _Mapping]]] = ...) -> None: ...

class AcknowledgeMessagesResponse(_message.Message):
    unknown: _containers.RepeatedScalarFieldContainer[int]
    late: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, unknown: _Optional[_Iterable[int]] = ..., late: _Optional[_Iterable[int]] = ...) -> None: ...

class StoredConsumer(_message.Message):
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
    stream: _common_pb2.StreamRef
    verb: str
    rest: str
    body: bytes
    made_at: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., verb: _Optional[str] = ..., rest: _Optional[str] = ..., body: _Optional[bytes] = ..., made_at: _Optional[int] = ...) -> None: ...

class AskConsumersResponse(_message.Message):
    answer: bytes
    def __init__(self, answer: _Optional[bytes] = ...) -> None: ...

class ConsumerState(_message.Message):
    key: bytes
    value: bytes
    revision: int
    refused: bool
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., revision: _Optional[int] = ..., refused: _Optional[bool] = ...) -> None: ...

class LoadConsumersRequest(_message.Message):
    stream_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, stream_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadConsumersResponse(_message.Message):
    states: _containers.RepeatedCompositeFieldContainer[ConsumerState]
    def __init__(self, states: _Optional[_Iterable[_Union[ConsumerState, _Mapping]]] = ...) -> None: ...

class StoreConsumersRequest(_message.Message):
    class Write(_message.Message):
        key: bytes
        value: bytes
        expected_revision: int
        def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., expected_revision: _Optional[int] = ...) -> None: ...
    writes: _containers.RepeatedCompositeFieldContainer[StoreConsumersRequest.Write]
    def __init__(self, writes: _Optional[_Iterable[_Union[StoreConsumersRequest.Write, _Mapping]]] = ...) -> None: ...

class StoreConsumersResponse(_message.Message):
    states: _containers.RepeatedCompositeFieldContainer[ConsumerState]
    def __init__(self, states: _Optional[_Iterable[_Union[ConsumerState, _Mapping]]] = ...) -> None: ...
