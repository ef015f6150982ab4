"""What of a stream is in the lake, and what in this node's log: pure, but for a log that must begin
anew.

Two starts, and never one: readers begin at `start_offset`, in the lake; followers at the log's own
start, for they copy only the local part.
"""

from __future__ import annotations

from jetstream_protocol.errors import (
    DivergedError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    StorageError,
)
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.unreadable import check_history, damage_error, in_lake_error


def start_offset(stream: StreamMetadata, log: CommitLog) -> int:
    """Where the stream begins for readers."""
    lake, start = stream.lake, log.log_start_offset
    return min(lake.start, start) if lake.holds_records else start


def is_in_lake(stream: StreamMetadata, log: CommitLog, offset: int) -> bool:
    """Whether readers find the record in the lake, because it is not in this log any more."""
    return stream.lake.start <= offset < min(stream.lake.end, log.log_start_offset)


def is_served_from_lake(
    stream: StreamMetadata, log: CommitLog, high_watermark: int, offset: int
) -> bool:
    """The same; or because this log has not got the record yet, or does not know yet that it is
    committed."""
    is_ahead = high_watermark <= offset < stream.lake.end and offset >= stream.lake.start
    return is_ahead or is_in_lake(stream, log, offset)


def is_epoch_in_lake(stream: StreamMetadata, log: CommitLog, offset: int, last_epoch: int) -> bool:
    """Whether only the lake's objects tell of which leader epoch the record before `offset` is.
    last_epoch: as the reader saw it; -1: it does not ask."""
    lake = stream.lake
    is_outside = offset == log.log_start_offset and lake.start < offset < lake.end
    return last_epoch >= 0 and is_outside and log.epochs.epoch_at(offset - 1) < 0


def check_in_log(stream: StreamMetadata, log: CommitLog, node_id: int, offset: int) -> None:
    """Raise InLakeError for a record below the log that is in the lake, and RecordsDamagedError for
    one between the two: both have lost it."""
    lake, start = stream.lake, log.log_start_offset
    if is_in_lake(stream, log, offset):
        raise in_lake_error(stream, offset)
    if lake.holds_records and lake.end <= offset < start:
        raise damage_error(stream, node_id, RecordsDamagedError("", lake.end, start))


def held_text(start: int, high_watermark: int) -> str:
    """What a stream holds, as the end of a sentence."""
    if start >= high_watermark:
        return f"is empty, and the next offset is {high_watermark}"
    return f"holds offsets {start} to {high_watermark - 1}"


def out_of_range_error(
    stream: StreamMetadata, log: CommitLog, offset: int, high_watermark: int
) -> OffsetOutOfRangeError:
    """The error for an offset that the stream does not hold."""
    start = start_offset(stream, log)
    return OffsetOutOfRangeError(
        f"offset {offset} is not in stream {stream.name!r}: it {held_text(start, high_watermark)}",
        start,
        high_watermark,
    )


def check_before(
    stream: StreamMetadata,
    log: CommitLog,
    high_watermark: int,
    offset: int,
    last_epoch: int,
    *,
    is_leader: bool,
) -> None:
    """`check_history`, also for the record before a log that begins in the lake or at its end: that
    one is final. What only the lake's objects tell (`is_epoch_in_lake`) is checked by who reads
    them."""
    lake = stream.lake
    if offset > min(log.log_start_offset, lake.end) or log.epochs.epoch_at(offset - 1) >= 0:
        check_history(stream, log, high_watermark, offset, last_epoch, is_leader=is_leader)
    elif lake.holds_records and offset == lake.end:
        check_epoch(stream, offset, last_epoch, lake.last_epoch)


def check_epoch(stream: StreamMetadata, offset: int, last_epoch: int, epoch: int) -> None:
    """Raise DivergedError unless the record before `offset`, which is of leader epoch `epoch`, is
    the one that a reader saw. last_epoch: as that saw it; -1: it saw none."""
    if last_epoch not in (-1, epoch):
        raise DivergedError(
            f"the record before offset {offset} of stream {stream.name!r} is of leader epoch "
            f"{epoch}, not {last_epoch}: the log was truncated or re-created",
            epoch,
            offset,
        )


def begin_after_lake(stream: StreamMetadata, log: CommitLog) -> bool:
    """**safety** Below its end the lake decides, for it holds committed records only. A log that
    ends earlier would give their offsets again, and one that has another epoch there holds other
    records: before such a log is led by, it begins anew at that end. Returns whether it did."""
    lake = stream.lake
    if not lake.version or log.offline_reason or log.log_start_offset >= lake.end:
        return False
    if log.log_end_offset >= lake.end:
        epoch = log.epochs.epoch_at(lake.end - 1)
        # Of a purge beyond what was copied only the least epoch is known.
        if epoch == lake.last_epoch or (not lake.holds_records and epoch > lake.last_epoch):
            return False
    try:
        log.reset(lake.end)
    except StorageError as error:
        log.health.fail(error.message)
    return True
