from jetstream_protocol.generated import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CreateConsumerRequest(_message.Message):
    __slots__ = ("stream", "name", "start_offset", "filters", "ack_wait_ms", "backoff_ms", "max_deliver", "dead_letter", "max_ack_pending", "description")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVER_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    MAX_ACK_PENDING_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ("name", "created_us", "stream", "stream_id", "is_durable", "is_push", "ack_policy", "description", "filters", "ack_wait_ms", "backoff_ms", "max_deliver", "dead_letter", "max_ack_pending", "paused_until_us", "position", "ack_floor", "pending", "ack_pending", "redelivered", "waiting", "oldest_unacknowledged_ms", "redeliveries", "given_up")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    STREAM_ID_FIELD_NUMBER: _ClassVar[int]
    IS_DURABLE_FIELD_NUMBER: _ClassVar[int]
    IS_PUSH_FIELD_NUMBER: _ClassVar[int]
    ACK_POLICY_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ACK_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVER_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    MAX_ACK_PENDING_FIELD_NUMBER: _ClassVar[int]
    PAUSED_UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACK_FLOOR_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    ACK_PENDING_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_UNACKNOWLEDGED_MS_FIELD_NUMBER: _ClassVar[int]
    REDELIVERIES_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_FIELD_NUMBER: _ClassVar[int]
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
    __slots__ = ("stream", "name")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    name: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class ListConsumersRequest(_message.Message):
    __slots__ = ("stream", "after")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    after: str
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., after: _Optional[str] = ...) -> None: ...

class ListConsumersResponse(_message.Message):
    __slots__ = ("consumers", "next")
    CONSUMERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    consumers: _containers.RepeatedCompositeFieldContainer[ConsumerDescription]
    next: str
    def __init__(self, consumers: _Optional[_Iterable[_Union[ConsumerDescription, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class DeleteConsumerRequest(_message.Message):
    __slots__ = ("stream", "name", "created_us")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    name: str
    created_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ...) -> None: ...

class DeleteConsumerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseConsumerRequest(_message.Message):
    __slots__ = ("stream", "name", "until_us", "created_us")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    name: str
    until_us: int
    created_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., until_us: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class PullMessagesRequest(_message.Message):
    __slots__ = ("stream", "name", "messages_max", "bytes_max", "wait_ms", "created_us")
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    name: str
    messages_max: int
    bytes_max: int
    wait_ms: int
    created_us: int
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., messages_max: _Optional[int] = ..., bytes_max: _Optional[int] = ..., wait_ms: _Optional[int] = ..., created_us: _Optional[int] = ...) -> None: ...

class PullMessagesResponse(_message.Message):
    __slots__ = ("messages", "created_us")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[DeliveredMessage]
    created_us: int
    def __init__(self, messages: _Optional[_Iterable[_Union[DeliveredMessage, _Mapping]]] = ..., created_us: _Optional[int] = ...) -> None: ...

class DeliveredMessage(_message.Message):
    __slots__ = ("offset", "appended_us", "subject", "key", "value", "headers", "deliveries")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    APPENDED_US_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    offset: int
    appended_us: int
    subject: str
    key: bytes
    value: bytes
    headers: bytes
    deliveries: int
    def __init__(self, offset: _Optional[int] = ..., appended_us: _Optional[int] = ..., subject: _Optional[str] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[bytes] = ..., deliveries: _Optional[int] = ...) -> None: ...

class AcknowledgeMessagesRequest(_message.Message):
    __slots__ = ("stream", "name", "created_us", "acknowledgements")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        ACK: _ClassVar[AcknowledgeMessagesRequest.Kind]
        NAK: _ClassVar[AcknowledgeMessagesRequest.Kind]
        IN_PROGRESS: _ClassVar[AcknowledgeMessagesRequest.Kind]
        TERM: _ClassVar[AcknowledgeMessagesRequest.Kind]
    ACK: AcknowledgeMessagesRequest.Kind
    NAK: AcknowledgeMessagesRequest.Kind
    IN_PROGRESS: AcknowledgeMessagesRequest.Kind
    TERM: AcknowledgeMessagesRequest.Kind
    class Acknowledgement(_message.Message):
        __slots__ = ("offset", "kind", "delay_ms", "delivery")
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        DELAY_MS_FIELD_NUMBER: _ClassVar[int]
        DELIVERY_FIELD_NUMBER: _ClassVar[int]
        offset: int
        kind: AcknowledgeMessagesRequest.Kind
        delay_ms: int
        delivery: int
        def __init__(self, offset: _Optional[int] = ..., kind: _Optional[_Union[AcknowledgeMessagesRequest.Kind, str]] = ..., delay_ms: _Optional[int] = ..., delivery: _Optional[int] = ...) -> None: ...
    STREAM_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATED_US_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    stream: _common_pb2.StreamRef
    name: str
    created_us: int
    acknowledgements: _containers.RepeatedCompositeFieldContainer[AcknowledgeMessagesRequest.Acknowledgement]
    def __init__(self, stream: _Optional[_Union[_common_pb2.StreamRef, _Mapping]] = ..., name: _Optional[str] = ..., created_us: _Optional[int] = ..., acknowledgements: _Optional[_Iterable[_Union[AcknowledgeMessagesRequest.Acknowledgement, _Mapping]]] = ...) -> None: ...

class AcknowledgeMessagesResponse(_message.Message):
    __slots__ = ("unknown", "late")
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    unknown: _containers.RepeatedScalarFieldContainer[int]
    late: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, unknown: _Optional[_Iterable[int]] = ..., late: _Optional[_Iterable[int]] = ...) -> None: ...

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
