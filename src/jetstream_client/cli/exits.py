"""Exit codes of the command, and its errors: one line (of a query, as many as it takes), no
tracebacks.

0    done
1    the request failed
2    wrong usage
3    there is no such stream
4    not possible at the moment, or no answer in time: trying again may help
5    the outcome is unknown: it may or may not have been done
6    `log verify` or `log dump` found something wrong with the files
7    `cluster health` found something wrong with the cluster
130  interrupted by Ctrl-C, or a question was answered with no
141  the reader of the output stopped reading
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from contextlib import suppress
from enum import IntEnum
from typing import TYPE_CHECKING, Any, TextIO

import typer

from jetstream_client.cli.output import printable
from jetstream_protocol.errors import (
    InvalidRequestError,
    JetstreamError,
    NotFoundError,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

# typer carries its own copy of click, and older ones use click itself: these are either's.
UsageError: Any
ClickError: Any
UsageError, ClickError = typer.BadParameter.__mro__[1:3]


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    UNKNOWN = 5
    DAMAGED = 6
    UNHEALTHY = 7
    INTERRUPTED = 130
    BROKEN_PIPE = 141


def exit_of(error: JetstreamError) -> Exit:
    if isinstance(error, InvalidRequestError):
        return Exit.USAGE
    if isinstance(error, NotFoundError):
        return Exit.NOT_FOUND
    if error.retriable:
        return Exit.UNAVAILABLE
    if isinstance(error, UnknownOutcomeError):
        return Exit.UNKNOWN
    return Exit.FAILED


def complain(message: str, *, keep_lines: bool = False) -> None:
    """Print one line on stderr, whatever characters the message has; or its lines. Names in it may
    be somebody else's."""
    lines = (
        [_untabbed(line) for line in message.split("\n") if line.strip()]
        if keep_lines
        else [" ".join(message.split())]
    )
    text = "\n".join(map(printable, lines))
    print(f"error: {text}", file=sys.stderr)


def _untabbed(line: str) -> str:
    """A tab at the start indents. Another one is a blank, as DuckDB counts where it points below
    a line."""
    text = line.lstrip("\t")
    return "    " * (len(line) - len(text)) + text.replace("\t", " ")


def prepare_output() -> None:
    """Characters that the output's encoding lacks are written as escapes, because text may be in
    any language. Output that was closed before the start (`>&-`) is dropped. Complaints that cannot
    be written are dropped, too: the exit code says how the command ended."""
    sys.stdout = sys.stdout or _nowhere()
    if sys.stderr is None:
        sys.stderr = _nowhere()
    elif isinstance(sys.stderr, io.TextIOWrapper):
        complaints = io.BufferedWriter(_Unfailing(sys.stderr.fileno(), "w", closefd=False))
        encoding = sys.stderr.encoding
        sys.stderr = io.TextIOWrapper(complaints, encoding=encoding, line_buffering=True)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class _Unfailing(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        with suppress(OSError):
            return super().write(data)
        return len(memoryview(data))


def end_with_the_reader() -> None:
    """If the reader of a pipe leaves, the command ends at once, even while it has nothing to write:
    `jetstream fetch orders --follow | head -1`. For commands that only read."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # Not a file: there is no reader that could leave.
    threading.Thread(target=_wait_for_the_end_of, args=(output,), daemon=True).start()


def _wait_for_the_end_of(pipe: int) -> None:
    poll = select.poll()
    poll.register(pipe, 0)  # Errors are always shown.
    if any(event & select.POLLERR for _, event in poll.poll()):
        os._exit(Exit.BROKEN_PIPE)


def _nowhere() -> TextIO:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")


def forget_stdout() -> None:
    """Its reader is gone: keep the interpreter from complaining when it flushes at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
