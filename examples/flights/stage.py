"""What the demonstration shows on the terminal; plain lines where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.flights import replay
from examples.flights.server import DevServer

BAR_COLUMNS = 40
NEXT = (
    ("scripts/demo --keep", "the same, and the server stays to be asked"),
    ("scripts/cluster demo", "three servers, a leader killed under load"),
    (".venv/bin/jetstream-server --dev", "a server of your own, with NATS"),
)


class Stage:
    """One line per step that is done, and something moving while one is under way."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def done(self, step: str, detail: str) -> None:
        self._console.print(f"[green]✓[/] [bold]{escape(step)}[/]  {escape(detail)}")

    def failed(self, message: str) -> None:
        self._console.print(f"[red]✗[/] {escape(message)}")

    def working(self, step: str) -> AbstractContextManager[object]:
        return self._console.status(escape(step))

    @contextmanager
    def progress(self, step: str, total: int) -> Iterator[replay.Progress]:
        """A bar that fills as the yielded function is told of progress."""
        bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        with bar:
            task = bar.add_task(step, total=total, rate="")
            done = 0

            def advance(count: int) -> None:
                nonlocal done
                done += count
                # A bar redrawn for each message would cost more than the message.
                if done % 1000 < count:
                    seconds = bar.tasks[task].elapsed or 0
                    rate = f"{done / seconds:,.0f}/s" if seconds else ""
                    bar.update(task, completed=done, rate=rate)

            yield advance
            bar.update(task, completed=done)

    def carriers(self, published: Counter[str], stored: Counter[str]) -> None:
        """Flights per carrier, in the source and in the log."""
        table = Table(box=None, padding=(0, 2), header_style="bold")
        for column in ("carrier", "in the CSV", "in the log", ""):
            table.add_column(column, justify="right" if "in" in column else "left")
        for carrier, count in published.most_common():
            mark = "[green]✓[/]" if stored[carrier] == count else "[red]✗[/]"
            table.add_row(carrier, f"{count:,}", f"{stored[carrier]:,}", mark)
        self._console.print(table)

    def answer(self, query: str, rows: Sequence[tuple[int, float]], seconds: float) -> None:
        """Minutes by hour, as bars."""
        self._console.print(f"\n[dim]{escape(query.strip())}[/]\n")
        longest = max(minutes for _, minutes in rows)
        for hour, minutes in rows:
            bar = "█" * max(1, round(BAR_COLUMNS * max(0.0, minutes) / longest))
            self._console.print(f"  {hour:2}:00  [cyan]{bar}[/] {minutes:.1f} min")
        self.done("asked in SQL", f"DuckDB over the stream, {seconds:.1f} s")

    def what_next(self) -> None:
        """Commands to paste, none of which needs anything but this folder."""
        self._console.print("\nGo on with one of these:\n")
        for command, what in NEXT:
            self._console.print(f"  [bold]{command:<32}[/]  # {what}")

    def farewell(self, server: DevServer, folder: str) -> None:
        """What to do with a server that was left running."""
        lines = [
            f"The server is still running (process {server.pid}). To go on, in this shell:",
            "",
            "  . .venv/bin/activate",
            f"  export JETSTREAM_SERVERS={server.grpc}",
            "  jetstream stream describe flights",
            "  jetstream fetch flights --offset 1000 --max 3",
            "  jetstream sql 'select subject, count(*) from flights group by 1'",
            "  jetstream lake url flights",
            "  jetstream fetch flights --offset latest --follow",
            "  jetstream publish flights.JFK.XX '{\"flight\":1}'",
            "",
            f"NATS is at {server.nats}, for any NATS client.",
            f"Stop it:  kill {server.pid}      Its data:  {folder}",
        ]
        self._console.print(Panel(escape("\n".join(lines)), title="What next", expand=False))
