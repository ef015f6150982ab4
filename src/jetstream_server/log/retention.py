"""Decides which records exceed the limits of age, bytes and messages. Pure: the driver removes
them.

Rules.
* Whole segments, oldest first; never the last one, which takes the appends.
* Never past the caller's bound: uncommitted or unflushed records stay.
* A segment goes as soon as one limit is exceeded without it. A record within every limit is never
  removed, so the log may exceed a limit by up to one segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jetstream_protocol.types import WallUs


@dataclass(frozen=True, slots=True)
class Span:
    """One sealed segment: offsets, bytes, and the append timestamp of its newest batch."""

    base_offset: int
    next_offset: int
    size: int
    newest_us: WallUs


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a stream; 0: unlimited. Compacted records count as messages, by their
    offsets."""

    max_age_us: int = 0
    max_bytes: int = 0
    max_messages: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """log_start_offset: the first offset to keep. due_us: when the next segment becomes too old if
    nothing is appended; None: never."""

    log_start_offset: int
    due_us: WallUs | None


def judge(
    sealed: Iterable[Span],
    limits: Limits,
    *,
    size_bytes: int,
    log_start_offset: int,
    log_end_offset: int,
    bound_offset: int,
    wall_us: WallUs,
) -> Verdict:
    """Decide what to keep of a log of `size_bytes`. Its sealed segments come oldest first.

    Looks at one segment more than it removes.
    """
    start = log_start_offset
    for span in sealed:
        if span.next_offset > bound_offset:
            return Verdict(start, None)
        size_bytes -= span.size
        beyond_bytes = limits.max_bytes and size_bytes >= limits.max_bytes
        beyond_count = (
            limits.max_messages and log_end_offset - span.next_offset >= limits.max_messages
        )
        due_us = WallUs(span.newest_us + limits.max_age_us) if limits.max_age_us else None
        beyond_age = due_us is not None and due_us <= wall_us
        if not (beyond_bytes or beyond_count or beyond_age):
            return Verdict(start, due_us)
        start = max(start, span.next_offset)
    return Verdict(start, None)
