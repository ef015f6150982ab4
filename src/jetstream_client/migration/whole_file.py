"""Files that commands write where their user says: all of the file or nothing of it.

A file gets its name once it is complete. What has that name already stays what it is: a symbolic
link points where it did, an existing file keeps its mode, and a pipe or a device is written to.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_LINKS_MAX = 40  # As Linux.


@contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """The file to write to. If the block ends with an error, a file that was there stays as it was.
    private: only its owner can read a new one. Raises OSError."""
    if not is_file_or_free(path):
        with path.open("ab") as file:  # As `>>` of a shell: standard output may have more in it.
            yield file
        return
    target = Path(os.path.realpath(path))
    # Its own name: another command that writes there must not write into this one's.
    partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}.partial")
    try:
        mode = 0o600 if private else 0o666  # Less what the user's umask takes.
        with open(partial, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            _take_over(target, file.fileno())
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
        sync_folder(target.parent)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(partial):
            error.filename = str(path)  # The name that the user knows.
        raise


def is_file_or_free(path: Path) -> bool:
    """Whether a file is there, or nothing; and not something that a process has open, such as
    /dev/stdout, even if that is a file."""
    at = Path(os.path.abspath(path))
    for _ in range(_LINKS_MAX):
        if at.is_relative_to("/proc") or at.is_relative_to("/dev/fd"):
            return False
        if not at.is_symlink():
            break
        at = Path(os.path.abspath(at.parent / at.readlink()))
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except FileNotFoundError:
        return True


def _take_over(target: Path, descriptor: int) -> None:
    """The mode of the file that is there, and its owner if that is allowed."""
    try:
        status = target.stat()
    except FileNotFoundError:
        return
    with suppress(PermissionError):
        os.fchown(descriptor, status.st_uid, status.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


def sync_folder(folder: Path) -> None:
    """The names in it survive a power failure."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
