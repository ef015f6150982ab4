"""Counters of a replica, for `describe` and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Counts since the server started. Only its methods change them."""

    records_appended: int = 0
    bytes_appended: int = 0
    acks_sent: int = 0
    nacks_sent: int = 0
    nacks_by_code: dict[str, int] = field(default_factory=dict)
    """Refused messages by the code of the error (docs/protocol.md, "Errors")."""
    duplicates: int = 0
    """Messages and batches that were not stored again because they were stored already."""
    acks_suppressed: int = 0
    suspected_gaps: int = 0
    hand_overs: int = 0
    """Leaderships received by hand-over, and how long there was no subscription, in the last one
    and in all."""
    hand_over_gap_us: int = 0
    hand_over_gaps_us: int = 0

    def appended(self, records: int, size: int) -> None:
        self.records_appended += records
        self.bytes_appended += size

    def acknowledged(self, count: int, refused: int = 0) -> None:
        """Count acks. refused: acks to replies that are not allowed."""
        self.acks_sent += count
        self.acks_suppressed += refused

    def refused(self, count: int, code: str) -> None:
        """Count publishes that were answered with an error of that code."""
        self.nacks_sent += count
        self.nacks_by_code[code] = self.nacks_by_code.get(code, 0) + count

    def repeated(self) -> None:
        """Count a message or batch that was stored already."""
        self.duplicates += 1

    def gap_suspected(self) -> None:
        """Count a gap: messages may have arrived while there was no subscription."""
        self.suspected_gaps += 1

    def handed_over(self, gap_us: int) -> None:
        """Count a hand-over to this node, with no subscription for `gap_us`."""
        self.hand_overs += 1
        self.hand_over_gap_us = gap_us
        self.hand_over_gaps_us += gap_us

    def add(self, other: Counters) -> None:
        """Add the counts of another replica, except `hand_over_gap_us`, which is of one
        hand-over."""
        self.records_appended += other.records_appended
        self.bytes_appended += other.bytes_appended
        self.acks_sent += other.acks_sent
        self.nacks_sent += other.nacks_sent
        for code, count in other.nacks_by_code.items():
            self.nacks_by_code[code] = self.nacks_by_code.get(code, 0) + count
        self.duplicates += other.duplicates
        self.acks_suppressed += other.acks_suppressed
        self.suspected_gaps += other.suspected_gaps
        self.hand_overs += other.hand_overs
        self.hand_over_gaps_us += other.hand_over_gaps_us
