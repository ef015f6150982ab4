"""Positions at which to begin and to end, in the words of Spark's Kafka source.

`earliest`, `latest`, or JSON with a number per stream, in which -2 is earliest and -1 latest:
`{"orders": 1000, "clicks@clicks.>": -2}`. Ends are exclusive. Times are milliseconds since 1970,
or ISO 8601 with a time zone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal, TypeAlias, cast

from jetstream_protocol import bounded_json
from pyspark_jetstream.errors import OptionError

Place: TypeAlias = int | Literal["earliest", "latest"] | datetime
"""An offset, an end of the stream, or the first record appended at or after a time."""

_BY_NUMBER: Mapping[int, Place] = {-2: "earliest", -1: "latest"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Positions:
    """A place for every stream, and other places for some, by name or name@subject.

    option: the option in which the user wrote it, for errors.
    """

    option: str
    default: Place
    by_stream: Mapping[str, Place] = field(default_factory=dict)

    def place_for(self, name: str, full_name: str) -> Place:
        return self.by_stream.get(full_name, self.by_stream.get(name, self.default))


def parse_offsets(option: str, text: str, default: Place) -> Positions:
    """Parse offsets. default: for streams that the JSON does not name. Raises OptionError."""
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Positions(option, cast(Place, word))
    example = """say earliest, latest or JSON such as {"orders": 1000}"""
    try:
        given = bounded_json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option} {text!r} is not JSON ({error}): {example}") from error
    if not isinstance(given, dict) or not given:
        raise OptionError(f"{option} {text!r} names no stream: {example}")
    places = {name: _place(option, name, value) for name, value in given.items()}
    return Positions(option, default, places)


def _place(option: str, name: str, value: object) -> Place:
    if value in ("earliest", "latest"):
        return cast(Place, value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= -2:
        return _BY_NUMBER.get(value, value)
    raise OptionError(
        f"{option} of {name!r} is {value!r}: say an offset from 0 on, -2 or earliest, -1 or latest"
    )


def parse_timestamp(option: str, text: str) -> Positions:
    """Parse one time for all streams. Raises OptionError."""
    return Positions(option, _moment(option, text))


def parse_timestamps(option: str, text: str, default: Place) -> Positions:
    """Parse JSON with a time per stream. default: for other streams. Raises OptionError."""
    example = """say JSON such as {"orders": 1769860800000}"""
    try:
        given = bounded_json.loads(text)
    except ValueError as error:
        raise OptionError(f"{option} {text!r} is not JSON ({error}): {example}") from error
    if not isinstance(given, dict) or not given:
        raise OptionError(f"{option} {text!r} names no stream: {example}")
    return Positions(option, default, {name: _moment(option, str(t)) for name, t in given.items()})


def _moment(option: str, text: str) -> datetime:
    try:
        if text.strip().lstrip("-").isdecimal():
            moment = _EPOCH + timedelta(milliseconds=int(text))
        else:
            moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError) as error:
        raise OptionError(
            f"{option} {text!r} is no time: say milliseconds since 1970, or ISO 8601 such as "
            "2026-01-31T12:00:00Z"
        ) from error
    if moment.tzinfo is None:
        raise OptionError(f"{option} {text!r} has no time zone: add Z or +01:00 at its end")
    return moment
