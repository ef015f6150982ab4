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

from jetstream_client._ack import Ack, PublishResult
from jetstream_client._async import AsyncClient
from jetstream_client._blocking_publisher import Publisher
from jetstream_client._config import ClientConfig, NatsOptions
from jetstream_client._consume import AsyncConsumer
from jetstream_client._deliveries import (
    BatchDelivery,
    BatchResult,
    Delivery,
    ManyDelivery,
    ManyResult,
)
from jetstream_client._headers import Headers
from jetstream_client._messages import Message, Messages
from jetstream_client._positions import At, Last, Position
from jetstream_client._publisher import AsyncPublisher
from jetstream_client._scan import AsyncScan, Scan
from jetstream_client._sync import Client, Consumer
from jetstream_client._table import AsyncTable, Table
from jetstream_client._types import (
    ClusterInfo,
    CompactionInfo,
    DamagedRange,
    Node,
    OffsetAt,
    ReplicaProgress,
    ReplicaState,
    Stream,
    StreamDescription,
    UncleanElection,
)
from jetstream_protocol.errors import (
    AmbiguousStreamError,
    CorruptBatchError,
    DivergedError,
    FencedEpochError,
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
    RecordsDamagedError,
    StorageError,
    StorageFullError,
    StreamExistsError,
    StreamNotFoundError,
    UnauthenticatedError,
    UnavailableError,
    UnknownEpochError,
    UnknownOutcomeError,
    UnsupportedHeaderError,
)

__all__ = [
    "Ack",
    "AmbiguousStreamError",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncPublisher",
    "AsyncScan",
    "AsyncTable",
    "At",
    "BatchDelivery",
    "BatchResult",
    "Client",
    "ClientConfig",
    "ClusterInfo",
    "CompactionInfo",
    "Consumer",
    "CorruptBatchError",
    "DamagedRange",
    "Delivery",
    "DivergedError",
    "FencedEpochError",
    "Headers",
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
    "NoStreamError",
    "Node",
    "NotEnoughReplicasAfterAppendError",
    "NotEnoughReplicasError",
    "NotFoundError",
    "NotLeaderError",
    "NotReplicaError",
    "OffsetAt",
    "OffsetOutOfRangeError",
    "OutOfSequenceError",
    "PermissionDeniedError",
    "Position",
    "PreconditionFailedError",
    "PublishResult",
    "Publisher",
    "RecordsDamagedError",
    "ReplicaProgress",
    "ReplicaState",
    "Scan",
    "StorageError",
    "StorageFullError",
    "Stream",
    "StreamDescription",
    "StreamExistsError",
    "StreamNotFoundError",
    "Table",
    "UnauthenticatedError",
    "UnavailableError",
    "UncleanElection",
    "UnknownEpochError",
    "UnknownOutcomeError",
    "UnsupportedHeaderError",
]
