"""Positions: where reading begins and ends.

An offset is a position already. The stream's leader resolves everything else when a call begins:
"latest" is the high watermark of that moment, not of the moment when the reader gets there (but see
`AsyncConsumer.stop_may_move`). A stop is exclusive, in whatever form it is given.

    100                     offset 100
    "earliest", "latest"    the first record kept; the next record to come
    datetime (aware)        the first record at or after that time
    At(1_700_000_000_000_000)   the same, in microseconds since 1970
    Last(100)               100 offsets before "latest"

A negative number is refused rather than read as "from the end": `offset - 100` must not become the
tail of a stream because it was computed near its start.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from operator import index
from typing import Literal, TypeAlias

from jetstream_client.values.checks import to_int
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.times import to_timestamp_us

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class At:
    """The first record at or after `timestamp_us`, microseconds since 1970 UTC."""

    timestamp_us: int

    def __post_init__(self) -> None:
        to_int("timestamp_us", self.timestamp_us)
        if not -_INT64_MAX <= self.timestamp_us <= _INT64_MAX:
            raise InvalidRequestError(f"{self.timestamp_us} µs is beyond any timestamp")


@dataclass(frozen=True, slots=True)
class Last:
    """`count` offsets before "latest", at the earliest the first record kept.

    In a compacted stream these may be fewer records, because offsets without a record count too.
    """

    count: int

    def __post_init__(self) -> None:
        to_int("the count of Last", self.count)
        if self.count < 0:
            raise InvalidRequestError(f"the last {self.count} records: say a positive number")


Position: TypeAlias = int | Literal["earliest", "latest"] | datetime | At | Last
"""See the module. A start is inclusive, a stop exclusive."""

Simple: TypeAlias = Literal["earliest", "latest"] | At
"""Queries that the server resolves."""


def check_offset(offset: int) -> int:
    """`offset`, if it is valid. Raises InvalidRequestError, TypeError."""
    offset = to_int("an offset", offset)
    if offset > _INT64_MAX:
        raise InvalidRequestError(f"offset {offset} is impossible: the largest is {_INT64_MAX}")
    if offset < 0:
        raise InvalidRequestError(
            f"offset {offset} is impossible: offsets begin at 0; the last {abs(offset)} records "
            f"are Last({abs(offset)})"
        )
    return offset


def needed(position: Position) -> tuple[Simple, ...]:
    """The query for the server. Raises InvalidRequestError if it is no position."""
    position = _plain(position)
    if isinstance(position, int):
        check_offset(position)
        return ()
    if isinstance(position, datetime):
        return (At(to_timestamp_us(position)),)
    if isinstance(position, Last):
        return ("earliest", "latest")
    return (position,)


def offset_of(position: Position, answers: list[int]) -> int:
    """The offset, from the results of the queries in `needed`, in that order."""
    position = _plain(position)
    if isinstance(position, int):
        return position
    if isinstance(position, Last):
        earliest, latest = answers
        return max(earliest, latest - position.count)
    return answers[0]


def _plain(position: Position) -> Position:
    """The same, with an int for what can be one, like an integer of NumPy."""
    if isinstance(position, datetime | At | Last):
        return position
    if isinstance(position, str):
        if position not in ("earliest", "latest"):
            raise _position_error(position)
        return position
    try:
        if not isinstance(position, bool):
            return index(position)
    except TypeError:
        pass  # No number at all.
    raise _position_error(position)


def _position_error(position: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"invalid position {position!r}: say an offset, 'earliest', 'latest', an aware datetime, "
        "At(microseconds) or Last(count)"
    )
