"""What a start makes of the logs it finds: one that is not there, and what is in memory only."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.config import LogConfig
from jetstream_server.log.disk import Disk, storage_error
from jetstream_server.log.recovery import Recovered
from jetstream_server.metadata.streams import StreamMetadata
from jetstream_server.replication.trust import RunRecord

FLUSHING_AT_A_TIME = 32


def lost_log(
    disk: Disk, stream: StreamMetadata, directory: str, config: LogConfig, record: RunRecord
) -> CommitLog | None:
    """The log of a stream that was here when the folder of all streams was lost; None: it was not,
    or has been begun anew since."""
    if stream.id > record.lost_through or disk.exists(directory):
        return None
    found = Recovered(
        exists=False,
        lacks_front=True,
        recorded=Recorded(boot_id=record.boot_id),
        offline_reason=f"{directory} was lost with the folder that held it",
    )
    return CommitLog(disk, directory, config, found)


def forget_checkpoint(disk: Disk, directory: str) -> None:
    """What an fsync that failed left readable may not be on disk: scan all of it. Raises
    StorageError."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    try:
        if disk.exists(path):
            disk.remove(path)
    except OSError as error:
        raise storage_error(error, f"removing the checkpoint of {directory}") from error


def flush_what_earlier_runs_left(logs: Iterable[CommitLog], threads: Executor | None) -> None:
    """A process that was killed left in memory what no fsync has covered. It may have been
    acknowledged long ago: it is not to wait for the next record of its stream. A log that this
    fails has failed, before anybody is told that it is whole.

    threads: in which that is done, FLUSHING_AT_A_TIME of its own by default.
    """
    left = [log for log in logs if not log.offline_reason and _is_unflushed(log)]
    with threads or ThreadPoolExecutor(FLUSHING_AT_A_TIME, "jetstream-opening") as threads:
        list(threads.map(_flush, left))


def _is_unflushed(log: CommitLog) -> bool:
    return log.flushed_offset < log.log_end_offset


def _flush(log: CommitLog) -> None:
    """Runs in a thread."""
    try:
        log.flush()
    except StorageError:
        pass  # The log is offline, and has said why (`Health.on_failure`).
