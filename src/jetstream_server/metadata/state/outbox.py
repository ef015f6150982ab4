"""Events that wait to be written to a stream, numbered from 1. Immutable.

Numbers have a gap only after a recovery without lost voters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jetstream_protocol import bounded_json

EVENTS_MAX = 10_000
"""Upper bound on events. If the stream takes none for a long time, the oldest are lost. Their
numbers show that: the next event written does not have the next number."""

NOTHING_NOTED = (-1, -1)


@dataclass(frozen=True, slots=True)
class Outbox:
    """events: JSON texts with their numbers (`sequence`), the oldest first.

    cursors_noted: the leader epoch and the offset of the last record of `__cursors` whose event was
    put in; later records have higher ones."""

    next_sequence: int = 1
    events: tuple[str, ...] = ()
    cursors_noted: tuple[int, int] = NOTHING_NOTED

    @property
    def first_sequence(self) -> int:
        """The number of the oldest event; `next_sequence` when there is none."""
        return sequence_of(self.events[0]) if self.events else self.next_sequence

    def after(self, sequence: int) -> tuple[str, ...]:
        """The events with higher numbers."""
        return self.events[bisect_right(self.events, sequence, key=sequence_of) :]

    def with_events(self, texts: Sequence[str]) -> Outbox:
        events = (*self.events, *texts)[-EVENTS_MAX:]
        return replace(self, next_sequence=self.next_sequence + len(texts), events=events)

    def without(self, through: int) -> Outbox:
        """The outbox without the events up to this number."""
        kept = self.after(through)
        return self if len(kept) == len(self.events) else replace(self, events=kept)

    def skipping(self, count: int) -> Outbox:
        """The outbox whose next event has a number that much higher."""
        return replace(self, next_sequence=self.next_sequence + count)

    def to_dict(self) -> dict[str, Any]:
        """Without `cursors_noted` before the first event about a cursor: older software writes the
        same."""
        values: dict[str, Any] = {"next_sequence": self.next_sequence, "events": list(self.events)}
        if self.cursors_noted != NOTHING_NOTED:
            values["cursors_noted"] = list(self.cursors_noted)
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Outbox:
        """The reverse of `to_dict`. Raises KeyError, TypeError or ValueError for other values."""
        events = tuple(map(str, values["events"]))
        leader_epoch, offset = values.get("cursors_noted", NOTHING_NOTED)
        return cls(int(values["next_sequence"]), events, (int(leader_epoch), int(offset)))


def sequence_of(event: str | bytes) -> int:
    """The number of an event."""
    return int(bounded_json.loads(event)["sequence"])
