"""Positions on the command line: what `--from` and `--to` take.

    earliest | latest | N | last:N | TIME

TIME is ISO 8601 (`2026-01-31T12:00:00Z`; without a zone, local time) or `@` and the seconds since
1970, with up to six decimals, as `date` writes it.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

import typer

from jetstream_client._positions import At, Last, Position, check_offset
from jetstream_protocol.errors import InvalidRequestError

METAVAR = "earliest|latest|N|last:N|TIME"

_NUMBER = re.compile(r"(last:)?(\d{1,19})", re.ASCII)
_SECONDS = re.compile(r"@(-?)(\d{1,12})(?:\.(\d{1,6}))?", re.ASCII)

From = Annotated[
    str,
    typer.Option(
        "--from", metavar=METAVAR, help="Where to begin; TIME as 2026-01-31T12:00:00Z or @SECONDS."
    ),
]
To = Annotated[
    str,
    typer.Option("--to", metavar=METAVAR, help="Where to stop, not included."),
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
    seconds = _SECONDS.fullmatch(text)
    if seconds:
        sign, whole, decimals = seconds.groups()
        timestamp_us = int(whole) * 1_000_000 + int((decimals or "").ljust(6, "0"))
        return At(-timestamp_us if sign else timestamp_us)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"invalid position {text!r}: say earliest, latest, an offset, last:N or a time"
        ) from error
    return moment.astimezone() if moment.tzinfo is None else moment
