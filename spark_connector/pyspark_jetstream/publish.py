"""A task's rows to NATS in batches, acknowledged, and known again when they come twice.

The server stores no batch twice of which it knows producer id and sequence, and of each producer it
knows the last five. So the producer id is made from what a second attempt at the same rows has in
common with the first, and each serves five batches, of sequences 0 to 4: whatever part of them the
first attempt has stored, the second finds all of them known. That holds if the rows of a partition
come again in the same order, and as long as the server remembers the producer: a day, and the last
10,000 producers of a stream.

Where batches begin and end depends on nothing but the rows, and so does which producer has them.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from jetstream_client import Client, JetstreamError
from pyspark_jetstream.clients import client_for
from pyspark_jetstream.options import WriteOptions
from pyspark_jetstream.rows import HeaderPairs, Rows, by_subject

if TYPE_CHECKING:
    from jetstream_client import Delivery, ManyDelivery, Publisher

BATCH_BYTES = 512 * 1024
"""Of a batch, unless one row is longer: half of what a NATS server takes by default."""

LONGEST_BYTES = 8 * 1024 * 1024
"""Of a batch of one row: as much as the SDK allows, of which NATS may take less."""

BATCHES_KNOWN = 5
"""How many of its last batches the server knows of a producer."""

OPEN_MAX = 8
"""Producers whose batches are on their way; before a further one the oldest is waited for."""

NEVER = 3600.0
"""A linger that ends with `close`: no clock decides where a batch ends."""


@dataclass(frozen=True)
class Identity:
    """What a second attempt at the same rows has in common with the first.

    run: the streaming query and its batch, or the write. partition: Spark's number of the task.
    """

    run: str
    partition: int

    def producer_id(self, subject: str, number: int) -> int:
        """63 bits. number: counts the producers of the subject in this partition."""
        text = f"{self.run}/{self.partition}/{number}/{subject}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


class _Five:
    """Up to five batches of one producer."""

    def __init__(self, publisher: Publisher) -> None:
        self.is_over = False
        self._batches = 0
        self._publisher = publisher
        self._many: list[ManyDelivery] = []
        self._single: list[Delivery] = []

    def publish(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[HeaderPairs | None] | None,
    ) -> None:
        assert not self.is_over
        self._batches += 1
        self.is_over = self._batches == BATCHES_KNOWN
        if headers is None:
            self._many.append(self._publisher.publish_many(values, keys))
            return
        for number, value in enumerate(values):
            by_name: dict[str, list[str]] = {}
            for name, text in headers[number] or ():
                by_name.setdefault(name, []).append(text)
            key = None if keys is None else keys[number]
            self._single.append(self._publisher.send(value, key, by_name or None))

    def finish(self) -> int:
        """Wait for the acknowledgements. How many of the rows were there already."""
        self.is_over = True
        self._publisher.close()
        parts = [part.result() for many in self._many for part in many]
        return sum(part.count for part in parts if part.duplicate) + sum(
            row.result().duplicate for row in self._single
        )


class _Outgoing:
    """The batches of a task: at most `OPEN_MAX` producers have some on their way."""

    def __init__(self, client: Client, timeout: float, identity: Identity) -> None:
        self.rows = 0
        self.duplicates = 0
        self._client = client
        self._timeout = timeout
        self._identity = identity
        self._open: deque[_Five] = deque()
        self._filling: dict[tuple[str, bool], _Five] = {}
        self._numbers: dict[str, int] = {}

    def publish(self, rows: Rows) -> None:
        for start, stop in pieces(rows):
            self._five(rows.subject, rows.headers is not None).publish(
                rows.values[start:stop],
                None if rows.keys is None else rows.keys[start:stop],
                None if rows.headers is None else rows.headers[start:stop],
            )
        self.rows += len(rows)

    def _five(self, subject: str, has_headers: bool) -> _Five:
        """The producer of the next batch. Records with headers are handed over one by one."""
        key = subject, has_headers
        five = self._filling.get(key)
        if five is not None and not five.is_over:
            return five
        while len(self._open) >= OPEN_MAX:
            self._finish_oldest()
        number = self._numbers.get(subject, 0)
        self._numbers[subject] = number + 1
        publisher = self._client.publisher(
            subject,
            linger=NEVER if has_headers else 0,
            max_bytes=LONGEST_BYTES,
            delivery_timeout=self._timeout,
            producer_id=self._identity.producer_id(subject, number),
        )
        five = self._filling[key] = _Five(publisher)
        self._open.append(five)
        return five

    def _finish_oldest(self) -> None:
        self.duplicates += self._open[0].finish()
        self._open.popleft()

    def finish(self) -> None:
        while self._open:
            self._finish_oldest()

    def abandon(self) -> None:
        """After a failure: what is on its way ends, well or not."""
        for five in self._open:
            with suppress(JetstreamError):
                five.finish()


def publish(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], identity: Identity
) -> tuple[int, int]:
    """How many rows were published, and how many of them were there already."""
    outgoing = _Outgoing(client_for(options.config), options.config.timeout, identity)
    try:
        for batch in batches:
            for rows in by_subject(batch, options.subject):
                outgoing.publish(rows)
        outgoing.finish()
    except BaseException:
        outgoing.abandon()
        raise
    return outgoing.rows, outgoing.duplicates


def pieces(rows: Rows) -> Iterator[tuple[int, int]]:
    """Row numbers [start, stop) of each batch, as many as `BATCH_BYTES` hold, at least one."""
    start = 0
    while start < len(rows):
        before = rows.ends[start - 1] if start else 0
        stop = max(start + 1, bisect_right(rows.ends, before + BATCH_BYTES))
        yield start, stop
        start = stop
