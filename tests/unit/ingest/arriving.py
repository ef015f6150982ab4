"""What publishers send to a stream's ingest: envelopes, batches, headers."""

from __future__ import annotations

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.envelope import encode_batch
from tests.unit.ingest.streams import INBOX, Stream

SUBJECT = b"orders.x"
PRODUCER = 2**62


def batch(*values: bytes, subject: bytes = SUBJECT, **options: object) -> EncodedBatch:
    return encode(list(values) or [b"a", b"b", b"c"], subject, **options)  # type: ignore[arg-type]


def produced(sequence: int, *values: bytes) -> bytes:
    """A batch of a producer's."""
    return encode_batch(
        batch(*values, producer_id=PRODUCER, producer_sequence=sequence), ack_inbox=INBOX
    )


def deliver(stream: Stream, *payloads: bytes, reply: bytes = b"") -> None:
    """All in one read, on one subject."""
    stream.deliver(*[(payload, reply) for payload in payloads], subject=SUBJECT)


def with_headers(*lines: bytes) -> bytes:
    return b"".join(line + b"\r\n" for line in (b"NATS/1.0", *lines, b""))


def with_id(message_id: bytes) -> bytes:
    return with_headers(b"Nats-Msg-Id: " + message_id)
