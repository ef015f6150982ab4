"""Why a replica does not serve what a reader asks for: the checks of its position, and the errors.

No I/O.
"""

from __future__ import annotations

from collections.abc import Callable

from jetstream_protocol.errors import (
    DivergedError,
    JetstreamError,
    NotReplicaError,
    RecordsDamagedError,
    StreamNotFoundError,
    UnavailableError,
    UnknownEpochError,
)
from jetstream_server.disk_errors import lacks_descriptors
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.streams import StreamMetadata


def check_epoch_known(stream: StreamMetadata, last_epoch: int) -> None:
    """Check that who believes to lead has heard of the leader epoch that a reader saw. Another node
    may lead by now, and hold more. Raises UnknownEpochError."""
    if last_epoch > stream.leader_epoch:
        raise UnknownEpochError(
            f"leader epoch {last_epoch} of stream {stream.name!r} is not known here yet; try again"
        )


def check_history(
    stream: StreamMetadata,
    log: CommitLog,
    high_watermark: int,
    offset: int,
    last_epoch: int,
    *,
    is_leader: bool,
) -> None:
    """Compare the record before `offset`, which a reader saw in that leader epoch, with the log's.

    last_epoch: -1: the reader saw none. is_leader: as in `check_epoch_known`, which comes first.
    Raises DivergedError if the record is not, and cannot be, in the log.
    """
    if last_epoch < 0 or offset == 0:
        return
    epoch, end_offset = log.epochs.end_offset_for(last_epoch, log.log_end_offset)
    if epoch == last_epoch and end_offset >= offset:
        return
    # Uncommitted records here may still be truncated, and the records that the reader saw may
    # take their place. Of the record before the log start, a log knows nothing.
    start = log.log_start_offset
    is_committed = start < high_watermark >= offset or 0 <= end_offset < high_watermark
    if is_leader or is_committed:
        raise DivergedError(
            f"the record before offset {offset} of stream {stream.name!r} is not of leader epoch "
            f"{last_epoch} any more: the log was truncated or re-created",
            epoch,
            end_offset,
        )


def is_readable(check: Callable[[], None]) -> bool:
    """Whether `Replica.check_readable` raises nothing."""
    try:
        check()
    except JetstreamError:
        return False
    return True


def damage_error(
    stream: StreamMetadata, node_id: int, error: RecordsDamagedError
) -> RecordsDamagedError:
    """The error for known damage: what the disk has lost, and where reading can continue."""
    start, end = error.start_offset, error.end_offset
    alone = stream.is_alone(node_id)
    advice = (
        f"there is no other replica; reading can continue from offset {end}"
        if alone
        else f"read them from another replica (read_from 'any'), or continue from offset {end}"
    )
    return RecordsDamagedError(
        f"node {node_id} has lost offsets {start} to {end - 1} of stream {stream.name!r} to its "
        f"disk: {advice}",
        start,
        end,
        retriable=not alone,
    )


def unread_error(
    stream: StreamMetadata, node_id: int, offset: int, cause: BaseException | None = None
) -> UnavailableError:
    """The error while suspected damage is being checked, unless nothing is suspected because of the
    cause."""
    problem = f"node {node_id} could not read offset {offset} of stream {stream.name!r}"
    if lacks_descriptors(cause):
        return UnavailableError(f"{problem}: it has no file descriptor left; try again")
    return UnavailableError(f"{problem}, and is inspecting its file; try again")


def end_unread_error(
    stream: StreamMetadata, node_id: int, cause: BaseException | None
) -> UnavailableError:
    """The error for an append that lacked descriptors, or could not read where the batches of the
    last segment begin."""
    node, name = f"nothing was stored: node {node_id}", f"stream {stream.name!r}"
    if lacks_descriptors(cause):
        return UnavailableError(f"{node} has no file descriptor left for {name}; try again")
    return UnavailableError(
        f"{node} could not read the end of {name}, and is inspecting its file; try again"
    )


def search_error(
    stream: StreamMetadata, node_id: int, cause: BaseException | None
) -> UnavailableError:
    """Like `unread_error`, for a search by time."""
    problem = f"node {node_id} could not search stream {stream.name!r} for a time"
    if lacks_descriptors(cause):
        return UnavailableError(f"{problem}: it has no file descriptor left; try again")
    return UnavailableError(
        f"{problem}, as it could not read some bytes, and is inspecting its file; try again"
    )


class InLakeError(UnavailableError):
    """The record is in the lake, and not in the log. offset: to be read there. is_epoch: only its
    leader epoch."""

    offset = 0
    is_epoch = False


def in_lake_error(stream: StreamMetadata, offset: int, *, is_epoch: bool = False) -> InLakeError:
    """The error where only the log is read."""
    error = InLakeError(
        f"offset {offset} of stream {stream.name!r} is in the lake, where this way of reading does "
        "not look"
    )
    error.offset, error.is_epoch = offset, is_epoch
    return error


def no_beginning_error(stream: StreamMetadata, node_id: int) -> UnavailableError:
    """The error for a log that has lost its beginning and is to be fetched anew."""
    return UnavailableError(
        f"node {node_id} has lost the beginning of stream {stream.name!r} and fetches it anew; "
        "read from another replica meanwhile"
    )


def gone_error(
    stream: StreamMetadata, node_id: int, *, is_deleted: bool
) -> StreamNotFoundError | NotReplicaError:
    """The error for a closed replica: the stream was deleted, or other nodes have it because it was
    moved or this node stops."""
    if is_deleted:
        return StreamNotFoundError(f"stream {stream.name!r} was deleted")
    return NotReplicaError(
        f"node {node_id} no longer serves stream {stream.name!r}: it was moved, or the node stops"
    )
