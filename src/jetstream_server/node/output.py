"""Output for people: log lines, banners, complaints. It never fails, and never waits for long.

A reader that has left, a full disk, and a reader that stands still are no reasons to refuse work or
to stop. What cannot be written is lost, and counted. This is the one place that decides so: below
it, everything writes to `sys.stderr` and `sys.stdout` as usual.
"""

from __future__ import annotations

import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

WAIT_MS: Final = 100
"""How long a reader that does not keep up is waited for, once; until it reads again it is not."""

PIECE_BYTES: Final = 4096
"""A pipe or socket that is ready takes so much without waiting (PIPE_BUF)."""


class LostLines:
    """How many lines of this process could not be written."""

    def __init__(self) -> None:
        self.count = 0


LOST = LostLines()
"""One for the process, as its outputs are."""


def protect_complaints() -> None:
    """Standard error never fails from now on. Standard descriptors that are closed are opened: a
    file of the server must not get such a number, and be written to by whoever complains."""
    for number in range(3):
        with suppress(OSError):
            os.fstat(number)
            continue
        opened = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
        assert opened == number, "the lowest free number"
    sys.stderr = _protected(sys.stderr, 2)


def protect_announcements() -> None:
    """Standard output never fails from now on: what is printed there is for people, too."""
    sys.stdout = _protected(sys.stdout, 1)


def _protected(stream: TextIO | None, number: int) -> TextIO:
    if stream is not None:
        with suppress(OSError, ValueError):  # ValueError: it is closed.
            stream.flush()
        with suppress(OSError, ValueError):
            number = stream.fileno()
    return io.TextIOWrapper(
        io.BufferedWriter(UnfailingOutput(number)),
        encoding="utf-8",
        errors="backslashreplace",
        line_buffering=True,
    )


class UnfailingOutput(io.FileIO):
    """An open descriptor for text. `write` always takes everything."""

    def __init__(self, descriptor: int, lost: LostLines = LOST) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = lost
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._is_stuck = False
        self._is_cut = False  # in the middle of a line

    def write(self, data: ReadableBuffer, /) -> int:
        text = bytes(data)
        rest = b"\n" + text if self._is_cut else text
        try:
            while rest:
                if not self._is_ready():
                    break
                rest = rest[super().write(rest[:PIECE_BYTES]) or 0 :]
        except OSError:
            pass  # The reader has left, or the disk is full.
        if rest:
            self._lost.count += min(rest.count(b"\n"), text.count(b"\n"))
            self._is_cut = self._is_cut or len(rest) < len(text)
        else:
            self._is_cut = False
        return len(text)

    def _is_ready(self) -> bool:
        if self._poll.poll(0 if self._is_stuck else WAIT_MS):
            self._is_stuck = False
        else:
            self._is_stuck = True
        return not self._is_stuck
