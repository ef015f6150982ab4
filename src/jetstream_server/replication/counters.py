"""What is counted of a replica, for `describe` and metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """Since the server started."""

    records_appended: int = 0
    bytes_appended: int = 0
    acks_sent: int = 0
    nacks_sent: int = 0
    acks_suppressed: int = 0
    suspected_gaps: int = 0
    hand_overs: int = 0
    """Leaderships taken over by plan; how long nobody listened at the last, and at all of them."""
    hand_over_gap_us: int = 0
    hand_over_gaps_us: int = 0
