"""Descriptors that are kept for the files of the metadata.

A member that cannot write its files ends. Connections may take every descriptor of the process, so
some are kept, and given up one by one to a file that finds none. They are taken back when there are
some again.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

KEPT = 4
"""A file is written and its folder synced while the journal, its follower and `synced` are open."""

_kept: list[int] = []


def opened(open_file: Callable[[], T]) -> T:
    """What `open_file` returns, which is called again if it finds no descriptor."""
    while True:
        try:
            file = open_file()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not _kept:
                raise
            os.close(_kept.pop())
        else:
            _keep()
            return file


def _keep() -> None:
    """Take descriptors until there are enough of them, or no more to be had."""
    try:
        while len(_kept) < KEPT:
            _kept.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        pass
