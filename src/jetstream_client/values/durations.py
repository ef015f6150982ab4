"""Durations as programs and the command line give them."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, overload

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.times import seconds_in

Seconds: TypeAlias = float | timedelta | str
"""A duration: seconds, a timedelta, or text like `90s`, `1h30m` or `7d`. The server keeps whole
microseconds."""

_US = 1_000_000
_US_MAX = (1 << 63) - 1


@overload
def to_seconds(name: str, value: Seconds) -> float: ...
@overload
def to_seconds(name: str, value: Seconds | None) -> float | None: ...
def to_seconds(name: str, value: Seconds | None) -> float | None:
    """Seconds; numbers stay as they are. Raises InvalidRequestError, which names the setting."""
    if isinstance(value, str):
        found = seconds_in(value)
        if found is None:
            raise InvalidRequestError(f"{name} {value!r} is not a duration: say 90s, 1h30m or 7d")
        return found
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is not None and not seconds >= 0:  # Not a number is not, either.
        raise InvalidRequestError(f"{name} {value!r} is negative, or no number")
    return seconds


def to_us(name: str, value: Seconds) -> int:
    """Microseconds. Raises InvalidRequestError, which names the setting."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    else:
        try:
            us = round(to_seconds(name, value) * _US)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"{name} {value!r} is not a number of seconds") from error
    if not 0 <= us <= _US_MAX:
        raise InvalidRequestError(f"{name} {value!r} is negative or too long")
    return us
