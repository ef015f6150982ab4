"""Writes files atomically, and identifies them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Sequence

from jetstream_server.metadata.raft.kept_descriptors import opened
from jetstream_server.metadata.raft.reserve import in_room

_GET_GENERATION = 0x80087601
"""Linux's FS_IOC_GETVERSION: the generation of an inode. It changes when the inode is used again.
"""


def is_there(path: str) -> bool:
    """Whether there is such a file. Raises OSError if that cannot be found out: **safety** a file
    that was not found for that reason would be written anew."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


def read_file(path: str) -> bytes:
    with opened(lambda: open(path, "rb")) as file:
        return file.read()


def replace_file(path: str, parts: Sequence[bytes | bytearray]) -> None:
    """Replace a file atomically: temporary file, fsync, rename, fsync of the directory. On a full
    disk it takes from the reserve (reserve.py)."""
    temporary, folder = path + ".tmp", os.path.dirname(path)
    in_room(folder, sum(map(len, parts)), lambda: _write_new(temporary, parts))
    os.replace(temporary, path)
    sync_path(folder)


def _write_new(path: str, parts: Sequence[bytes | bytearray]) -> None:
    """Write a file, durably. After a failure there is none: on a full disk it would waste room."""
    with opened(lambda: open(path, "wb")) as file:
        try:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise


def sync_path(path: str) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = opened(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def identity_of(path: str) -> int:
    """A number that identifies this file on its file system, and no copy of it: 64 bits, never 0.

    Made of the inode, and of its generation if the file system (ext4, xfs, btrfs) has one. On other
    file systems a copy may by chance get the inode of the file that it replaces.
    """
    descriptor = opened(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        generation = 0
        with contextlib.suppress(OSError):
            (generation,) = struct.unpack("<q", fcntl.ioctl(descriptor, _GET_GENERATION, bytes(8)))
        return (os.fstat(descriptor).st_ino ^ generation << 32) % 2**64 or 1
    finally:
        os.close(descriptor)
