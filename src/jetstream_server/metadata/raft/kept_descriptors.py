"""Descriptors that are kept for the files of the metadata.

A member that cannot write its files ends. Connections may take every descriptor of the process, so
some are kept, and given up one by one to a file that finds none. They are taken back when there are
some again.
"""

from __future__ import annotations

import errno
import os

KEPT = 4
"""A file is written and its folder synced while the journal, its follower and `synced` are open."""

_kept: list[int] = []


def open_file(path: str, flags: int, mode: int = 0o666) -> int:
    """Like `os.open`; also fit as `opener` of the built-in `open`."""
    while True:
        try:
            descriptor = os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _kept:
                raise
            os.close(_kept.pop())
        else:
            _keep()
            return descriptor


def _keep() -> None:
    """Take descriptors until there are enough of them, or no more to be had."""
    try:
        while len(_kept) < KEPT:
            _kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass
