"""Publishes a task's rows in batches, with acks, so that the server recognises rows that are
published twice: by NATS, or straight to the leaders of the streams.

The server stores no batch twice whose producer id and sequence it remembers, and it remembers the
last five batches of each producer. So five batches are put together. The producer id is computed
from their content and from what a second attempt at the same rows has in common with the first. The
five have sequences 0 to 4: the second attempt finds those known that the first one has stored.

This works if the rows of a partition come again in the same order, and as long as the server
remembers the producer: a day, and the last 10,000 producers of a stream. Rows in another order make
other producers: such rows may be stored twice, but no row is ever taken for another one.

The limits of batches depend only on the rows, and so does the producer of each batch. **safety**
Spark cuts a partition into record batches as it likes, so rows are taken by windows, and it cuts
off the rows of a task that it kills, so batches that are not full are sent only where enough
others wait, or at the end of the whole partition (`ending.whole`).

A stream has the rows that a task publishes on one subject in their order: five batches are sent
when the subject's five before them are acknowledged. Other subjects are not waited for. **safety**
Else a batch that is refused for a moment is stored after later rows, and a reader, or compaction,
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
from jetstream_client.publishing.record_accumulator import RECORD_BYTES, too_large_error
from jetstream_client.values.types import Via
from pyspark_jetstream.clients import client_for
from pyspark_jetstream.options import WriteOptions
from pyspark_jetstream.rows import Rows, by_subject
from pyspark_jetstream.transactions import Reached
from pyspark_jetstream.windows import windows

if TYPE_CHECKING:
    from jetstream_client import ManyDelivery, Publisher

BATCH_BYTES = 512 * 1024
"""Bytes of a batch, unless one row is longer: half of what a NATS server accepts by default."""

LONGEST_BYTES = 8 * 1024 * 1024
"""Bytes of a batch of one row: as many as the SDK allows. NATS may accept fewer."""

BATCHES_KNOWN = 5
"""How many of its last batches the server remembers of a producer."""

WAITING_BYTES = 32 * 1024 * 1024
"""Of rows that wait until they fill five batches. Beyond that the subject with the most is sent."""

SUBJECT_BYTES = 1024
"""Counted in addition for a subject of which rows wait."""

OPEN_MAX = 64
IN_FLIGHT_BYTES = 20 * 1024 * 1024
"""Subjects whose batches are in flight, and bytes of these. Before more is sent, the oldest is
awaited."""

MARSHAL_VERSION = 2
"""The last version that writes equal lists as equal bytes, even if their items are shared."""


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


class _Batch:
    """Rows that travel together. size: with a generous estimate."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.blocks: list[bytes] = []
        self.size = 0

    def __len__(self) -> int:
        return len(self.values)

    def add(self, rows: Rows, start: int, stop: int) -> None:
        """Add the rows [start, stop). All rows of a write have the same columns."""
        self.values += rows.values[start:stop]
        self.keys += (rows.keys or ())[start:stop]
        self.blocks += (rows.blocks or ())[start:stop]
        self.size += rows.ends[stop - 1] - (rows.ends[start - 1] if start else 0)

    @property
    def exact_size(self) -> int:
        """As the SDK counts."""
        columns = (self.values, self.keys, self.blocks)
        return RECORD_BYTES * len(self) + sum(
            len(each) for column in columns for each in column if each is not None
        )

    @property
    def content(self) -> bytes:
        return marshal.dumps((self.values, self.keys, self.blocks), MARSHAL_VERSION)


class _Five:
    """Up to five batches of one producer that were not sent yet."""

    def __init__(self, subject: str, number: int) -> None:
        self.subject = subject
        self.number = number
        self.batches = [_Batch()]

    @property
    def size(self) -> int:
        return SUBJECT_BYTES + sum(batch.size for batch in self.batches)

    @property
    def batch_bytes(self) -> int:
        """Of its longest batch, as the SDK counts. **safety** What NATS accepts does not decide
        where batches end: it may accept more when the rows come again, and other batches of one
        producer would count as those that are stored."""
        return max([BATCH_BYTES, *(batch.exact_size for batch in self.batches if len(batch) == 1)])

    @property
    def content(self) -> bytes:
        content = hashlib.sha256()
        for batch in self.batches:
            content.update(batch.content)
        return content.digest()

    def add(self, rows: Rows, start: int) -> int:
        """Add the rows from `start` on, as many as there is room for. Returns how far it came."""
        while start < len(rows):
            batch = self.batches[-1]
            before = rows.ends[start - 1] if start else 0
            stop = bisect_right(rows.ends, before + BATCH_BYTES - batch.size, start)
            if stop == start and len(batch):
                if len(self.batches) == BATCHES_KNOWN:
                    return start
                self.batches.append(_Batch())
                continue
            stop = max(start + 1, stop)  # A row may be longer than a batch.
            batch.add(rows, start, stop)
            start = stop
        return start


class _Sent:
    """Batches of one producer that are in flight."""

    def __init__(self, publisher: Publisher, size: int) -> None:
        self.size = size
        self._publisher = publisher
        self._many: list[ManyDelivery] = []

    def send(self, batches: Sequence[_Batch]) -> None:
        for batch in batches:
            blocks = batch.blocks if any(batch.blocks) else None
            self._many.append(
                self._publisher.publish_many(batch.values, batch.keys or None, header_blocks=blocks)
            )

    def finish(self) -> int:
        """Wait for the acknowledgements. Returns how many of the rows were stored before."""
        self._publisher.close()
        parts = [part.result() for many in self._many for part in many]
        return sum(part.count for part in parts if part.duplicate)


class _Outgoing:
    """The batches of a task: those being put together, and those in flight."""

    def __init__(
        self,
        client: Client,
        timeout: float,
        identity: Identity,
        reached: Reached | None = None,
        via: Via = "nats",
    ) -> None:
        """reached: notes the streams, in a transaction. via: as in `client.publisher`. **safety**
        It is no part of producers' ids: rows that come again by another way are recognised."""
        self.rows = 0
        self.duplicates = 0
        self._reached = reached or Reached()
        self._client = client
        self._timeout = timeout
        self._identity = identity
        self._via = via
        self._sent: dict[str, _Sent] = {}
        self._waiting: dict[str, _Five] = {}
        self._numbers: dict[str, int] = {}

    def publish(self, window: Sequence[Rows]) -> None:
        """Publish the rows of a window, or keep them until there are more."""
        for rows in window:
            self.rows += len(rows)
            place = 0
            while place < len(rows):
                five = self._five(rows.subject)
                place = five.add(rows, place)
                if place < len(rows):
                    self._send(five)
        if sum(five.size for five in self._waiting.values()) > WAITING_BYTES:
            self._make_room()

    def _five(self, subject: str) -> _Five:
        """The five to which the next row belongs."""
        five = self._waiting.get(subject)
        if five is None:
            number = self._numbers.get(subject, 0)
            self._numbers[subject] = number + 1
            five = self._waiting[subject] = _Five(subject, number)
        return five

    def _make_room(self) -> None:
        """Send the subjects with the most rows, until half of what may wait is left."""
        left = sum(five.size for five in self._waiting.values())
        for five in sorted(self._waiting.values(), key=lambda five: -five.size):
            if left <= WAITING_BYTES // 2:
                return
            left -= five.size
            self._send(five)

    def _send(self, five: _Five) -> None:
        """Send, unless the streams have all rows of the transaction. **safety** Such rows wait like
        others, because what waits decides about the batches of other subjects."""
        if self._reached.has_all(five.subject):
            self.duplicates += sum(map(len, five.batches))
            del self._waiting[five.subject]
            return
        if five.subject in self._sent:
            self._finish(five.subject)
        while self._sent and (
            len(self._sent) >= OPEN_MAX
            or five.size + sum(sent.size for sent in self._sent.values()) > IN_FLIGHT_BYTES
        ):
            self._finish(next(iter(self._sent)))
        del self._waiting[five.subject]
        longest = five.batch_bytes
        publisher = self._client.publisher(
            five.subject,
            linger=0,
            max_bytes=min(longest, LONGEST_BYTES),
            buffer_bytes=BATCHES_KNOWN * LONGEST_BYTES,  # With less, a batch might be cut.
            delivery_timeout=self._timeout,
            producer_id=self._identity.producer_id(five.subject, five.number, five.content),
            via=self._via,
        )
        if publisher.batch_bytes < BATCH_BYTES:
            # The SDK would cut the five into more than the server remembers.
            publisher.close()
            raise _too_little_error(publisher.batch_bytes, self._via)
        if publisher.batch_bytes < longest:
            publisher.close()
            raise too_large_error(longest, publisher.batch_bytes)
        sent = self._sent[five.subject] = _Sent(publisher, five.size)
        sent.send(five.batches)

    def _finish(self, subject: str) -> None:
        self.duplicates += self._sent[subject].finish()
        del self._sent[subject]

    def finish(self) -> None:
        for five in list(self._waiting.values()):
            self._send(five)
        for subject in list(self._sent):
            self._finish(subject)

    def abandon(self) -> None:
        """After a failure: wait until batches in flight end, well or not. Waiting rows are not
        sent, because a second attempt puts them into batches with the rows that are missing
        here."""
        for sent in self._sent.values():
            with suppress(JetstreamError):
                sent.finish()


def _too_little_error(batch_bytes: int, via: Via) -> InvalidRequestError:
    who, what = "the NATS server takes", "raise its max_payload to 1 MiB, which is the default"
    if via == "direct":
        who, what = "a node takes", "raise its ingest.batch_bytes_max, by default 16 MiB"
    elif via == "auto":
        who = "a node or the NATS server takes"
        what = "raise ingest.batch_bytes_max, or NATS's max_payload, to 1 MiB"
    return InvalidRequestError(
        f"{who} batches of at most {batch_bytes} bytes, and a write needs {BATCH_BYTES}: {what}"
    )


def publish(
    options: WriteOptions,
    batches: Iterator[pa.RecordBatch],
    identity: Identity,
    reached: Reached | None = None,
) -> tuple[int, int]:
    """Publish. Returns how many rows were published, and how many of them were stored before.
    reached: notes the streams, in a transaction."""
    client = client_for(options.config)
    outgoing = _Outgoing(client, options.config.timeout, identity, reached, options.via)
    try:
        for window in windows(batches):
            outgoing.publish(by_subject(window, options.subject))
        outgoing.finish()
    except BaseException:
        outgoing.abandon()
        raise
    return outgoing.rows, outgoing.duplicates
