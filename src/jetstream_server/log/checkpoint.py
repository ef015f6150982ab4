"""Reading and writing state files: atomically, and never trusting what is there.

The format is jetstream_protocol.logfiles.checkpoint_file's. Other parts of a replica keep their
own small state the same way, under another kind and owner (the high watermarks, for one).
"""

from __future__ import annotations

from typing import Any

from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME
from jetstream_server.log.disk import Disk, storage_error


def owner_of(directory: str) -> str:
    """Whose checkpoint a stream folder holds: the folder's own name, the stream id."""
    return directory.rstrip("/").rpartition("/")[2]


def read_log_checkpoint(disk: Disk, directory: str) -> LogCheckpoint | None:
    """None when there is none that can be believed; then all of the log is to be scanned."""
    path = f"{directory}/{CHECKPOINT_NAME}"
    try:
        data = disk.read_file(path)
    except FileNotFoundError:
        return None
    try:
        return LogCheckpoint.from_bytes(data, owner_of(directory))
    except CorruptBatchError:
        return None  # The log itself says the same, only slower; `log verify` reports the file.


def write_log_checkpoint(disk: Disk, directory: str, checkpoint: LogCheckpoint) -> None:
    """Durable on return. Raises OSError: the log decides what that means for it."""
    disk.write_atomic(f"{directory}/{CHECKPOINT_NAME}", checkpoint.to_bytes(owner_of(directory)))


def read_state(disk: Disk, path: str, kind: str, owner: str) -> dict[str, Any] | None:
    """The state saved by `write_state`; None when absent, damaged, or another owner's."""
    try:
        return checkpoint_file.decode(disk.read_file(path), kind, owner)
    except (FileNotFoundError, CorruptBatchError):
        return None
    except OSError as error:
        raise storage_error(error, f"reading {path}") from error


def write_state(disk: Disk, path: str, kind: str, owner: str, state: dict[str, Any]) -> None:
    """Replace the file atomically and durably. Raises StorageError, StorageFullError."""
    try:
        disk.write_atomic(path, checkpoint_file.encode(kind, owner, state))
    except OSError as error:
        raise storage_error(error, f"writing {path}") from error
