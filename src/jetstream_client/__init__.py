"""The Python client of Jetstream: publish over NATS, read by offset.

    from jetstream_client import Client

    with Client("localhost:9292") as client:
        client.create_stream("orders", subject="orders.>")
        client.publish("orders.eu", b"...", key=b"42", headers={"source": "web"})
        for message in client.fetch("orders", start=0, max_messages=100, max_wait=1.0):
            print(message.offset, message.timestamp, message.subject, message.value)

`Client` and `AsyncClient` have the same methods. Every error is a `JetstreamError`; the tree is
drawn in `jetstream_protocol.errors`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jetstream_client._closing import ClientClosedError as ClientClosedError
    from jetstream_client.clients.async_client import AsyncClient as AsyncClient
    from jetstream_client.clients.blocking_client import Client as Client
    from jetstream_client.processing.blocking_queue import Queue as Queue
    from jetstream_client.processing.blocking_queue import QueueMessage as QueueMessage
    from jetstream_client.processing.options import ProcessSettings as ProcessSettings
    from jetstream_client.processing.outputs import Output as Output
    from jetstream_client.processing.processor import Processed as Processed
    from jetstream_client.processing.queue import AsyncQueue as AsyncQueue
    from jetstream_client.processing.queue import AsyncQueueMessage as AsyncQueueMessage
    from jetstream_client.publishing.ack import Ack as Ack
    from jetstream_client.publishing.ack import PublishResult as PublishResult
    from jetstream_client.publishing.batched_publisher import AsyncPublisher as AsyncPublisher
    from jetstream_client.publishing.blocking_publisher import Publisher as Publisher
    from jetstream_client.publishing.deliveries import BatchDelivery as BatchDelivery
    from jetstream_client.publishing.deliveries import BatchResult as BatchResult
    from jetstream_client.publishing.deliveries import Delivery as Delivery
    from jetstream_client.publishing.deliveries import ManyDelivery as ManyDelivery
    from jetstream_client.publishing.deliveries import ManyResult as ManyResult
    from jetstream_client.reading.batches import FetchedBatches as FetchedBatches
    from jetstream_client.reading.blocking_consumer import Consumer as Consumer
    from jetstream_client.reading.blocking_group_consumer import GroupConsumer as GroupConsumer
    from jetstream_client.reading.consumer import AsyncConsumer as AsyncConsumer
    from jetstream_client.reading.group_consumer import AsyncGroupConsumer as AsyncGroupConsumer
    from jetstream_client.reading.messages import Message as Message
    from jetstream_client.reading.messages import Messages as Messages
    from jetstream_client.reading.scan import AsyncScan as AsyncScan
    from jetstream_client.reading.scan import Scan as Scan
    from jetstream_client.reading.table import AsyncTable as AsyncTable
    from jetstream_client.reading.table import Table as Table
    from jetstream_client.transport.connection_events import ConnectionEvent as ConnectionEvent
    from jetstream_client.values.access import AclDecision as AclDecision
    from jetstream_client.values.access import AclRule as AclRule
    from jetstream_client.values.access import NewToken as NewToken
    from jetstream_client.values.access import Token as Token
    from jetstream_client.values.config import ClientConfig as ClientConfig
    from jetstream_client.values.config import NatsOptions as NatsOptions
    from jetstream_client.values.consumers import ConsumerDescription as ConsumerDescription
    from jetstream_client.values.headers import Headers as Headers
    from jetstream_client.values.positions import At as At
    from jetstream_client.values.positions import Last as Last
    from jetstream_client.values.positions import Position as Position
    from jetstream_client.values.record_types import RecordType as RecordType
    from jetstream_client.values.tls import TlsConfig as TlsConfig
    from jetstream_client.values.types import ClusterInfo as ClusterInfo
    from jetstream_client.values.types import CompactionInfo as CompactionInfo
    from jetstream_client.values.types import ConsumerGroup as ConsumerGroup
    from jetstream_client.values.types import Cursor as Cursor
    from jetstream_client.values.types import CursorDescription as CursorDescription
    from jetstream_client.values.types import DamagedRange as DamagedRange
    from jetstream_client.values.types import GroupMember as GroupMember
    from jetstream_client.values.types import History as History
    from jetstream_client.values.types import HistorySeries as HistorySeries
    from jetstream_client.values.types import Node as Node
    from jetstream_client.values.types import NodeDebug as NodeDebug
    from jetstream_client.values.types import OffsetAt as OffsetAt
    from jetstream_client.values.types import ReplicaMove as ReplicaMove
    from jetstream_client.values.types import ReplicaProgress as ReplicaProgress
    from jetstream_client.values.types import ReplicaState as ReplicaState
    from jetstream_client.values.types import Stream as Stream
    from jetstream_client.values.types import StreamDescription as StreamDescription
    from jetstream_client.values.types import StreamLake as StreamLake
    from jetstream_client.values.types import StreamSchema as StreamSchema
    from jetstream_client.values.types import UncleanElection as UncleanElection
    from jetstream_client.values.types import UnneededObject as UnneededObject
    from jetstream_client.values.types import Voter as Voter
    from jetstream_client.values.types import Voters as Voters
    from jetstream_protocol.errors import AmbiguousStreamError as AmbiguousStreamError
    from jetstream_protocol.errors import CorruptBatchError as CorruptBatchError
    from jetstream_protocol.errors import DivergedError as DivergedError
    from jetstream_protocol.errors import FencedEpochError as FencedEpochError
    from jetstream_protocol.errors import FencedInstanceError as FencedInstanceError
    from jetstream_protocol.errors import InternalError as InternalError
    from jetstream_protocol.errors import InvalidRequestError as InvalidRequestError
    from jetstream_protocol.errors import JetstreamError as JetstreamError
    from jetstream_protocol.errors import MessageTooLargeError as MessageTooLargeError
    from jetstream_protocol.errors import NoStreamError as NoStreamError
    from jetstream_protocol.errors import (
        NotEnoughReplicasAfterAppendError as NotEnoughReplicasAfterAppendError,
    )
    from jetstream_protocol.errors import NotEnoughReplicasError as NotEnoughReplicasError
    from jetstream_protocol.errors import NotFoundError as NotFoundError
    from jetstream_protocol.errors import NotLeaderError as NotLeaderError
    from jetstream_protocol.errors import NotReplicaError as NotReplicaError
    from jetstream_protocol.errors import OffsetOutOfRangeError as OffsetOutOfRangeError
    from jetstream_protocol.errors import OutOfSequenceError as OutOfSequenceError
    from jetstream_protocol.errors import PermissionDeniedError as PermissionDeniedError
    from jetstream_protocol.errors import PreconditionFailedError as PreconditionFailedError
    from jetstream_protocol.errors import QuotaExceededError as QuotaExceededError
    from jetstream_protocol.errors import RecordsDamagedError as RecordsDamagedError
    from jetstream_protocol.errors import SchemaMismatchError as SchemaMismatchError
    from jetstream_protocol.errors import SequenceTakenError as SequenceTakenError
    from jetstream_protocol.errors import StorageError as StorageError
    from jetstream_protocol.errors import StorageFullError as StorageFullError
    from jetstream_protocol.errors import StreamExistsError as StreamExistsError
    from jetstream_protocol.errors import StreamNotFoundError as StreamNotFoundError
    from jetstream_protocol.errors import StreamPausedError as StreamPausedError
    from jetstream_protocol.errors import StreamReadonlyError as StreamReadonlyError
    from jetstream_protocol.errors import TooManyRequestsError as TooManyRequestsError
    from jetstream_protocol.errors import UnauthenticatedError as UnauthenticatedError
    from jetstream_protocol.errors import UnavailableError as UnavailableError
    from jetstream_protocol.errors import UnknownEpochError as UnknownEpochError
    from jetstream_protocol.errors import UnknownOutcomeError as UnknownOutcomeError
    from jetstream_protocol.errors import UnsupportedHeaderError as UnsupportedHeaderError
    from jetstream_protocol.errors import WrongStreamError as WrongStreamError

__version__: str

_WHERE = {
    "jetstream_client._closing": "ClientClosedError",
    "jetstream_client.clients.async_client": "AsyncClient",
    "jetstream_client.clients.blocking_client": "Client",
    "jetstream_client.processing.blocking_queue": "Queue QueueMessage",
    "jetstream_client.processing.options": "ProcessSettings",
    "jetstream_client.processing.outputs": "Output",
    "jetstream_client.processing.processor": "Processed",
    "jetstream_client.processing.queue": "AsyncQueue AsyncQueueMessage",
    "jetstream_client.publishing.ack": "Ack PublishResult",
    "jetstream_client.publishing.batched_publisher": "AsyncPublisher",
    "jetstream_client.publishing.blocking_publisher": "Publisher",
    "jetstream_client.publishing.deliveries": (
        "BatchDelivery BatchResult Delivery ManyDelivery ManyResult"
    ),
    "jetstream_client.reading.batches": "FetchedBatches",
    "jetstream_client.reading.blocking_consumer": "Consumer",
    "jetstream_client.reading.blocking_group_consumer": "GroupConsumer",
    "jetstream_client.reading.consumer": "AsyncConsumer",
    "jetstream_client.reading.group_consumer": "AsyncGroupConsumer",
    "jetstream_client.reading.messages": "Message Messages",
    "jetstream_client.reading.scan": "AsyncScan Scan",
    "jetstream_client.reading.table": "AsyncTable Table",
    "jetstream_client.transport.connection_events": "ConnectionEvent",
    "jetstream_client.values.access": "AclDecision AclRule NewToken Token",
    "jetstream_client.values.config": "ClientConfig NatsOptions",
    "jetstream_client.values.consumers": "ConsumerDescription",
    "jetstream_client.values.headers": "Headers",
    "jetstream_client.values.positions": "At Last Position",
    "jetstream_client.values.record_types": "RecordType",
    "jetstream_client.values.tls": "TlsConfig",
    "jetstream_client.values.types": (
        "ClusterInfo CompactionInfo ConsumerGroup Cursor CursorDescription DamagedRange "
        "GroupMember History HistorySeries Node NodeDebug OffsetAt ReplicaMove ReplicaProgress "
        "ReplicaState Stream StreamDescription StreamLake StreamSchema UncleanElection "
        "UnneededObject Voter Voters"
    ),
    "jetstream_protocol.errors": (
        "AmbiguousStreamError CorruptBatchError DivergedError FencedEpochError "
        "FencedInstanceError InternalError InvalidRequestError JetstreamError "
        "MessageTooLargeError NoStreamError NotEnoughReplicasAfterAppendError "
        "NotEnoughReplicasError NotFoundError NotLeaderError NotReplicaError "
        "OffsetOutOfRangeError OutOfSequenceError PermissionDeniedError PreconditionFailedError "
        "QuotaExceededError RecordsDamagedError SchemaMismatchError SequenceTakenError "
        "StorageError StorageFullError StreamExistsError StreamNotFoundError StreamPausedError "
        "StreamReadonlyError TooManyRequestsError UnauthenticatedError UnavailableError "
        "UnknownEpochError UnknownOutcomeError UnsupportedHeaderError WrongStreamError"
    ),
}
"""The public names, and where they are. They are loaded when somebody asks for them, because the
command's help needs none of them, and all take half a second. Type checkers read the imports
above."""
_MODULES = {name: module for module, names in _WHERE.items() for name in names.split()}

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> Any:
    """The version is looked up when somebody asks for it."""
    if name == "__version__":
        from importlib.metadata import version

        return version("jetstream-log")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
