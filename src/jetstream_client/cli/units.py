"""Durations and sizes as people write them: `90s`, `1h30m`, `7d`; `512KiB`, `10GB`."""

from __future__ import annotations

from datetime import timedelta

import typer

from jetstream_client.values.sizes import bytes_in
from jetstream_protocol.times import SECONDS_OF, seconds_in

TIMEOUT_MIN = 0.001
_SECONDS_MAX = (2**63 - 1) // 1_000_000


def parse_duration(text: str | float) -> float:
    """Seconds, of a text with units: a forgotten unit would change how long something is kept. Only
    0 needs none. Raises typer.BadParameter."""
    if isinstance(text, int | float):  # A default, which is parsed already.
        return float(text)
    seconds = seconds_in(text)
    if seconds is None:
        raise typer.BadParameter(f"{text!r} is not a duration: say 90s, 1h30m or 7d.")
    if seconds > _SECONDS_MAX:
        raise typer.BadParameter(
            f"{text!r} is too long: say 290000 years at most, or 0 for no end."
        )
    return seconds


def parse_timeout(text: str | float) -> float:
    """Seconds, of a text with units or of a number. Raises typer.BadParameter."""
    seconds = seconds_in(str(text))
    if seconds is None:
        try:
            seconds = float(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not a duration: say 30, 30s or 5m.") from None
    if not TIMEOUT_MIN <= seconds <= _SECONDS_MAX:
        raise typer.BadParameter(f"{text!r} is not a time to wait: say {TIMEOUT_MIN} s or longer.")
    return seconds


def duration_text(seconds: float) -> str:
    """As `parse_duration` reads it: 5400 is 1h30m."""
    microseconds, text = round(seconds * 1_000_000), ""
    for unit in ("d", "h", "m", "s"):
        count, microseconds = divmod(microseconds, round(SECONDS_OF[unit] * 1_000_000))
        text += f"{count}{unit}" if count else ""
    if microseconds:
        text += f"{microseconds / 1000:g}ms"
    return text or "0"


def age_text(age: timedelta) -> str:
    """How long ago, in its largest unit: 90 minutes are 1h. Never negative, although clocks
    differ."""
    seconds = max(0.0, age.total_seconds())
    unit = next((unit for unit in ("d", "h", "m") if seconds >= SECONDS_OF[unit]), "s")
    return f"{int(seconds // SECONDS_OF[unit])}{unit}"


def records_text(count: int) -> str:
    """How many: 1 record, 2 records."""
    return f"{count} record{'' if count == 1 else 's'}"


def size_text(size: int) -> str:
    """As `parse_size` reads it, to three digits or so: 1.5MiB."""
    value, units = float(size), iter(("B", "KiB", "MiB", "GiB"))
    for unit in units:
        if value < 1024:
            return f"{value:.3g}{unit}" if value < 1000 else f"{value:.0f}{unit}"
        value /= 1024
    return f"{value:.4g}TiB"


def parse_size(text: str | int) -> int:
    """Bytes. kB, MB, GB and TB are powers of 1000, KiB to TiB of 1024. Raises
    typer.BadParameter."""
    if isinstance(text, int):
        return text
    size = bytes_in(text)
    if size is None:
        raise typer.BadParameter(f"{text!r} is not a size: say 512KiB, 10GB or a number of bytes.")
    if size >= 2**63:
        raise typer.BadParameter(f"{text!r} is not a size: it is too large (8388607TiB).")
    return size
