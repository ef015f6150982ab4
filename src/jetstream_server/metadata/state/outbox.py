"""Events that wait to be written to a stream, numbered from 1 without a gap. Immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVENTS_MAX = 10_000
"""Upper bound on events. If the stream takes none for a long time, the oldest are lost. Their
numbers show that: the next event written does not have the next number."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """events: JSON texts, the oldest first; the last has the number `next_sequence - 1`."""

    next_sequence: int = 1
    events: tuple[str, ...] = ()

    @property
    def first_sequence(self) -> int:
        """The number of the oldest event; `next_sequence` when there is none."""
        return self.next_sequence - len(self.events)

    def after(self, sequence: int) -> tuple[str, ...]:
        """The events with higher numbers."""
        return self.events[max(0, sequence + 1 - self.first_sequence) :]

    def with_event(self, text: str) -> Outbox:
        return Outbox(self.next_sequence + 1, (*self.events, text)[-EVENTS_MAX:])

    def without(self, through: int) -> Outbox:
        """The outbox without the events up to this number."""
        kept = self.after(min(through, self.next_sequence - 1))
        return self if len(kept) == len(self.events) else Outbox(self.next_sequence, kept)

    def to_dict(self) -> dict[str, Any]:
        return {"next_sequence": self.next_sequence, "events": list(self.events)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outbox:
        """The reverse of `to_dict`. Raises KeyError, TypeError or ValueError for other values."""
        events = tuple(map(str, values["events"]))
        return cls(int(values["next_sequence"]), events)
