"""Producers' batches that come to this node itself, by the data plane or by gRPC: who may send them
to which stream, and to whom they go.

Everything else a batch meets on its way is the ingest's, as if NATS had delivered it: limits,
de-duplication, expectation, append, pending acks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from jetstream_protocol.batch import HEADER_BYTES
from jetstream_protocol.envelope import NO_EXPECTATION, BatchEnvelope
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NotLeaderError,
)
from jetstream_protocol.generated import dataplane_pb2 as pb
from jetstream_protocol.types import StreamId
from jetstream_server.replication.replica_manager import ReplicaManager
from jetstream_server.security.identity import Identity
from jetstream_server.serving.stream_access import StreamAccess

Stored = Callable[[int, int, bool], None]
Refuse = Callable[[JetstreamError], None]


class Produce(Protocol):
    """See Ingest.produce."""

    def __call__(
        self,
        stream_id: StreamId,
        batch: BatchEnvelope,
        subject: str,
        stored: Stored,
        refuse: Refuse,
    ) -> None: ...


class Produces:
    """The batches of one node's producers, whichever connection they come by."""

    def __init__(
        self, replicas: ReplicaManager, access: StreamAccess, produce: Produce, bytes_max: int
    ) -> None:
        """bytes_max: length of the longest batch."""
        self.bytes_max = bytes_max
        self._replicas = replicas
        self._access = access
        self._produce = produce

    def begin(
        self,
        request: pb.ProduceRequest,
        tail: bytes | bytearray,
        identity: Identity,
        stored: Stored,
        refuse: Refuse,
    ) -> None:
        """Store a batch of a caller who may send such a request. One of `stored` and `refuse` is
        called, perhaps before this returns. Raises a JetstreamError instead, which becomes the
        answer."""
        if len(tail) > self.bytes_max:
            raise MessageTooLargeError(
                f"a batch of {len(tail)} bytes: this server takes at most {self.bytes_max}"
            )
        expected = request.expected_offset if request.HasField("expected_offset") else None
        if expected is not None and expected < 0:
            raise InvalidRequestError("an expected offset must not be negative")
        stream = self._access.resolve_written(identity, request.stream, request.subject)
        batch = BatchEnvelope(
            bytes(tail[:HEADER_BYTES]),
            bytes(memoryview(tail)[HEADER_BYTES:]),
            expected_offset=NO_EXPECTATION if expected is None else expected,
            ack_leader=request.ack_leader,
        )
        try:
            self._produce(stream.id, batch, request.subject, stored, refuse)
        except NotLeaderError:
            self._replicas.led_replica_of(stream)  # Its error names the leader.
            raise
