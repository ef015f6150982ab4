"""Publishes a task's rows to NATS in batches, with acks, so that the server recognises rows that
are published twice.

The server stores no batch twice whose producer id and sequence it remembers, and it remembers the
last five batches of each producer. So five batches are put together. The producer id is computed
from their content and from what a second attempt at the same rows has in common with the first. The
five have sequences 0 to 4: the second attempt finds those known that the first one has stored.

This works if the rows of a partition come again in the same order, and as long as the server
remembers the producer: a day, and the last 10,000 producers of a stream. Rows in another order make
other producers: such rows may be stored twice, but no row is ever taken for another one.

The limits of batches depend only on the rows, and so does the producer of each batch.

A stream has the rows that a task publishes on one subject in their order: five batches are sent
when the subject's five before them are acknowledged. Other subjects are not waited for. **safety**
Else a batch that is refused for a moment is stored behind later rows, and a reader, or compaction,
takes an older row of a key for the newest one.
"""

from __future__ import annotations

import hashlib
import marshal
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from jetstream_client import Client, InvalidRequestError, JetstreamError
from jetstream_client.publishing.record_accumulator import RECORD_BYTES, too_large
from jetstream_client.values.records import record_of
from pyspark_jetstream.clients import client_for
from pyspark_jetstream.options import WriteOptions
from pyspark_jetstream.rows import HeadersByName, Rows, by_subject

if TYPE_CHECKING:
    from jetstream_client import Delivery, ManyDelivery, Publisher

BATCH_BYTES = 512 * 1024
"""Bytes of a batch, unless one row is longer: half of what a NATS server accepts by default."""

LONGEST_BYTES = 8 * 1024 * 1024
"""Bytes of a batch of one row: as many as the SDK allows. NATS may accept fewer."""

BATCHES_KNOWN = 5
"""How many of its last batches the server remembers of a producer."""

OPEN_MAX = 8
"""Subjects whose batches are in flight, and as many whose five batches are not full yet. Before
another one begins, the oldest is awaited, or sent."""

MARSHAL_VERSION = 2
"""The last version that writes equal lists as equal bytes, even if their items are shared."""

NEVER = 3600.0
"""A linger that ends when the last row is there: no clock decides where a batch ends."""


@dataclass(frozen=True)
class Identity:
    """What a second attempt at the same rows has in common with the first, besides the rows.

    run: the streaming query and its batch, or the write. partition: Spark's number of the task.
    """

    run: str
    partition: int

    def producer_id(self, subject: str, number: int, content: bytes) -> int:
        """An id of 63 bits. number: counts the subject's producers in this partition."""
        text = f"{self.run}/{self.partition}/{number}/{subject}/".encode() + content
        return int.from_bytes(hashlib.sha256(text).digest()[:8]) >> 1


class _Five:
    """Up to five batches of one producer that were not sent yet."""

    def __init__(self, subject: str, number: int, has_headers: bool) -> None:
        self.subject = subject
        self.number = number
        self.has_headers = has_headers
        self.batches: list[Rows] = []
        self.batch_bytes = BATCH_BYTES
        """Of its longest batch, as the SDK counts. **safety** What NATS accepts does not decide
        where batches end: it may accept more when the rows come again, and other batches of one
        producer would count as those that are stored."""
        self._content = hashlib.sha256()

    @property
    def is_full(self) -> bool:
        return len(self.batches) == BATCHES_KNOWN

    @property
    def content(self) -> bytes:
        return self._content.digest()

    def add(self, rows: Rows) -> None:
        assert not self.is_full
        self.batches.append(rows)
        if len(rows) == 1:
            self.batch_bytes = max(self.batch_bytes, bytes_of(rows))
        self._content.update(marshal.dumps((rows.values, rows.keys), MARSHAL_VERSION))
        self._content.update(repr(rows.headers).encode())


class _Sent:
    """Batches of one producer that are in flight."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._many: list[ManyDelivery] = []
        self._single: list[Delivery] = []
        self._is_whole = False

    def send(self, batches: Sequence[Rows]) -> None:
        for rows in batches:
            if rows.headers is None:
                self._many.append(self._publisher.publish_many(rows.values, rows.keys))
            else:
                for delivery in self._one_by_one(rows, rows.headers):
                    self._single.append(delivery)
        if self._single:
            self._single[-1].hurry()  # Nothing follows, and the time for its delivery runs.
        self._is_whole = True

    def _one_by_one(
        self, rows: Rows, headers: Sequence[HeadersByName | None]
    ) -> Iterator[Delivery]:
        for number, value in enumerate(rows.values):
            key = None if rows.keys is None else rows.keys[number]
            yield self._publisher.send(value, key, headers[number])

    def finish(self) -> int:
        """Wait for the acknowledgements. Returns how many of the rows were stored before."""
        self._publisher.close()
        parts = [part.result() for many in self._many for part in many]
        return sum(part.count for part in parts if part.duplicate) + sum(
            row.result().duplicate for row in self._single
        )

    def abandon(self) -> None:
        """Wait until batches in flight end, well or not. Of rows that are sent one by one, the last
        wait for the rest of their batch if not all were sent: they are left to expire."""
        if self._is_whole or not self._single:
            with suppress(JetstreamError):
                self.finish()


class _Outgoing:
    """The batches of a task: those being put together, and those in flight."""

    def __init__(self, client: Client, timeout: float, identity: Identity) -> None:
        self.rows = 0
        self.duplicates = 0
        self._client = client
        self._timeout = timeout
        self._identity = identity
        self._sent: dict[str, _Sent] = {}
        self._filling: dict[str, _Five] = {}
        self._numbers: dict[str, int] = {}

    def publish(self, rows: Rows) -> None:
        for start, stop in pieces(rows):
            five = self._five(rows.subject, rows.headers is not None)
            five.add(rows.part(start, stop))
            if five.is_full:
                self._send(five)
        self.rows += len(rows)

    def _five(self, subject: str, has_headers: bool) -> _Five:
        """The five to which the next batch belongs. Records with headers are passed one by one, so
        they are not among others."""
        five = self._filling.get(subject)
        if five is not None and five.has_headers != has_headers:
            self._send(five)
            five = None
        if five is None:
            if len(self._filling) >= OPEN_MAX:
                self._send(next(iter(self._filling.values())))
            number = self._numbers.get(subject, 0)
            self._numbers[subject] = number + 1
            five = self._filling[subject] = _Five(subject, number, has_headers)
        return five

    def _send(self, five: _Five) -> None:
        if five.subject in self._sent:
            self._finish(five.subject)
        while len(self._sent) >= OPEN_MAX:
            self._finish(next(iter(self._sent)))
        del self._filling[five.subject]
        publisher = self._client.publisher(
            five.subject,
            linger=NEVER if five.has_headers else 0,
            max_bytes=min(five.batch_bytes, LONGEST_BYTES),
            buffer_bytes=BATCHES_KNOWN * LONGEST_BYTES,  # With less, a batch might be cut.
            delivery_timeout=self._timeout,
            producer_id=self._identity.producer_id(five.subject, five.number, five.content),
        )
        if publisher.batch_bytes < BATCH_BYTES:
            # The SDK would cut the five into more than the server remembers.
            publisher.close()
            raise InvalidRequestError(
                f"the NATS server takes batches of at most {publisher.batch_bytes} bytes, and a "
                f"write needs {BATCH_BYTES}: raise its max_payload to 1 MiB, which is the default"
            )
        if publisher.batch_bytes < five.batch_bytes:
            publisher.close()
            raise too_large(five.batch_bytes, publisher.batch_bytes)
        sent = self._sent[five.subject] = _Sent(publisher)
        sent.send(five.batches)

    def _finish(self, subject: str) -> None:
        self.duplicates += self._sent[subject].finish()
        del self._sent[subject]

    def finish(self) -> None:
        for five in list(self._filling.values()):
            self._send(five)
        for subject in list(self._sent):
            self._finish(subject)

    def abandon(self) -> None:
        """After a failure: wait until batches in flight end, well or not. Waiting rows are not
        sent, because a second attempt puts them into batches with the rows that are missing
        here."""
        for sent in self._sent.values():
            sent.abandon()


def publish(
    options: WriteOptions, batches: Iterator[pa.RecordBatch], identity: Identity
) -> tuple[int, int]:
    """Publish. Returns how many rows were published, and how many of them were stored before."""
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


def bytes_of(row: Rows) -> int:
    """Of a batch of one row, as the SDK counts."""
    headers = row.headers[0] if row.headers else None
    value, key, block = record_of(row.values[0], row.keys[0] if row.keys else None, headers)
    return RECORD_BYTES + len(value or b"") + len(key or b"") + len(block)


def pieces(rows: Rows) -> Iterator[tuple[int, int]]:
    """Row numbers [start, stop) of each batch: as many as fit `BATCH_BYTES`, at least one."""
    start = 0
    while start < len(rows):
        before = rows.ends[start - 1] if start else 0
        stop = max(start + 1, bisect_right(rows.ends, before + BATCH_BYTES))
        yield start, stop
        start = stop
