"""Durations as programs give them."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

from jetstream_protocol.errors import InvalidRequestError

Seconds: TypeAlias = float | timedelta
"""A duration: seconds, or a timedelta. The server keeps whole microseconds."""

_US = 1_000_000
_US_MAX = (1 << 63) - 1


def to_us(name: str, value: Seconds) -> int:
    """Microseconds. Raises InvalidRequestError, which names the setting."""
    if isinstance(value, timedelta):
        us = value // timedelta(microseconds=1)
    else:
        try:
            us = round(value * _US)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidRequestError(f"{name} {value!r} is not a number of seconds") from error
    if not 0 <= us <= _US_MAX:
        raise InvalidRequestError(f"{name} {value!r} is negative or too long")
    return us
