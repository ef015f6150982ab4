"""What a consumer delivers, and who collects it where no NATS client pulls."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from jetstream_server.consumers.records import Record


class Delivery(NamedTuple):
    """times: which delivery of this message it is. pending: how many messages follow."""

    record: Record
    times: int
    sequence: int
    pending: int


class Collector:
    """Collects the messages of one pull that is not a NATS client's, up to its room. It has none at
    first: who pulls is told once there is a message, and gives it room then."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.end = ""
        """The status that has ended the pull; "": none."""
        self.needs = 0
        """Length of a message for which it has no room; 0: none is known."""
        self.changed = asyncio.Event()
        """Set with a message, the end, a need, and when there is nothing for its room."""
        self._room = 0

    def open(self, count: int) -> None:
        """Give it room for so many bytes. Wake the consumer then."""
        self._room, self.needs = count, 0

    def takes(self, record: Record) -> bool:
        """Whether it has room for a message. If not, it takes nothing more until it is opened."""
        length = _length_of(record)
        if length > self._room:
            self.needs = length
            self.changed.set()
        return not self.needs

    def deliver(self, delivery: Delivery) -> None:
        self._room -= _length_of(delivery.record)
        self.deliveries.append(delivery)
        self.changed.set()

    def nothing_left(self) -> None:
        """There is no message now: what it has no use for goes back."""
        if self._room and not self.deliveries:
            self._room = 0
            self.changed.set()

    def ended(self, text: str) -> None:
        self.end = text
        self.changed.set()


def _length_of(record: Record) -> int:
    """Of a message in an answer, at least 1."""
    return record.size + len(record.key or b"") + 1
