"""Every error that crosses a boundary, in one tree, with one table of its codes on each wire.

    JetstreamError
    ├── InvalidRequestError            the request itself is wrong; nothing was done
    │   ├── UnsupportedHeaderError     a NATS header asks for what this server does not do
    │   ├── MessageTooLargeError
    │   └── SchemaMismatchError        a record does not fit the stream's schema, which refuses it
    ├── NotFoundError
    │   ├── StreamNotFoundError        no stream of that name or id
    │   └── NoStreamError              no stream listens on that subject
    ├── AmbiguousStreamError           a bare name fits several streams; say name@subject
    ├── StreamExistsError              it exists with another configuration
    ├── PreconditionFailedError        an expectation (expected stream, last sequence) does not hold
    │   ├── OutOfSequenceError         a producer's batch, neither its next nor one of its last
    │   ├── SequenceTakenError         another batch is stored under that number of the producer
    │   ├── FencedInstanceError        another process has joined the consumer group by that name
    │   └── WrongStreamError           a message that expects to be stored in another stream
    ├── StreamReadonlyError            the stream takes no records until it is made writable again
    ├── StreamPausedError              the stream does not listen until it is resumed
    ├── PermissionDeniedError
    ├── UnauthenticatedError
    ├── QuotaExceededError             as many as one principal may have exist already
    ├── OffsetOutOfRangeError          below the log start or beyond any possible end
    ├── DivergedError                  the reader's last epoch belongs to another history
    ├── NotLeaderError          (r)    ask the leader
    ├── NotReplicaError         (r)    ask a replica
    ├── FencedEpochError        (r)    the request comes from an older leader epoch
    ├── UnknownEpochError       (r)    the request is ahead of what this node knows
    ├── UnavailableError        (r)    no leader, not reachable, stopping, over a bound
    │   ├── TooManyRequestsError   (r) a principal has too much open at once
    │   └── NotEnoughReplicasError (r) refused before the append: the ISR is below its minimum
    ├── UnknownOutcomeError            it may or may not have happened
    │   └── NotEnoughReplicasAfterAppendError   appended, not committed
    ├── StorageError                   a replica is offline: I/O error, failed fsync
    │   ├── StorageFullError    (r)
    │   ├── RecordsDamagedError (*) records that this replica has lost to its disk
    │   └── CorruptBatchError          bytes that fail their checks; names file and position
    └── InternalError                  a bug of ours

(r): retriable — the same request may succeed later or elsewhere, and repeating it is safe.
(*): retriable where the stream has other replicas.

`CODES` maps each class to its gRPC status and to the `code` and `err_code` of a NATS ack; the
`code` string travels in the `Error` message of both protocols (docs/protocol.md, "Errors").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetstream_protocol.generated import common_pb2

GRPC_ERROR_KEY = "jetstream-error-bin"
"""The key of the trailing metadata that holds an `Error`."""


class JetstreamError(Exception):
    """Root of the tree. `str(error)` is one sentence that says what to do."""

    retriable: bool = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def code(self) -> str:
        """The error's code in CODES. A private subclass has the code of its base class."""
        return next(CODES[cls].code for cls in type(self).__mro__ if cls in CODES)

    def to_proto(self) -> common_pb2.Error:
        """The wire form shared by gRPC trailers and data-plane responses."""
        # Here, because it takes a tenth of a second to load, and the command's help needs none.
        from jetstream_protocol.generated import common_pb2

        return common_pb2.Error(code=self.code, message=self.message, retriable=self.retriable)


class InvalidRequestError(JetstreamError):
    """The request itself is wrong; nothing was done."""


class UnsupportedHeaderError(InvalidRequestError):
    """A NATS header asks for something that this server does not do."""


class MessageTooLargeError(InvalidRequestError):
    """A record or batch is longer than NATS or the server takes."""


class SchemaMismatchError(InvalidRequestError):
    """A record does not fit the schema of its stream, whose setting `on_mismatch` is `refuse`."""


class NotFoundError(JetstreamError):
    """What the request names does not exist."""


class StreamNotFoundError(NotFoundError):
    """No stream has that name or id."""


class NoStreamError(NotFoundError):
    """No stream listens on that subject: the message was not stored."""


class AmbiguousStreamError(JetstreamError):
    """The name fits several streams, `candidates`. Name one as name@subject."""

    def __init__(self, message: str, candidates: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates

    def to_proto(self) -> common_pb2.Error:
        error = super().to_proto()
        error.candidates.extend(self.candidates)
        return error


class StreamExistsError(JetstreamError):
    """A stream of that name exists with other settings, or on another subject."""


class PreconditionFailedError(JetstreamError):
    """What the caller expected does not hold; nothing was done."""


class FencedInstanceError(PreconditionFailedError):
    """Another process has joined the consumer group under the same `instance`: the earlier one
    ends."""


class OutOfSequenceError(PreconditionFailedError):
    """A producer's batch is neither its next one nor one of its last."""


class SequenceTakenError(PreconditionFailedError):
    """Another batch is stored under the number of a producer's batch: this one is not stored."""


class WrongStreamError(PreconditionFailedError):
    """A message says in which stream it expects to be stored, and this is another one."""


class StreamReadonlyError(JetstreamError):
    """The stream takes no records until it is made writable again."""


class StreamPausedError(JetstreamError):
    """The stream does not listen to its subject until it is resumed."""


class PermissionDeniedError(JetstreamError):
    """No rule allows this principal to do it."""


class UnauthenticatedError(JetstreamError):
    """The caller is not identified: it has no valid token or certificate."""


class QuotaExceededError(JetstreamError):
    """The principal already has as many streams or groups as it may have; nothing was done."""


class OffsetOutOfRangeError(JetstreamError):
    """The offset can never be read; `[log_start_offset, high_watermark)` can."""

    def __init__(self, message: str, log_start_offset: int = 0, high_watermark: int = 0) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark

    def to_proto(self) -> common_pb2.Error:
        error = super().to_proto()
        error.log_start_offset = self.log_start_offset
        error.high_watermark = self.high_watermark
        return error


class DivergedError(JetstreamError):
    """The log agrees with the reader's up to `end_offset` of `epoch`, and not beyond."""

    def __init__(self, message: str, epoch: int = -1, end_offset: int = 0) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.end_offset = end_offset

    def to_proto(self) -> common_pb2.Error:
        error = super().to_proto()
        error.diverging_epoch = self.epoch
        error.diverging_end_offset = self.end_offset
        return error


class _RedirectError(JetstreamError):
    """Carries the address of the node to ask instead, if it is known."""

    retriable = True

    def __init__(self, message: str, redirect: common_pb2.NodeAddress | None = None) -> None:
        super().__init__(message)
        self.redirect = redirect

    def to_proto(self) -> common_pb2.Error:
        error = super().to_proto()
        if self.redirect is not None:
            error.redirect.CopyFrom(self.redirect)
        return error


class NotLeaderError(_RedirectError):
    """The node does not lead the stream; clients ask the leader by themselves."""


class NotReplicaError(_RedirectError):
    """The node does not hold the stream; clients ask a replica by themselves."""


class FencedEpochError(JetstreamError):
    """The request comes from an older leader epoch than the node's."""

    retriable = True


class UnknownEpochError(JetstreamError):
    """The request comes from a newer leader epoch than the node knows."""

    retriable = True


class UnavailableError(JetstreamError):
    """The request cannot be served now: no leader, not reachable, stopping, over a limit. Nothing
    was done."""

    retriable = True


class TooManyRequestsError(UnavailableError):
    """A principal has too much open at once."""


class NotEnoughReplicasError(UnavailableError):
    """Too few replicas are in sync. The request was refused before anything was appended."""


class UnknownOutcomeError(JetstreamError):
    """The request may or may not have been carried out: the answer did not come in time."""


class NotEnoughReplicasAfterAppendError(UnknownOutcomeError):
    """The records were appended, but too few replicas were in sync to commit them."""


class StorageError(JetstreamError):
    """A replica's disk has failed."""


class StorageFullError(StorageError):
    """A node's disk is full or nearly full: it takes no records."""

    retriable = True


class CorruptBatchError(StorageError):
    """Bytes that are not a valid batch. `file` is "" for bytes that came over the wire."""

    def __init__(self, message: str, file: str = "", position: int = 0) -> None:
        where = f"{file} at byte {position}: " if file else ""
        super().__init__(where + message)
        self.reason = message
        self.file = file
        self.position = position


class RecordsDamagedError(StorageError):
    """This replica cannot read its records [start_offset, end_offset), but can from `end_offset`
    on. `retriable`: whether another replica may have them."""

    def __init__(
        self, message: str, start_offset: int = 0, end_offset: int = 0, *, retriable: bool = True
    ) -> None:
        super().__init__(message)
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.retriable = retriable

    def to_proto(self) -> common_pb2.Error:
        error = super().to_proto()
        error.damaged_start_offset = self.start_offset
        error.damaged_end_offset = self.end_offset
        return error


class InternalError(JetstreamError):
    """A bug of the server or the client."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How one error is written on each wire."""

    code: str
    grpc_status: str
    nats_code: int
    nats_err_code: int


CODES: dict[type[JetstreamError], Spelling] = {
    # NATS JetStream's own err_code where it has one for the same error; ours begin at 20000.
    InvalidRequestError: Spelling("invalid_request", "INVALID_ARGUMENT", 400, 10003),
    UnsupportedHeaderError: Spelling("unsupported_header", "INVALID_ARGUMENT", 400, 20001),
    MessageTooLargeError: Spelling("message_too_large", "INVALID_ARGUMENT", 400, 10054),
    SchemaMismatchError: Spelling("schema_mismatch", "INVALID_ARGUMENT", 400, 20024),
    NotFoundError: Spelling("not_found", "NOT_FOUND", 404, 10014),
    StreamNotFoundError: Spelling("stream_not_found", "NOT_FOUND", 404, 10059),
    NoStreamError: Spelling("no_stream", "NOT_FOUND", 404, 20002),
    AmbiguousStreamError: Spelling("ambiguous_stream", "FAILED_PRECONDITION", 400, 20003),
    StreamExistsError: Spelling("stream_exists", "ALREADY_EXISTS", 400, 10058),
    PreconditionFailedError: Spelling("precondition_failed", "FAILED_PRECONDITION", 400, 10071),
    OutOfSequenceError: Spelling("out_of_sequence", "FAILED_PRECONDITION", 400, 20017),
    FencedInstanceError: Spelling("fenced_instance", "FAILED_PRECONDITION", 400, 20023),
    SequenceTakenError: Spelling("sequence_taken", "FAILED_PRECONDITION", 400, 20022),
    WrongStreamError: Spelling("wrong_stream", "FAILED_PRECONDITION", 400, 10060),
    StreamReadonlyError: Spelling("stream_readonly", "FAILED_PRECONDITION", 400, 20019),
    StreamPausedError: Spelling("stream_paused", "FAILED_PRECONDITION", 400, 20020),
    PermissionDeniedError: Spelling("permission_denied", "PERMISSION_DENIED", 403, 20004),
    UnauthenticatedError: Spelling("unauthenticated", "UNAUTHENTICATED", 401, 20005),
    QuotaExceededError: Spelling("quota_exceeded", "RESOURCE_EXHAUSTED", 429, 10002),
    OffsetOutOfRangeError: Spelling("offset_out_of_range", "OUT_OF_RANGE", 400, 20006),
    DivergedError: Spelling("diverged", "FAILED_PRECONDITION", 409, 20007),
    NotLeaderError: Spelling("not_leader", "FAILED_PRECONDITION", 503, 20008),
    NotReplicaError: Spelling("not_replica", "FAILED_PRECONDITION", 503, 20009),
    FencedEpochError: Spelling("fenced_epoch", "ABORTED", 503, 20010),
    UnknownEpochError: Spelling("unknown_epoch", "ABORTED", 503, 20011),
    UnavailableError: Spelling("unavailable", "UNAVAILABLE", 503, 10008),
    TooManyRequestsError: Spelling("too_many_requests", "RESOURCE_EXHAUSTED", 429, 20021),
    NotEnoughReplicasError: Spelling("not_enough_replicas", "UNAVAILABLE", 503, 20012),
    # Not 503: to some NATS clients that means "no responders".
    UnknownOutcomeError: Spelling("unknown_outcome", "UNKNOWN", 504, 20013),
    NotEnoughReplicasAfterAppendError: Spelling(
        "not_enough_replicas_after_append", "UNKNOWN", 504, 20014
    ),
    StorageError: Spelling("storage_error", "INTERNAL", 503, 10077),
    StorageFullError: Spelling("storage_full", "RESOURCE_EXHAUSTED", 503, 10047),
    CorruptBatchError: Spelling("corrupt_batch", "DATA_LOSS", 400, 20015),
    RecordsDamagedError: Spelling("records_damaged", "DATA_LOSS", 503, 20018),
    InternalError: Spelling("internal", "INTERNAL", 500, 20016),
}

_BY_CODE = {spelling.code: cls for cls, spelling in CODES.items()}


def from_trailers(trailers: Iterable[tuple[str, str | bytes]] | None) -> JetstreamError | None:
    """The error in the trailing metadata of a gRPC call; None: there is none. Raises protobuf's
    DecodeError."""
    from jetstream_protocol.generated import common_pb2

    for key, value in trailers or ():
        if key == GRPC_ERROR_KEY and isinstance(value, bytes):
            return from_proto(common_pb2.Error.FromString(value))
    return None


def from_proto(error: common_pb2.Error) -> JetstreamError:
    """The error that a peer sent, as its class. An unknown code becomes an InternalError."""
    cls = _BY_CODE.get(error.code)
    if cls is None:
        return InternalError(f"{error.message} (unknown error code {error.code!r})")
    if cls is OffsetOutOfRangeError:
        return OffsetOutOfRangeError(error.message, error.log_start_offset, error.high_watermark)
    if cls is RecordsDamagedError:
        return RecordsDamagedError(
            error.message,
            error.damaged_start_offset,
            error.damaged_end_offset,
            retriable=error.retriable,
        )
    if cls is DivergedError:
        return DivergedError(error.message, error.diverging_epoch, error.diverging_end_offset)
    if cls is AmbiguousStreamError:
        return AmbiguousStreamError(error.message, tuple(error.candidates))
    if issubclass(cls, _RedirectError):
        return cls(error.message, error.redirect if error.HasField("redirect") else None)
    return cls(error.message)
