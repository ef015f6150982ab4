"""What the failover looks like on a terminal; plain lines where there is none.

While messages are published a line moves: acknowledgements per tenth of a second as a bar each, so
that a failover is a hole in it.
"""

from __future__ import annotations

import time
from collections import Counter
from math import ceil
from statistics import median
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from examples.cluster.publisher import Books, Verdict

BIN_SECONDS = 0.1
BARS = " ▁▂▃▄▅▆▇█"


class Scene:
    """Use it as a context manager: leaving it gives the terminal back."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._books: Books | None = None
        self._begun = 0.0
        self._ended = 0.0
        self._marks: list[tuple[float, str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.unwatch()

    def done(self, step: str, detail: str) -> None:
        self._console.print(f"[green]✓[/] [bold]{escape(step)}[/]  {escape(detail)}")

    def mark(self, step: str, detail: str) -> None:
        """Something that happens while messages are published: it shows in the timeline, too."""
        self._marks.append((time.monotonic(), step))
        self._console.print(f"[yellow]●[/] [bold]{escape(step)}[/]  {escape(detail)}")

    def failed(self, message: str) -> None:
        self._console.print(f"[red]✗[/] {escape(message)}")

    def watch(self, books: Books) -> None:
        """Show the acks as they come, until `unwatch`."""
        self._books = books
        self._begun = time.monotonic()
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._moving_line,
                console=self._console,
                refresh_per_second=10,
                transient=True,
            )
            self._live.start()

    def unwatch(self) -> None:
        """The timeline as a whole, where there was one."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._books is not None:
            self._ended = time.monotonic()
            self._console.print(self._timeline(self._books))
            self._books = None

    def _moving_line(self) -> Text:
        books = self._books
        if books is None:
            return Text("")
        bars = self._bars(books, time.monotonic())
        width = max(10, self._console.width - 30)
        return Text(f"  {len(books.acked):>9,} acknowledged {bars[-width:]}", style="cyan")

    def _bars(self, books: Books, end: float) -> str:
        count = int((end - self._begun) / BIN_SECONDS)
        bins = Counter(int((at - self._begun) / BIN_SECONDS) for at in books.acked_at)
        usual = median(bins.values()) if bins else 1
        full = len(BARS) - 1

        def bar(number: int) -> str:
            # Half a bar is the usual rate, and only where nothing was acknowledged there is none.
            return BARS[min(full, ceil(bins[number] / usual * full / 2))]

        return "".join(map(bar, range(count)))

    def _timeline(self, books: Books) -> Group:
        bars = self._bars(books, self._ended)
        below = [" "] * len(bars)
        legend = []
        for number, (at, step) in enumerate(self._marks, 1):
            place = int((at - self._begun) / BIN_SECONDS)
            if 0 <= place < len(below):
                below[place] = str(number)
            legend.append(f"{number} {step}")
        width = max(20, self._console.width - 2)
        rows = [Text(f"acknowledgements per {BIN_SECONDS:g} s", style="bold")]
        for first in range(0, len(bars), width):
            rows.append(Text(bars[first : first + width], style="cyan"))
            rows.append(Text("".join(below[first : first + width]), style="yellow"))
        rows.append(Text("   ".join(legend), style="dim"))
        return Group(*rows)

    def verdict(self, verdict: Verdict, stored: int) -> None:
        table = Table(box=None, padding=(0, 2), show_header=False)
        table.add_column(justify="right")
        table.add_column()
        rows = [
            (verdict.acked, "acknowledged"),
            (verdict.lost, "of them lost"),
            (verdict.doubled, "messages stored twice"),
            (verdict.refused_yet_stored, "refused and stored all the same"),
            (verdict.unknown, f"reported as unknown, {verdict.unknown_stored:,} of them stored"),
            (stored, "records in the log"),
        ]
        for count, what in rows:
            table.add_row(f"{count:,}", what)
        self._console.print(table)
        if verdict.is_good:
            self.done("nothing acknowledged was lost", "and nothing was stored twice")
        else:
            self.failed("the log is not what was acknowledged")
