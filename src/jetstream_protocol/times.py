"""Times and durations: microseconds since 1970 as datetimes and as text; `90s`, `1h30m`, `7d`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from jetstream_protocol.errors import InvalidRequestError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MIN_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_MAX_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def to_datetime(timestamp_us: int) -> datetime:
    """An aware datetime in UTC, exact to the microsecond (a float of seconds would not be).

    Producers may set any 64-bit number: a time out of range becomes the nearest possible datetime.
    """
    return _EPOCH + timedelta(microseconds=min(max(timestamp_us, _MIN_US), _MAX_US))


def to_timestamp_us(moment: datetime) -> int:
    """Microseconds since 1970. Raises InvalidRequestError for a naive datetime."""
    if moment.tzinfo is None:
        raise InvalidRequestError("a naive datetime is ambiguous: give it a time zone")
    return (moment - _EPOCH) // _MICROSECOND


def timestamp_text(moment: datetime) -> str:
    """A UTC moment as RFC 3339, always with microseconds, so that texts sort like times."""
    return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


SECONDS_OF = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
"""By unit."""
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])", re.ASCII)
_ZERO = re.compile(r"0+(\.0+)?")


def seconds_in(text: str) -> float | None:
    """Seconds of a text with units; None: it is no duration. A forgotten unit would change how long
    something is kept, so only 0 needs none."""
    if _ZERO.fullmatch(text):
        return 0.0
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * SECONDS_OF[unit] for number, unit in parts)
