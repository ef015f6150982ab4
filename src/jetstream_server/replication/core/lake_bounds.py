"""What of a stream is in the lake, and what in this node's log: pure, but for a log that must begin
anew.

Two starts, and never one: readers begin at `start_offset`, in the lake; followers at the log's own
start, for they copy only the local part.
"""

from __future__ import annotations

from jetstream_protocol.errors import OffsetOutOfRangeError, RecordsDamagedError, StorageError
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.unreadable import damage_error, in_lake_error


def start_offset(stream: StreamMetadata, log: CommitLog) -> int:
    """Where the stream begins for readers."""
    lake, start = stream.lake, log.log_start_offset
    return min(lake.start, start) if lake.holds_records else start


def is_in_lake(stream: StreamMetadata, log: CommitLog, offset: int) -> bool:
    """Whether readers find the record in the lake, because it is not in this log any more."""
    lake = stream.lake
    return lake.start <= offset < min(lake.end, log.log_start_offset)


def check_in_log(stream: StreamMetadata, log: CommitLog, node_id: int, offset: int) -> None:
    """Raise InLakeError for a record below the log that is in the lake, and RecordsDamagedError for
    one between the two: both have lost it."""
    lake, start = stream.lake, log.log_start_offset
    if is_in_lake(stream, log, offset):
        raise in_lake_error(stream, offset)
    if lake.holds_records and lake.end <= offset < start:
        raise damage_error(stream, node_id, RecordsDamagedError("", lake.end, start))


def out_of_range_error(
    stream: StreamMetadata, log: CommitLog, offset: int, high_watermark: int
) -> OffsetOutOfRangeError:
    """The error for an offset that the stream does not hold."""
    start = start_offset(stream, log)
    return OffsetOutOfRangeError(
        f"offset {offset} is not in stream {stream.name!r}: it holds [{start}, {high_watermark})",
        start,
        high_watermark,
    )


def is_known_before(stream: StreamMetadata, log: CommitLog, offset: int) -> bool:
    """Whether the log can say of which epoch the record before `offset` is. Before a log that
    begins in the lake it cannot, and the record there is final."""
    return offset > log.log_start_offset or offset > stream.lake.end


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
