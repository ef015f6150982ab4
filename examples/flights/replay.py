"""The flights through the SDK: published with acks, fetched back by offset, and counted."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from examples.flights.dataset import Flight
from jetstream_client import AsyncClient

STREAM = "flights"
SUBJECT = "flights.>"
WINDOW = 10_000
"""Flights handed over at a time, so that the bar moves."""
FETCH_MESSAGES = 50_000

Progress = Callable[[int], None]
"""Told how many more flights are done."""


@dataclass
class Tally:
    """What can be compared: flights per carrier, and a checksum that no order changes."""

    carriers: Counter[str] = field(default_factory=Counter)
    checksum: int = 0

    @property
    def flights(self) -> int:
        return self.carriers.total()

    def add(self, carriers: Sequence[str], payloads: Sequence[bytes]) -> None:
        self.carriers.update(carriers)
        self.checksum += sum(map(zlib.crc32, payloads))


def tally(flights: Sequence[Flight]) -> Tally:
    """What the log is held against: the source itself."""
    counted = Tally()
    counted.add([flight.carrier for flight in flights], [flight.payload for flight in flights])
    return counted


async def publish(client: AsyncClient, flights: Sequence[Flight], progress: Progress) -> None:
    """Publish every flight and wait for every ack. Raises what the first failed batch raises.

    A batch has one subject: airport and carrier. Within a subject the flights keep their order.
    """
    by_subject: dict[str, list[bytes]] = {}
    for flight in flights:
        by_subject.setdefault(flight.subject, []).append(flight.payload)
    for subject, payloads in by_subject.items():
        async with client.publisher(subject, compression="zstd") as publisher:
            for sent in [
                await publisher.publish_many(payloads[start : start + WINDOW])
                for start in range(0, len(payloads), WINDOW)
            ]:
                for delivery in sent:
                    progress((await delivery).count)


async def read(client: AsyncClient, progress: Progress) -> Tally:
    """Everything in the log, from its first offset to what is committed now."""
    counted = Tally()
    end = await client.offset_at(STREAM, "latest")
    offset = 0
    while offset < end:
        messages = await client.fetch(STREAM, offset, max_messages=FETCH_MESSAGES, max_wait=5.0)
        if messages.offsets() != list(range(offset, messages.next_offset)):
            raise RuntimeError(f"the log has a gap after offset {offset}")
        carriers = [subject.rpartition(".")[2] for subject in messages.subjects()]
        counted.add(carriers, [value or b"" for value in messages.values()])
        progress(len(messages))
        offset = messages.next_offset
    return counted
