"""What a reader does about an error by itself: one table, by error and by who has met it.

`JetstreamError.retriable` says something else: whether the same call may succeed at another node,
now. The calls themselves go by that (retries.py). When they have given up, this table
decides: what lives on for months goes on after everything that passes without anybody's help, also
what no other node can do at the moment, such as a coordinator whose disk has failed before another
node leads. What does not pass ends it, and the program gets the error.
"""

from __future__ import annotations

from enum import Enum, auto

from jetstream_protocol import errors
from jetstream_protocol.errors import JetstreamError


class Recovery(Enum):
    """REPEAT: the same again, after a pause. REJOIN: as another member of the group. RESET: go on
    where `on_reset` says, if it says so. END: tell the program."""

    REPEAT = auto()
    REJOIN = auto()
    RESET = auto()
    END = auto()


class Caller(Enum):
    """PUBLISH: `process`, an output or a dead letter. COMMIT: of a cursor, each second. HEARTBEAT:
    of a member of a consumer group. READ: the next record. TABLE: the same, for a table."""

    PUBLISH = auto()
    COMMIT = auto()
    HEARTBEAT = auto()
    READ = auto()
    TABLE = auto()


_R, _E = Recovery.REPEAT, Recovery.END
_ENDS = (_E, _E, _E, _E, _E)
_PASSES = (_R, _R, _R, _E, _R)
"""READ: the call has been repeated for the client's timeout. The program hears of it, and may ask
for the next record again."""

# PUBLISH, COMMIT, HEARTBEAT, READ, TABLE
RECOVERIES: dict[type[JetstreamError], tuple[Recovery, ...]] = {
    errors.InvalidRequestError: _ENDS,
    errors.UnsupportedHeaderError: _ENDS,
    errors.MessageTooLargeError: _ENDS,
    errors.SchemaMismatchError: _ENDS,
    errors.NotFoundError: _ENDS,
    errors.StreamNotFoundError: _ENDS,
    errors.NoStreamError: _ENDS,
    errors.AmbiguousStreamError: _ENDS,
    errors.StreamExistsError: _ENDS,
    # The member is none any more. A consumer whose commit is refused ends, and its member rejoins.
    errors.PreconditionFailedError: (_E, _E, Recovery.REJOIN, _E, _E),
    errors.FencedInstanceError: _ENDS,
    errors.OutOfSequenceError: _ENDS,
    errors.SequenceTakenError: _ENDS,
    errors.WrongStreamError: _ENDS,
    errors.StreamReadonlyError: _ENDS,
    errors.StreamPausedError: _ENDS,
    errors.PermissionDeniedError: _ENDS,
    errors.UnauthenticatedError: _ENDS,
    errors.QuotaExceededError: _ENDS,
    errors.OffsetOutOfRangeError: (_E, _E, _E, Recovery.RESET, _E),
    errors.DivergedError: (_E, _E, _E, Recovery.RESET, _E),
    errors.NotLeaderError: _PASSES,
    errors.NotReplicaError: _PASSES,
    errors.FencedEpochError: _PASSES,
    errors.UnknownEpochError: _PASSES,
    errors.UnavailableError: _PASSES,
    errors.TooManyRequestsError: _PASSES,
    errors.NotEnoughReplicasError: _PASSES,
    # What is published has an id, and a commit its owner: neither is done twice.
    errors.UnknownOutcomeError: _PASSES,
    errors.NotEnoughReplicasAfterAppendError: _PASSES,
    # Another replica leads, or the disk is mended.
    errors.StorageError: _PASSES,
    errors.StorageFullError: _PASSES,
    errors.CorruptBatchError: _ENDS,
    # Of a stream without other replicas; see `recovery`.
    errors.RecordsDamagedError: _ENDS,
    errors.InternalError: _ENDS,
}


_PLACES = {caller: place for place, caller in enumerate(Caller)}


def recovery(error: JetstreamError, caller: Caller) -> Recovery:
    """What the caller does about the error."""
    row = next(RECOVERIES[cls] for cls in type(error).__mro__ if cls in RECOVERIES)
    if isinstance(error, errors.RecordsDamagedError) and error.retriable:
        row = _PASSES  # Other replicas may have them.
    return row[_PLACES[caller]]


def repeats(error: JetstreamError, caller: Caller) -> bool:
    """Whether the caller tries again by itself."""
    return recovery(error, caller) is Recovery.REPEAT
