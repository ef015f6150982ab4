"""The streams of a run, and who publishes to each.

Every value says which stream and which number it is (`tests.chaos.damage.streams`), so any record
that any reader meets can be checked, whether it was acknowledged or not.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.damage.streams import Stream

GROUP = "jobs"
"""The group of streams that the members of a consumer group share."""
CONSUMERS = "workers"
"""The consumer group."""


@dataclass(frozen=True, slots=True)
class NumberedStream(Stream):
    """Its values are the numbers alone, as `tests.support.load.Load` publishes them."""

    def value(self, number: int) -> bytes:
        return b"%d" % number

    def number(self, value: bytes | None) -> int:
        return int(value) if value is not None and value.isdigit() else -1


REPEATED = Stream("repeated")
"""Messages with ids, published again until they are acknowledged."""
KEYED = Stream("keyed", compacted=True)
"""The same, with keys; a table follows it."""
ORDERED = NumberedStream("ordered", flush="group")
"""Messages without ids, each published once, in order, many at a time."""
BATCHED = Stream("batched")
"""Batches of the SDK's publisher, on NATS or straight to the leader, each record once, in order."""
STREAMS: tuple[Stream, ...] = (REPEATED, KEYED, ORDERED, BATCHED)
IN_ORDER = frozenset({ORDERED.name, BATCHED.name})
"""Streams whose one publisher never repeats a message itself."""
SHARED = tuple(f"{GROUP}-{number}" for number in range(2))
"""The streams of the group. Their values are numbers."""
