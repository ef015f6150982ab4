"""Keeps cold reads off the event loop: a page that is not cached costs milliseconds of disk.

`os.sendfile` blocks for such a page. So before sending, a few reads with RWF_NOWAIT test whether
the range is in the page cache. If it is not, a worker thread reads it first.
"""

from __future__ import annotations

import asyncio
import errno
import os

# The kernel reads ahead at least this much, so one probe covers its neighbourhood.
PROBE_BYTES = 128 * 1024
_CHUNK_BYTES = 1024 * 1024


def is_resident(fd: int, position: int, length: int) -> bool:
    """Whether the range can be read without waiting for the disk, as far as probes show."""
    probe = [bytearray(1)]
    last = position + length - 1
    for at in (*range(position, last, PROBE_BYTES), last):
        try:
            os.preadv(fd, probe, at, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            # Without NOWAIT nothing can be tested. If the disk fails, the actual read reports
            # it.
            return error.errno != errno.EIO
    return True


async def make_resident(fd: int, position: int, length: int) -> None:
    """Read the range into the page cache; in a thread if it is not there yet."""
    if not is_resident(fd, position, length):
        await asyncio.get_running_loop().run_in_executor(None, _touch, fd, position, length)


def _touch(fd: int, position: int, length: int) -> None:
    os.posix_fadvise(fd, position, length, os.POSIX_FADV_WILLNEED)
    end = position + length
    while position < end:
        position += len(os.pread(fd, min(_CHUNK_BYTES, end - position), position)) or end
