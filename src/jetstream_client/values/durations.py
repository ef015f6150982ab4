"""Durations as programs and the command line give them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TypeAlias, overload

from jetstream_protocol.errors import InvalidRequestError

Seconds: TypeAlias = float | timedelta | str
"""A duration: seconds, a timedelta, or text like `90s`, `1h30m` or `7d`. The server keeps whole
microseconds."""

SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
"""By unit."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_ZERO = re.compile(r"0+(\.0+)?")
_US = 1_000_000
_US_MAX = (1 << 63) - 1


def seconds_in(text: str) -> float | None:
    """Seconds of a text with units; None: it is no duration. A forgotten unit would change how long
    something is kept, so only 0 needs none."""
    if _ZERO.fullmatch(text):
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * SECONDS_OF[unit] for number, unit in parts)


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
    return value.total_seconds() if isinstance(value, timedelta) else value


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
