"""What a producer may send as a batch, and how a leader checks it.

A producer computes its own checksums, so they do not prove that the contents are valid. **safety**
Everything in such a batch is checked before it is appended, because from then on every reader
trusts the leader. Checked are the bounds of every column, the decompressed size, the subject, and
that the batch has no column that only the server may write. docs/protocol.md, "Envelopes", lists
the rules.
"""

from __future__ import annotations

from typing import Final

from jetstream_protocol.batch import (
    BATCH_BYTES_MAX,
    COMPRESSION_MASK,
    HEADER_BYTES,
    NO_PRODUCER,
    Batch,
    EncodedBatch,
    decode_claims,
    size_fields,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    MessageTooLargeError,
)
from jetstream_protocol.subjects import has_control_bytes

EXPANDED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Upper bound on a decompressed body. Sixteen times NATS's default `max_payload`. A few kilobytes
that expand to the 64 MiB of the largest batch would cost the server, and each reader, far more than
their sender."""

BATCHES_IN_FLIGHT_MAX: Final = 5
"""Upper bound on a producer's unacknowledged batches. The leader remembers this many of its last
batches, and recognises them when they are repeated."""

_SETTABLE: Final = int(
    Flags.ZSTD | Flags.LZ4 | Flags.VALUE_VALIDITY | Flags.KEYS | Flags.KEY_VALIDITY
    | Flags.HEADERS | Flags.TIMESTAMPS
)  # fmt: skip


def unpacked_bytes(header: bytes) -> int:
    """Bytes that `open_batch` may have to decompress; 0 if the batch claims more than it may."""
    if len(header) < HEADER_BYTES:
        return 0
    flags, _, claimed = size_fields(header)
    return claimed if flags & COMPRESSION_MASK and claimed <= EXPANDED_BYTES_MAX else 0


def open_batch(found: bytes, body: bytes, subject: bytes) -> tuple[EncodedBatch, Batch]:
    """The batch with that header and body, ready to be appended to a log, and a view of it.

    found: the header as received. body: everything after it. subject: the subject on which it
    was sent. The fields that the leader stamps may have any value in `found`. Raises
    InvalidRequestError, MessageTooLargeError and CorruptBatchError.
    """
    length = len(found) + len(body)
    if len(found) < HEADER_BYTES:
        raise CorruptBatchError("batch header cut short")
    if length > BATCH_BYTES_MAX:
        raise MessageTooLargeError(f"a batch is at most {BATCH_BYTES_MAX} bytes long")
    claimed = decode_claims(found)
    if claimed.length != length:
        raise CorruptBatchError(f"batch of {claimed.length} bytes in {length}")
    _check_claims(claimed.flags, claimed.record_count, claimed.uncompressed_length)
    _check_producer(claimed.producer_id, claimed.producer_sequence)
    encoded = EncodedBatch(bytearray(found), body, claimed.record_count, claimed.last_offset_delta)
    if has_control_bytes(subject):
        raise InvalidRequestError("the subject has control characters")
    batch = Batch.of(claimed, body)
    batch.check_columns()
    if batch.layout.subject != subject:
        raise InvalidRequestError(
            f"the batch is of subject {_text(batch.layout.subject)}, "
            f"but was sent on {_text(subject)}"
        )
    return encoded, batch


def _check_claims(flags: int, record_count: int, uncompressed_length: int) -> None:
    """Check the header's claims before anything is decompressed or allocated."""
    foreign = flags & ~_SETTABLE
    if foreign:
        raise InvalidRequestError(
            f"producers must not set the batch flags {foreign:#x}: send one subject for all "
            "records, and nothing that only the server writes"
        )
    if not record_count:
        raise InvalidRequestError("a batch without records")
    check_expanded(flags, uncompressed_length)


def check_expanded(flags: int, uncompressed_length: int) -> None:
    """Raise MessageTooLargeError for a batch that would take too much memory."""
    if flags & COMPRESSION_MASK and uncompressed_length > EXPANDED_BYTES_MAX:
        raise MessageTooLargeError(
            f"a compressed batch holds at most {EXPANDED_BYTES_MAX} bytes, not "
            f"{uncompressed_length}"
        )


def _check_producer(producer_id: int, sequence: int) -> None:
    is_without_producer = (producer_id, sequence) == (NO_PRODUCER, -1)
    if not is_without_producer and (producer_id < 0 or sequence < 0):
        raise InvalidRequestError(
            f"producer id {producer_id} with sequence {sequence}: both must be -1, or neither "
            "negative"
        )


def _text(subject: bytes) -> str:
    """The subject, shortened so that it can be quoted in an error."""
    return ascii(subject[:64].decode("utf-8", "backslashreplace"))
