"""How the log of a stream is cut into segments."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LogConfig:
    """When segments roll, and how dense their indexes are."""

    segment_bytes: int = 256 * 1024 * 1024
    segment_age_us: int | None = None
    index_interval_bytes: int = 4096
    segment_offsets: int | None = None
    """How many offsets a segment may cover."""
