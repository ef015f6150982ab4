"""`--watch`: shows the cluster again and again, until Ctrl-C."""

from __future__ import annotations

import io
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from typing import Annotated, TypeVar

import typer

from jetstream_client.cli.exits import complain, end_with_the_reader
from jetstream_protocol.errors import JetstreamError

EVERY_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

T = TypeVar("T")

Watch = Annotated[
    bool,
    typer.Option("--watch", "-w", help=f"Show it again every {EVERY_SECONDS:.0f} s, until Ctrl-C."),
]


class _Screen(io.StringIO):
    """What is drawn, before it is cut to the terminal."""

    def isatty(self) -> bool:
        return True


def _draw_on_screen(draw: Callable[[T], None], found: T) -> None:
    """As much as the terminal has lines for; the first line must not be pushed out."""
    screen = _Screen()
    with redirect_stdout(screen):
        draw(found)
    size = shutil.get_terminal_size()
    lines = screen.getvalue().splitlines()
    heights = [max(1, -(-len(_ESCAPES.sub("", line)) // size.columns)) for line in lines]
    shown, left = 0, size.lines - 1  # The cursor stands in a line of its own.
    if sum(heights) > left:
        left -= 1
    while shown < len(lines) and heights[shown] <= left:
        left -= heights[shown]
        shown += 1
    sys.stdout.writelines(line + "\n" for line in lines[:shown])
    if shown < len(lines):
        sys.stdout.write(f"and {len(lines) - shown} more lines\n")


def show(look: Callable[[], T], draw: Callable[[T], None], *, watch: bool, lines: bool) -> None:
    """Draw what `look` returns. watch: again and again; if no server answers, say so and try again.
    lines: each result is lines of its own (JSON). Otherwise a terminal shows each result in place
    of the one before, and a pipe gets an empty line between them.
    """
    if not watch:
        draw(look())
        return
    end_with_the_reader()
    on_terminal = sys.stdout.isatty()
    between = "" if lines else _CLEAR if on_terminal else "\n"
    first = True
    while True:
        try:
            found = look()
        except JetstreamError as error:
            if not error.retriable:
                raise
            sys.stdout.write(_CLEAR if on_terminal and not lines else "")
            sys.stdout.flush()
            complain(error.message)
        else:
            sys.stdout.write(between if on_terminal or not first else "")
            if on_terminal and not lines:
                _draw_on_screen(draw, found)
            else:
                draw(found)
            sys.stdout.flush()
        first = False
        time.sleep(EVERY_SECONDS)
