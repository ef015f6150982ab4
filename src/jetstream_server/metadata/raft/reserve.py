"""The file `reserve` beside a metadata journal: room for what must be written on a full disk.

Other programs, and the copies of streams, can fill a disk to the last byte. What an operator does
then, deleting streams for example, is a change of the metadata, and a member that cannot write its
journal ends. So the file takes room while there is some, and gives it back piece by piece to a
write that finds none. Its content means nothing, it may be missing, and it is never synced for its
own sake.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from jetstream_server.disk_errors import is_full
from jetstream_server.metadata.raft.kept_descriptors import opened

T = TypeVar("T")

NAME = "reserve"
PIECE_BYTES = 64 << 10
"""Is given back at least, besides what is asked for: whoever else writes takes some of it."""
BASE_BYTES = 1 << 20
"""For some thousand changes. On top of it comes room for the next snapshot and journal."""
START_BYTES = 256 << 10
"""More than a start writes: the record of runs, `synced`, and the files of an embedded NATS server.
"""


def in_room(folder: str, length: int, write: Callable[[], T]) -> T:
    """Call `write`, which may be repeated if it finds no room. folder: of the journal. length:
    bytes. Raises the OSError of `write`."""
    while True:
        try:
            return write()
        except OSError as error:
            if not is_full(error) or not make_room(folder, length):
                raise


def make_room(folder: str, length: int) -> bool:
    """Give back room for so many bytes. Returns False if nothing is left to be given."""
    try:
        path = os.path.join(folder, NAME)
        descriptor = opened(lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError:
        return False
    try:
        held = os.fstat(descriptor).st_size
        if held:
            os.ftruncate(descriptor, max(held - length - PIECE_BYTES, 0))
            os.fsync(descriptor)  # Some file systems give blocks back when that is on disk.
        return bool(held)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def make_room_to_start(folder: str) -> None:
    """Give back what a start needs, unless there is room: not every file of a start can ask."""
    with suppress(OSError):
        if shutil.disk_usage(folder).free < START_BYTES:
            make_room(folder, START_BYTES)


def keep_room(folder: str, bytes_max: int) -> None:
    """Take room again, as far as the disk has some, at most `bytes_max`. Blocks. Where it cannot be
    taken, for example on a file system that knows no such thing, there is none."""
    path = os.path.join(folder, NAME)
    with suppress(OSError):
        wanted = min(bytes_max, BASE_BYTES + 2 * _written_bytes(folder))
        if wanted == 0 and not os.path.exists(path):
            return
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(descriptor)
            held = min(found.st_size, 512 * found.st_blocks)
            free = shutil.disk_usage(folder).free
            if found.st_size > 2 * wanted:
                os.ftruncate(descriptor, wanted)
            elif held < wanted and free - (wanted - held) >= BASE_BYTES:
                os.posix_fallocate(descriptor, 0, wanted)
        finally:
            os.close(descriptor)


def _written_bytes(folder: str) -> int:
    """How long the journal and the snapshot are, both of which a snapshot writes anew."""
    written = 0
    for name in ("journal", "snapshot"):
        with suppress(FileNotFoundError):
            written += os.stat(os.path.join(folder, name)).st_size
    return written
