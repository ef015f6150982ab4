"""How notebooks show records."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jetstream_client.reading.messages import Message

ROWS_MAX = 10
TEXT_MAX = 200
"""So many rows, and characters of a key or value: a notebook keeps what it shows."""


def html_of(stream: str, messages: Sequence[Message]) -> str:
    """The first records as a table."""
    heads = "".join(
        f"<th>{head}</th>" for head in ("offset", "timestamp", "subject", "key", "value")
    )
    rows = "".join(map(_row, islice(messages, ROWS_MAX)))
    left = len(messages) - ROWS_MAX
    more = f", of which {ROWS_MAX} are shown" if left > 0 else ""
    count = f"{len(messages):,} record{'' if len(messages) == 1 else 's'}"
    return f"<p>{count} of {escape(stream)}{more}</p><table><tr>{heads}</tr>{rows}</table>"


def _row(message: Message) -> str:
    cells = (
        str(message.offset),
        f"{message.timestamp:%Y-%m-%d %H:%M:%S}Z",
        escape(message.subject),
        "" if message.key is None else _text(message.key),
        "<i>tombstone</i>" if message.value is None else _text(message.value),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(data: bytes) -> str:
    text = data[: TEXT_MAX + 1].decode("utf-8", "backslashreplace")
    return escape(text if len(data) <= TEXT_MAX else f"{text[:TEXT_MAX]}…")
