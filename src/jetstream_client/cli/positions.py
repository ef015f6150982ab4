"""Positions on the command line: what `--from` and `--to` take.

    earliest | latest | N | -N | last:N | 1h | TIME

-N and last:N are the last N records. 1h, 90s, 1h30m, 7d mean that long ago. TIME is ISO 8601
(`2026-01-31`, `2026-01-31T12:00:00Z`; without a zone, local time) or `@` and the seconds since
1970, with up to six decimals, as `date` writes it.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from jetstream_client.cli.units import parse_duration
from jetstream_client.values.positions import At, Last, Position, check_offset
from jetstream_protocol.errors import InvalidRequestError

METAVAR = "POSITION"
SAYS = (
    "earliest, latest, an offset, -10 (the last ten), 1h (ago), 2026-01-31, "
    "2026-01-31T12:00:00Z or @SECONDS"
)

LOCAL = "A time without a zone is local."

_ELSEWHERE = {
    **dict.fromkeys(("beginning", "start", "oldest", "smallest", "all"), "earliest"),
    **dict.fromkeys(("end", "newest", "largest", "last", "new", "now"), "latest"),
}
"""Words of other tools."""

_NUMBER = re.compile(r"(last:|-)?(\d{1,19})", re.ASCII)
_AGO = re.compile(r"(\d+(\.\d+)?(ms|[smhdw]))+", re.ASCII)
_SECONDS = re.compile(r"@(-?)(\d{1,12})(?:\.(\d{1,6}))?", re.ASCII)

From = Annotated[
    str, typer.Option("--from", metavar=METAVAR, help=f"Where to begin: {SAYS}. {LOCAL}")
]
To = Annotated[
    str,
    typer.Option(metavar=METAVAR, help="Where to stop (exclusive), in the same forms as --from."),
]


def parse_position(text: str) -> Position:
    """Raises InvalidRequestError."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    number = _NUMBER.fullmatch(text)
    if number:
        count = check_offset(int(number[2]))
        return Last(count) if number[1] else count
    if _AGO.fullmatch(text):
        return At(time.time_ns() // 1000 - round(parse_duration(text) * 1_000_000))
    seconds = _SECONDS.fullmatch(text)
    if seconds:
        sign, whole, decimals = seconds.groups()
        timestamp_us = int(whole) * 1_000_000 + int((decimals or "").ljust(6, "0"))
        return At(-timestamp_us if sign else timestamp_us)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        instead = _ELSEWHERE.get(text.lower(), SAYS)
        raise InvalidRequestError(f"invalid position {text!r}: say {instead}") from error
    if moment.tzinfo is not None:
        return moment
    try:
        return moment.astimezone()
    except (ValueError, OverflowError):  # At the ends of the calendar a zone is of no importance.
        return moment.replace(tzinfo=UTC)
