"""Splits deliveries with envelopes, in order, into runs of records and whole batches.

Handles only reads that contain the cookie's first byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from jetstream_protocol.batch import COMPRESSION_MASK, Batch, BatchHeader, EncodedBatch
from jetstream_protocol.envelope import COOKIE, BatchEnvelope, RecordEnvelope, parse
from jetstream_protocol.errors import UnsupportedHeaderError
from jetstream_protocol.header_names import EXPECTED_LAST_SUBJECT_SEQUENCE, MSG_ID, ROLLUP
from jetstream_protocol.producer_batch import open_batch, unpacked_bytes
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.stream.acks import Direct
from jetstream_server.ingest.stream.admission import Opened
from jetstream_server.ingest.stream.headers import (
    NOTHING,
    Directives,
    asks_for,
    parse_directives,
)
from jetstream_server.ingest.stream.unpacking import unusual_bytes


class Run(NamedTuple):
    """Consecutive records. opened: the records that came in an envelope, by position; the delivery
    holds their content and reply subjects."""

    delivery: Delivery
    opened: dict[int, Opened]


class ArrivedBatch(NamedTuple):
    """A batch as received. reply: where its answer goes, b"" for nowhere. header_block: of the
    NATS message around it, b"" for none."""

    envelope: BatchEnvelope
    subject: bytes
    reply: bytes | Direct
    header_block: bytes

    @property
    def unpacked_bytes(self) -> int:
        """How many bytes `open` may have to decompress."""
        return unpacked_bytes(self.envelope.header)

    @property
    def unusual_bytes(self) -> int:
        """How many of these count as packed too closely."""
        length = len(self.envelope.header) + len(self.envelope.body)
        return unusual_bytes(self.unpacked_bytes, length)

    def open(self) -> tuple[EncodedBatch, Batch, Directives]:
        """Decode the batch, ready to append, and what it asks for. Raises JetstreamError if it must
        not be appended."""
        if self.header_block:
            _refuse_asking(self.header_block, "around a batch")
        encoded, batch = open_batch(self.envelope.header, self.envelope.body, self.subject)
        column = batch.layout.header_blocks
        asked = NOTHING
        if column is not None:
            data = batch.data(column)
            if isinstance(self.reply, Direct) and _is_one_message(batch.header):
                asked = _asked_for(data)
            else:
                _refuse_asking(data, "in a batch")
        return encoded, batch, asked


def _is_one_message(header: BatchHeader) -> bool:
    """Whether a batch is what a leader makes of a single message: only there are message ids looked
    for after a restart (log/producers.py)."""
    is_packed = header.flags & COMPRESSION_MASK
    return header.record_count == 1 and header.producer_id < 0 and not is_packed


def _asked_for(header_block: bytes) -> Directives:
    """What a single message asks for. Raises UnsupportedHeaderError for anything else than its id
    and what concerns its subject: the request has fields for that."""
    if not asks_for(header_block):
        return NOTHING
    asked = parse_directives(header_block)
    if asked._replace(message_id=None, expected_subject_end=None, rollup=False) != NOTHING:
        raise UnsupportedHeaderError(
            f"headers other than {MSG_ID}, {EXPECTED_LAST_SUBJECT_SEQUENCE} and {ROLLUP} are not "
            "supported in a batch"
        )
    return asked


def _refuse_asking(header_blocks: bytes, where: str) -> None:
    """Raise UnsupportedHeaderError if the joined header blocks ask this server for anything."""
    name = asks_for(header_blocks)
    if name:
        raise UnsupportedHeaderError(f"header {name} is not supported {where}")


def holds_envelopes(delivery: Delivery) -> bool:
    """Whether any message begins like an envelope."""
    return delivery.may_be_enveloped and any(map(bytes.startswith, delivery.values, repeat(COOKIE)))


def split_delivery(delivery: Delivery, acks: str) -> Iterator[Run | ArrivedBatch]:
    """Split a delivery into its parts, in order. acks: the stream's option."""
    blocks = delivery.header_blocks or [b""] * len(delivery)
    run = _RunBuilder(delivery.sid)
    for value, subject, nats_reply, block in zip(
        delivery.values, delivery.subjects, delivery.replies, blocks, strict=True
    ):
        envelope = parse(value)
        reply = nats_reply if acks == "reply" else b""
        if envelope is None:
            run.add(value, subject, reply, block)
            continue
        if acks != "off" and envelope.ack_inbox:
            reply = envelope.ack_inbox
        if isinstance(envelope, RecordEnvelope):
            run.add(value, subject, reply, block, envelope)
            continue
        if run.delivery.values:
            yield run.take()
        yield ArrivedBatch(envelope, subject, reply, block)
    if run.delivery.values:
        yield run.take()


class _RunBuilder:
    """Collects consecutive records."""

    def __init__(self, sid: int) -> None:
        self._begin(sid)

    def _begin(self, sid: int) -> None:
        self.delivery = Delivery(sid)
        self._blocks: list[bytes] = []
        self._opened: dict[int, Opened] = {}

    def add(
        self, value: bytes, subject: bytes, reply: bytes, block: bytes,
        envelope: RecordEnvelope | None = None,
    ) -> None:  # fmt: skip
        delivery = self.delivery
        if envelope is not None:
            around = block if envelope.header_block else b""
            self._opened[len(delivery)] = Opened(envelope, around)
            value = envelope.value or b""
            block = envelope.header_block or block
        delivery.values.append(value)
        delivery.subjects.append(subject)
        delivery.replies.append(reply)
        self._blocks.append(block)

    def take(self) -> Run:
        """Return the collected records, and begin again."""
        run = Run(self.delivery, self._opened)
        run.delivery.header_blocks = self._blocks if any(self._blocks) else None
        self._begin(run.delivery.sid)
        return run
