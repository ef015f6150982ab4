"""Counters of a replica, for `describe` and metrics."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Since the server started. Only its methods write them."""

    records_appended: int = 0
    bytes_appended: int = 0
    acks_sent: int = 0
    nacks_sent: int = 0
    nacks_by_code: dict[str, int] = field(default_factory=dict)
    """The same, by the code of the error that they say (docs/protocol.md, "Errors")."""
    duplicates: int = 0
    """Messages and batches that were stored already, and so not stored again."""
    acks_suppressed: int = 0
    suspected_gaps: int = 0
    hand_overs: int = 0
    """Leaderships received by hand-over; how long nobody listened at the last, and in all of
    them."""
    hand_over_gap_us: int = 0
    hand_over_gaps_us: int = 0

    def appended(self, records: int, size: int) -> None:
        self.records_appended += records
        self.bytes_appended += size

    def acknowledged(self, count: int, refused: int = 0) -> None:
        """refused: acks that nobody may be sent."""
        self.acks_sent += count
        self.acks_suppressed += refused

    def refused(self, count: int, code: str) -> None:
        """Publishes that were answered with an error of that code."""
        self.nacks_sent += count
        self.nacks_by_code[code] = self.nacks_by_code.get(code, 0) + count

    def repeated(self) -> None:
        """A message or batch was stored already."""
        self.duplicates += 1

    def gap_suspected(self) -> None:
        """Messages may have come while nobody listened."""
        self.suspected_gaps += 1

    def handed_over(self, gap_us: int) -> None:
        """A leadership was taken over by plan; nobody listened for `gap_us`."""
        self.hand_overs += 1
        self.hand_over_gap_us = gap_us
        self.hand_over_gaps_us += gap_us

    def add(self, other: Counters) -> None:
        """Count what another replica has counted; `hand_over_gap_us`, of one hand-over, stays."""
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
