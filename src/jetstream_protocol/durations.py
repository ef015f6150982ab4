"""Durations as text: `90s`, `1h30m`, `7d`."""

from __future__ import annotations

import re

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
