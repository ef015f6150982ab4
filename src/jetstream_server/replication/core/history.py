"""Whether a log still holds the record that a reader saw last. No I/O."""

from __future__ import annotations

from jetstream_protocol.errors import DivergedError, UnknownEpochError
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.model import StreamMetadata


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
