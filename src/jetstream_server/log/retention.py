"""Which records the limits of age, bytes and messages no longer keep. Pure: the driver does it.

Rules (design 5).
* Whole segments, oldest first; never the last one, which takes the appends.
* Never past the bound the caller gives: what is not committed, or not flushed, stays.
* Limits take together: a segment goes as soon as one of them does without it. A record that is
  within every limit is never removed, so the log may hold up to a segment more than a limit says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One sealed segment: offsets, bytes, and the append timestamp of its newest batch."""

    base_offset: int
    next_offset: int
    size: int
    newest_us: int


@dataclass(frozen=True, slots=True)
class Limits:
    """0: unlimited. Messages are counted by offsets, compacted ones included."""

    max_age_us: int = 0
    max_bytes: int = 0
    max_messages: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """log_start_offset: the first offset to be kept. due_us: when age will want more gone, if
    nothing is appended; None: never."""

    log_start_offset: int
    due_us: int | None


def judge(
    sealed: Iterable[Span],
    limits: Limits,
    *,
    size_bytes: int,
    log_start_offset: int,
    log_end_offset: int,
    bound_offset: int,
    now_us: int,
) -> Verdict:
    """What is to be kept of a log of `size_bytes`, whose sealed segments are given oldest first.

    Looks at no more segments than it removes, and one.
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
        due_us = span.newest_us + limits.max_age_us if limits.max_age_us else None
        beyond_age = due_us is not None and due_us <= now_us
        if not (beyond_bytes or beyond_count or beyond_age):
            return Verdict(start, due_us)
        start = max(start, span.next_offset)
    return Verdict(start, None)
