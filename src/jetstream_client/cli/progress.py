"""Progress bars of commands that take long."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int], None]
"""Called with what was done since the last call."""


@contextmanager
def progress_bar(total: int | None, what: str = "") -> Iterator[Advance]:
    """A bar on standard error, if a person watches it. total: None is unknown. what:
    is being done."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    named = (TextColumn("{task.description}"),) if what else ()
    with Progress(*named, *columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)
