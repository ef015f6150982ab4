"""Handles the logs that a start finds: sound, damaged, missing and unflushed ones."""

from __future__ import annotations

import errno
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor

import structlog

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.config import LogConfig
from jetstream_server.log.disk import Disk
from jetstream_server.log.recovery import Recovered
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.core.restart_trust import RunRecord

FLUSHING_AT_A_TIME = 32

logger = structlog.get_logger("jetstream.replicas")


def open_log(
    disk: Disk,
    stream: StreamMetadata,
    directory: str,
    config: LogConfig,
    record: RunRecord,
    *,
    clean: bool,
    is_only_replica: bool,
    unsettled: StorageError | None = None,
) -> tuple[CommitLog, str]:
    """Open a stream's log. Returns it, and why nothing of it could be read ("" if it could). A
    problem takes the log offline; this never raises. unsettled: why it must not be opened, see
    DataFolder."""
    unreadable_reason = ""
    try:
        if unsettled is not None:
            raise unsettled
        if stream.id in record.suspects:
            _forget_checkpoint(disk, directory)
        log = _lost_log(disk, stream, directory, config, record) or CommitLog.open(
            disk, directory, config, clean=clean, boot_id=record.boot_id,
            duplicate_window_us=stream.config.duplicate_window_us,
        )  # fmt: skip
    except StorageError as error:
        unreadable_reason = error.message
        # Not as recovered damage, which counts in an election: the content is not known.
        found = Recovered(recorded=Recorded(boot_id=record.boot_id))
        log = CommitLog(disk, directory, config, found)
        if _is_refused(error) and not is_only_replica:
            log.health.unread(unreadable_reason)
        else:
            log.health.end(unreadable_reason)
    latest_epoch = log.epochs.latest_epoch
    is_newer = latest_epoch > stream.leader_epoch and is_only_replica
    if is_newer and not log.offline_reason:
        log.health.end(
            f"{directory} knows leader epoch {latest_epoch} and the metadata only "
            f"{stream.leader_epoch}: one of them is older"
        )
    _log_what_was_found(stream, log)
    return log, unreadable_reason


def _is_refused(error: StorageError) -> bool:
    """Whether the device is the cause. Want of descriptors or memory says nothing of the log."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EIO


def _lost_log(
    disk: Disk, stream: StreamMetadata, directory: str, config: LogConfig, record: RunRecord
) -> CommitLog | None:
    """The lost log of a stream that was on this node when the folder of all streams was lost; None
    if it was not, or if it has been begun anew since. Raises StorageError."""
    try:
        if stream.id > record.lost_through or disk.exists(directory):
            return None
    except OSError as error:
        raise storage_error(error, f"opening the log in {directory}") from error
    found = Recovered(
        exists=False,
        lacks_beginning=True,
        recorded=Recorded(boot_id=record.boot_id),
        offline_reason=f"{directory} was lost with the folder that held it",
    )
    return CommitLog(disk, directory, config, found)


def _log_what_was_found(stream: StreamMetadata, log: CommitLog) -> None:
    """Log what is wrong with an opened log: operators must learn of a disk that loses data."""
    if log.offline_reason:
        logger.error("log_damaged", stream=stream.full_name, reason=log.offline_reason)
    if log.incomplete_reason:
        logger.error("log_cut", stream=stream.full_name, reason=log.incomplete_reason)
    for file, reason, instead in log.damaged_files:
        logger.warning(
            "state_file_damaged",
            stream=stream.full_name,
            file=file,
            reason=reason,
            instead=instead,
        )


def _forget_checkpoint(disk: Disk, directory: str) -> None:
    """Remove the checkpoint so that the whole log is scanned: after a failed fsync, readable bytes
    may not be on disk. Raises StorageError."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    try:
        if disk.exists(path):
            disk.remove(path)
    except OSError as error:
        raise storage_error(error, f"removing the checkpoint of {directory}") from error


def flush_what_earlier_runs_left(logs: Iterable[CommitLog], threads: Executor | None) -> None:
    """Flush the records that a killed process has left in the page cache. They may have been
    acknowledged long ago, and must not wait for the next record of their stream. If a flush fails,
    its log has failed before anything relies on it.

    threads: the threads for it; by default FLUSHING_AT_A_TIME of its own.
    """
    left = [log for log in logs if is_unflushed(log)]
    with threads or ThreadPoolExecutor(FLUSHING_AT_A_TIME, "jetstream-opening") as threads:
        list(threads.map(_flush, left))


def is_unflushed(log: CommitLog) -> bool:
    """Whether an opened log has records that a flush would put on disk."""
    return not log.offline_reason and log.flushed_offset < log.log_end_offset


def _flush(log: CommitLog) -> None:
    """Flush one log. Runs in a thread."""
    try:
        log.flush()
    except StorageError:
        # The log is offline and has reported why (`Health.on_failure`). Or it lacks descriptors:
        # then it is flushed with its first role, and under `group` nothing counts before.
        pass
