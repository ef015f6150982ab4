"""Reads and writes state files: atomically, with a checksum.

A damaged file raises CorruptBatchError. Its reader then goes on without it and keeps a
`DamagedFile`, which the node logs: operators must learn of a disk that changes files. The same goes
for a file of a log that the device refuses to read (`is_refused`), but not for its offsets file.

jetstream_protocol.logfiles.checkpoint_file defines the format. Other parts of a replica keep their
own small state in the same way, under another kind and owner (for example the high watermarks).
"""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

from jetstream_protocol.logfiles import checkpoint_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME
from jetstream_server.disk_errors import change_error, storage_error
from jetstream_server.log.disk import Disk


class DamagedFile(NamedTuple):
    """A state file that cannot be trusted: why, and what the node does instead."""

    path: str
    reason: str
    instead: str


def is_refused(error: BaseException | None) -> bool:
    """Whether the device refuses to read a file (a bad sector). Any other error, such as a lack
    of descriptors, says nothing of the file."""
    return isinstance(error, OSError) and error.errno == errno.EIO


def owner_of(directory: str) -> str:
    """The owner of a stream folder's checkpoint: the folder's name, which is the stream id."""
    return directory.rstrip("/").rpartition("/")[2]


def read_log_checkpoint(disk: Disk, directory: str) -> LogCheckpoint | None:
    """Read the checkpoint; None when there is none: the whole log is scanned then. Raises
    CorruptBatchError, OSError."""
    try:
        data = disk.read_file(f"{directory}/{CHECKPOINT_NAME}")
    except FileNotFoundError:
        return None
    return LogCheckpoint.from_bytes(data, owner_of(directory))


def write_log_checkpoint(disk: Disk, directory: str, checkpoint: LogCheckpoint) -> None:
    """Write the checkpoint; durable on return. Raises OSError, which the log interprets."""
    disk.write_atomic(f"{directory}/{CHECKPOINT_NAME}", checkpoint.to_bytes(owner_of(directory)))


def read_state(disk: Disk, path: str, kind: str, owner: str) -> dict[str, Any] | None:
    """The state saved by `write_state`; None when there is no file. Raises CorruptBatchError when
    it is damaged or belongs to another owner, StorageError when it cannot be read."""
    try:
        return checkpoint_file.decode(disk.read_file(path), kind, owner)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, f"reading {path}") from error


def write_state(disk: Disk, path: str, kind: str, owner: str, state: dict[str, Any]) -> None:
    """Replace the file atomically and durably. Raises StorageError, StorageFullError."""
    try:
        disk.write_atomic(path, checkpoint_file.encode(kind, owner, state))
    except OSError as error:
        raise change_error(error, f"writing {path}") from error
