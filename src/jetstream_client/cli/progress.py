"""What a person sees while a command takes long: a bar, and for streams that move
━━━━━━━━━━━━━━━━╺━━━━━━━━ 3/8 streams, 1,204,331 records to copy 0:01:12
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

from jetstream_protocol.errors import JetstreamError

if TYPE_CHECKING:
    from jetstream_client.clients.blocking_client import Client
    from jetstream_client.values.types import Stream, StreamDescription

Advance: TypeAlias = Callable[[int], None]
"""Called with what was done since the last call."""
Look: TypeAlias = "Callable[[int, Iterable[Stream]], None]"
"""Called with how many streams have moved, and which are on their way."""

LOOK_SECONDS = 1.0
DESCRIBED_MAX = 16
"""So many streams are asked about at each look."""


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


@contextmanager
def copy_progress(client: Client, total: int) -> Iterator[Look]:
    """A bar on standard error, if a person watches it. total: how many streams are to move."""
    if not sys.stderr.isatty():
        yield lambda done, under_way: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    seen = CopyWatch(client)
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"0/{total} streams", total=total)
        looked_at = -LOOK_SECONDS
        note, part = "", 0.0

        def look(done: int, under_way: Iterable[Stream]) -> None:
            nonlocal looked_at, note, part
            if time.monotonic() - looked_at >= LOOK_SECONDS:
                part, behind = seen.look(under_way)
                note = f", {behind:,} records to copy" if behind else ""
                looked_at = time.monotonic()
            completed = min(done + part, total)
            progress.update(task, completed=completed, description=f"{done}/{total} streams{note}")

        yield look


class CopyWatch:
    """Asks the leaders of streams how far their new replicas are."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._most: dict[int, int] = {}  # by stream id: how many records there were to copy

    def look(self, under_way: Iterable[Stream]) -> tuple[float, int]:
        """How much of these streams is copied, each counted as 1, and how many records are
        missing."""
        copied, missing = 0.0, 0
        for stream in list(under_way)[:DESCRIBED_MAX]:
            try:
                behind = to_copy(self._client.describe_stream(stream))
            except JetstreamError:
                continue  # The move itself says what is wrong.
            most = self._most[stream.id] = max(behind, self._most.get(stream.id, 0))
            missing += behind
            copied += 1 - behind / most if most else 0.0
        return copied, missing


def to_copy(stream: StreamDescription) -> int:
    """How many records the stream's new replicas lack, all together; 0: none, or unknown."""
    if stream.log_end_offset is None or stream.log_start_offset is None:
        return 0
    joining = {*stream.target_replicas} - {*stream.isr}
    return sum(
        max(stream.log_end_offset - max(each.offset, stream.log_start_offset), 0)
        for each in stream.progress
        if each.node in joining
    )
