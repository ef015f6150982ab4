"""The Python client of Jetstream: publish over NATS, read by offset.

    from jetstream_client import Client

    with Client("localhost:9292") as client:
        client.create_stream("orders", subject="orders.>")
        client.publish("orders.eu", b"...", key=b"42", headers={"source": "web"})
        for message in client.fetch("orders", offset=0, max_messages=100, max_wait=1.0):
            print(message.offset, message.timestamp, message.subject, message.value)

`Client` and `AsyncClient` have the same methods. Every error is a `JetstreamError`; the tree is
drawn in `jetstream_protocol.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetstream_client._closing import ClientClosedError
    from jetstream_client.clients.async_client import AsyncClient
    from jetstream_client.clients.blocking_client import Client
    from jetstream_client.processing.blocking_queue import Queue, QueueMessage
    from jetstream_client.processing.options import ProcessSettings
    from jetstream_client.processing.outputs import Output
    from jetstream_client.processing.processor import Processed
    from jetstream_client.processing.queue import AsyncQueue, AsyncQueueMessage
    from jetstream_client.publishing.ack import Ack, PublishResult
    from jetstream_client.publishing.batched_publisher import AsyncPublisher
    from jetstream_client.publishing.blocking_publisher import Publisher
    from jetstream_client.publishing.deliveries import (
        BatchDelivery,
        BatchResult,
        Delivery,
        ManyDelivery,
        ManyResult,
    )
    from jetstream_client.reading.batches import FetchedBatches
    from jetstream_client.reading.blocking_consumer import Consumer
    from jetstream_client.reading.blocking_group_consumer import GroupConsumer
    from jetstream_client.reading.consumer import AsyncConsumer
    from jetstream_client.reading.group_consumer import AsyncGroupConsumer
    from jetstream_client.reading.messages import Message, Messages
    from jetstream_client.reading.scan import AsyncScan, Scan
    from jetstream_client.reading.table import AsyncTable, Table
    from jetstream_client.transport.connection_events import ConnectionEvent
    from jetstream_client.values.access import AclDecision, AclRule, NewToken, Token
    from jetstream_client.values.config import ClientConfig, NatsOptions
    from jetstream_client.values.consumers import ConsumerDescription
    from jetstream_client.values.headers import Headers
    from jetstream_client.values.positions import At, Last, Position
    from jetstream_client.values.record_types import RecordType
    from jetstream_client.values.tls import TlsConfig
    from jetstream_client.values.types import (
        ClusterInfo,
        CompactionInfo,
        ConsumerGroup,
        Cursor,
        CursorDescription,
        DamagedRange,
        GroupMember,
        History,
        HistorySeries,
        Node,
        NodeDebug,
        OffsetAt,
        ReplicaMove,
        ReplicaProgress,
        ReplicaState,
        Stream,
        StreamDescription,
        StreamLake,
        StreamSchema,
        UncleanElection,
        UnneededObject,
        Voter,
        Voters,
    )
    from jetstream_protocol.errors import (
        AmbiguousStreamError,
        CorruptBatchError,
        DivergedError,
        FencedEpochError,
        FencedInstanceError,
        InternalError,
        InvalidRequestError,
        JetstreamError,
        MessageTooLargeError,
        NoStreamError,
        NotEnoughReplicasAfterAppendError,
        NotEnoughReplicasError,
        NotFoundError,
        NotLeaderError,
        NotReplicaError,
        OffsetOutOfRangeError,
        OutOfSequenceError,
        PermissionDeniedError,
        PreconditionFailedError,
        QuotaExceededError,
        RecordsDamagedError,
        SchemaMismatchError,
        SequenceTakenError,
        StorageError,
        StorageFullError,
        StreamExistsError,
        StreamNotFoundError,
        StreamPausedError,
        StreamReadonlyError,
        TooManyRequestsError,
        UnauthenticatedError,
        UnavailableError,
        UnknownEpochError,
        UnknownOutcomeError,
        UnsupportedHeaderError,
        WrongStreamError,
    )

__version__: str

_WHERE: dict[str, tuple[str, ...]] = {
    "jetstream_client._closing": ("ClientClosedError",),
    "jetstream_client.clients.async_client": ("AsyncClient",),
    "jetstream_client.clients.blocking_client": ("Client",),
    "jetstream_client.processing.blocking_queue": ("Queue", "QueueMessage"),
    "jetstream_client.processing.options": ("ProcessSettings",),
    "jetstream_client.processing.outputs": ("Output",),
    "jetstream_client.processing.processor": ("Processed",),
    "jetstream_client.processing.queue": ("AsyncQueue", "AsyncQueueMessage"),
    "jetstream_client.publishing.ack": ("Ack", "PublishResult"),
    "jetstream_client.publishing.batched_publisher": ("AsyncPublisher",),
    "jetstream_client.publishing.blocking_publisher": ("Publisher",),
    "jetstream_client.publishing.deliveries": (
        "BatchDelivery",
        "BatchResult",
        "Delivery",
        "ManyDelivery",
        "ManyResult",
    ),
    "jetstream_client.reading.batches": ("FetchedBatches",),
    "jetstream_client.reading.blocking_consumer": ("Consumer",),
    "jetstream_client.reading.blocking_group_consumer": ("GroupConsumer",),
    "jetstream_client.reading.consumer": ("AsyncConsumer",),
    "jetstream_client.reading.group_consumer": ("AsyncGroupConsumer",),
    "jetstream_client.reading.messages": ("Message", "Messages"),
    "jetstream_client.values.record_types": ("RecordType",),
    "jetstream_client.reading.scan": ("AsyncScan", "Scan"),
    "jetstream_client.reading.table": ("AsyncTable", "Table"),
    "jetstream_client.transport.connection_events": ("ConnectionEvent",),
    "jetstream_client.values.access": ("AclDecision", "AclRule", "NewToken", "Token"),
    "jetstream_client.values.config": ("ClientConfig", "NatsOptions"),
    "jetstream_client.values.consumers": ("ConsumerDescription",),
    "jetstream_client.values.headers": ("Headers",),
    "jetstream_client.values.positions": ("At", "Last", "Position"),
    "jetstream_client.values.tls": ("TlsConfig",),
    "jetstream_client.values.types": (
        "ClusterInfo",
        "CompactionInfo",
        "ConsumerGroup",
        "Cursor",
        "CursorDescription",
        "DamagedRange",
        "GroupMember",
        "History",
        "HistorySeries",
        "Node",
        "NodeDebug",
        "OffsetAt",
        "ReplicaMove",
        "ReplicaProgress",
        "ReplicaState",
        "Stream",
        "StreamDescription",
        "StreamLake",
        "StreamSchema",
        "UncleanElection",
        "UnneededObject",
        "Voter",
        "Voters",
    ),
    "jetstream_protocol.errors": (
        "AmbiguousStreamError",
        "CorruptBatchError",
        "DivergedError",
        "FencedEpochError",
        "FencedInstanceError",
        "InternalError",
        "InvalidRequestError",
        "JetstreamError",
        "MessageTooLargeError",
        "NoStreamError",
        "NotEnoughReplicasAfterAppendError",
        "NotEnoughReplicasError",
        "NotFoundError",
        "NotLeaderError",
        "NotReplicaError",
        "OffsetOutOfRangeError",
        "OutOfSequenceError",
        "PermissionDeniedError",
        "PreconditionFailedError",
        "QuotaExceededError",
        "RecordsDamagedError",
        "SchemaMismatchError",
        "SequenceTakenError",
        "StorageError",
        "StorageFullError",
        "StreamExistsError",
        "StreamNotFoundError",
        "StreamPausedError",
        "StreamReadonlyError",
        "TooManyRequestsError",
        "UnauthenticatedError",
        "UnavailableError",
        "UnknownEpochError",
        "UnknownOutcomeError",
        "UnsupportedHeaderError",
        "WrongStreamError",
    ),
}
"""Where the names of `__all__` are. They are loaded when somebody asks for them, because the
command's help needs none of them, and all take half a second."""


def __getattr__(name: str) -> Any:
    """The version is looked up when somebody asks for it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("jetstream-log")
    for module, names in _WHERE.items():
        if name in names:
            found = globals()[name] = getattr(import_module(module), name)
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Ack",
    "AclDecision",
    "AclRule",
    "AmbiguousStreamError",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncGroupConsumer",
    "AsyncPublisher",
    "AsyncQueue",
    "AsyncQueueMessage",
    "AsyncScan",
    "AsyncTable",
    "At",
    "BatchDelivery",
    "BatchResult",
    "Client",
    "ClientClosedError",
    "ClientConfig",
    "ClusterInfo",
    "CompactionInfo",
    "ConnectionEvent",
    "Consumer",
    "ConsumerDescription",
    "ConsumerGroup",
    "CorruptBatchError",
    "Cursor",
    "CursorDescription",
    "DamagedRange",
    "Delivery",
    "DivergedError",
    "FencedEpochError",
    "FencedInstanceError",
    "FetchedBatches",
    "GroupConsumer",
    "GroupMember",
    "Headers",
    "History",
    "HistorySeries",
    "InternalError",
    "InvalidRequestError",
    "JetstreamError",
    "Last",
    "ManyDelivery",
    "ManyResult",
    "Message",
    "MessageTooLargeError",
    "Messages",
    "NatsOptions",
    "NewToken",
    "NoStreamError",
    "Node",
    "NodeDebug",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotFoundError",
    "NotLeaderError",
    "NotReplicaError",
    "OffsetAt",
    "OffsetOutOfRangeError",
    "OutOfSequenceError",
    "Output",
    "PermissionDeniedError",
    "Position",
    "PreconditionFailedError",
    "ProcessSettings",
    "Processed",
    "PublishResult",
    "Publisher",
    "Queue",
    "QueueMessage",
    "QuotaExceededError",
    "RecordType",
    "RecordsDamagedError",
    "ReplicaMove",
    "ReplicaProgress",
    "ReplicaState",
    "Scan",
    "SchemaMismatchError",
    "SequenceTakenError",
    "StorageError",
    "StorageFullError",
    "Stream",
    "StreamDescription",
    "StreamExistsError",
    "StreamLake",
    "StreamNotFoundError",
    "StreamPausedError",
    "StreamReadonlyError",
    "StreamSchema",
    "Table",
    "TlsConfig",
    "Token",
    "TooManyRequestsError",
    "UnauthenticatedError",
    "UnavailableError",
    "UncleanElection",
    "UnknownEpochError",
    "UnknownOutcomeError",
    "UnneededObject",
    "UnsupportedHeaderError",
    "Voter",
    "Voters",
    "WrongStreamError",
    "__version__",
]
