"""What the command prints: tables for people, JSON for programs.

On a terminal tables are rich's; piped, they are plain aligned columns. Control characters in text
of messages become escapes first, so that a record cannot control a terminal.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jetstream_protocol.record_json import record_row
from jetstream_protocol.times import timestamp_text

if TYPE_CHECKING:
    from jetstream_client.reading.messages import Message
    from jetstream_client.values.types import Stream


FOLDED_MIN = 24
"""What is not longer stays whole in a table: numbers, times, most names."""
LINE_MIN = 12
"""What is longer is folded into lines of so many characters at least."""
LINES_MAX = 3
"""A name that takes more lines has one of its own, and the other cells are below it."""


def emit_json(row: dict[str, Any]) -> None:
    """One object on one line."""
    sys.stdout.write(json_line(row))


def json_line(row: dict[str, Any]) -> str:
    from jetstream_protocol.descriptions import json_value

    return json.dumps(row, separators=(",", ":"), default=json_value) + "\n"


def stream_row(stream: Stream) -> dict[str, Any]:
    """Every field of a Stream or StreamDescription."""
    return dataclasses.asdict(stream)


def replicas_text(stream: Stream) -> str:
    """How many replicas are in sync, of how many; and the observers, if there are any."""
    replicas = f"{len(stream.isr)}/{len(stream.replicas)}"
    observers = [node for node in stream.observers if node not in stream.replicas]
    return f"{replicas}+{len(observers)}" if observers else replicas


def node_text(node: int) -> str:
    """The number of a leader or controller, or "none"."""
    return "-" if node < 0 else str(node)


def nodes_text(nodes: Sequence[int]) -> str:
    """Numbers of nodes where they could be taken for a count: "node 0", "nodes 0, 1, 2"."""
    if not nodes:
        return "-"
    return f"node{'s' if len(nodes) > 1 else ''} {', '.join(map(str, nodes))}"


def message_row(message: Message) -> dict[str, Any]:
    """A record as JSON."""
    return record_row(
        message.offset,
        message.timestamp_us,
        message.subject,
        message.key,
        message.value,
        message.header_block,
    )


def shown(data: bytes) -> str:
    """Bytes for people: text, with escapes for bytes that are not UTF-8."""
    return data.decode("utf-8", "backslashreplace")


def message_line(message: Message) -> str:
    """A record as a person reads it: offset, time, subject, key, value."""
    parts = [
        f"{message.offset:>8}",
        timestamp_text(message.timestamp),
        printable(message.subject),
        "-" if message.key is None else printable(shown(message.key)),
        "(tombstone)" if message.value is None else printable(shown(message.value)),
    ]
    return "  ".join(parts) + "\n"


def printable(text: str) -> str:
    """Control characters as escapes; everything else as it is."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], nothing: str = ""
) -> None:
    """Columns with headings. On a terminal cells longer than FOLDED_MIN may be folded into their
    columns; if there is no room for that, each row is two lines, or a list of fields. nothing: what
    standard error says of a table without rows."""
    cells = [[printable(str(cell)) for cell in row] for row in rows]
    if nothing and not cells:
        print(f"note: {nothing}", file=sys.stderr)
    if sys.stdout.isatty():
        if not _print_rich(columns, cells):
            _print_stacked(columns, cells or [["-"] * len(columns)])
        return
    lines = [list(columns), *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        sys.stdout.write("  ".join(padded).rstrip() + "\n")


def _print_rich(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> bool:
    """False: nothing is printed, because the terminal is too narrow."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    least = [
        max(LINE_MIN if len(cell) > FOLDED_MIN else len(cell) for cell in each)
        for each in zip(columns, *cells, strict=True)
    ]
    room = console.width - sum(least[1:]) - 2 * (len(least) - 1)
    longest = max((len(row[0]) for row in cells), default=0)
    if least[0] == LINE_MIN and longest > LINES_MAX * max(room, LINE_MIN):
        return _print_led(columns, cells, console.width)
    if room < least[0]:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column, width in zip(columns, least, strict=True):
        table.add_column(column, overflow="fold", min_width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)
    return True


def _print_led(columns: Sequence[str], cells: Sequence[Sequence[str]], room: int) -> bool:
    """Each row as its first cell, and the others in a line below. False: nothing is printed,
    because the terminal is too narrow."""
    rows = [list(columns), *map(list, cells)]
    widths = [max(map(len, each)) for each in zip(*(row[1:] for row in rows), strict=True)]
    if sum(widths) + 2 * len(widths) > room:
        return False
    for first, *others in rows:
        padded = [cell.ljust(width) for cell, width in zip(others, widths, strict=True)]
        sys.stdout.write(f"{first}\n  {'  '.join(padded)}".rstrip() + "\n")
    return True


def _print_stacked(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    """Each row as lines of a name and a value, with an empty line between rows."""
    for number, row in enumerate(cells):
        if number:
            sys.stdout.write("\n")
        width = max(map(len, columns))
        for column, cell in zip(columns, row, strict=True):
            sys.stdout.write(f"{column.ljust(width)}  {cell}".rstrip() + "\n")


def print_fields(fields: dict[str, object]) -> None:
    """Names and values, one a line."""
    width = max(map(len, fields))
    for name, value in fields.items():
        sys.stdout.write(f"{name.ljust(width)}  {printable(_plain(value))}\n")


def _plain(value: object) -> str:
    if isinstance(value, datetime):
        return timestamp_text(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value in ("", None) else str(value)
