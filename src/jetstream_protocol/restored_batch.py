"""Checks batches that are restored into a log with their old offsets and times.

A client that restores a stream sends batches of a backup, or batches made of records of another
system. **safety** Every byte is checked as in a producer's batch: from then on readers trust the
leader. docs/protocol.md, "Restoring", lists the rules.

Invariant: the batches that `open_restored` returns follow each other without a gap. Offsets that
the source has lost or removed are covered by batches without records (`filler`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from jetstream_protocol.batch import (
    HEADER_BYTES,
    NO_PRODUCER,
    RECORDS_MAX,
    Batch,
    EncodedBatch,
    decode_header,
    encode,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError, MessageTooLargeError
from jetstream_protocol.producer_batch import check_expanded
from jetstream_protocol.types import WallUs

RESTORE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Upper bound on one request: a worker thread checks it in a few milliseconds. gRPC reads a whole
request into memory before the server can refuse it."""


class RestoredBatch(NamedTuple):
    """A batch to be appended unchanged, and the fields of its header."""

    encoded: EncodedBatch
    base_offset: int
    next_offset: int
    timestamp: WallUs


def open_restored(data: bytes) -> list[RestoredBatch]:
    """The batches in `data`, each ready to be stamped, without their producers.

    Raises InvalidRequestError, MessageTooLargeError and CorruptBatchError.
    """
    if not data:
        raise InvalidRequestError("nothing to restore: the request holds no batch")
    if len(data) > RESTORE_BYTES_MAX:
        raise MessageTooLargeError(f"restore at most {RESTORE_BYTES_MAX} bytes in one request")
    opened: list[RestoredBatch] = []
    position = 0
    while position < len(data):
        batch = _open(data, position)
        if opened and batch.base_offset != opened[-1].next_offset:
            raise InvalidRequestError(
                f"a batch at offset {batch.base_offset} follows one that ends before "
                f"{opened[-1].next_offset}"
            )
        if opened and batch.timestamp < opened[-1].timestamp:
            raise InvalidRequestError(f"the batch at offset {batch.base_offset} goes back in time")
        opened.append(batch)
        position += batch.encoded.length
    return opened


def _open(data: bytes, position: int) -> RestoredBatch:
    header = decode_header(data, position)
    end = position + header.length
    if end > len(data):
        raise CorruptBatchError("batch cut short", position=position)
    if header.flags & Flags.AFTER_GAP:
        raise InvalidRequestError("a gap between batches: cover it by batches without records")
    check_expanded(header.flags, header.uncompressed_length)
    if header.append_timestamp < 0:
        raise InvalidRequestError("a batch that was appended before 1970")
    body = data[position + HEADER_BYTES : end]
    Batch.of(header, body).check_columns()
    encoded = EncodedBatch(
        bytearray(data[position : position + HEADER_BYTES]),
        body,
        header.record_count,
        header.last_offset_delta,
    )
    encoded.set_producer(NO_PRODUCER, -1)
    return RestoredBatch(encoded, header.base_offset, header.next_offset, header.append_timestamp)


def filler(start: int, stop: int, timestamp: WallUs) -> Iterator[bytes]:
    """Batches without records that cover the offsets [start, stop)."""
    while start < stop:
        count = min(stop - start, RECORDS_MAX)
        batch = encode([], b"", offset_deltas=[], last_offset_delta=count - 1)
        batch.stamp(start, 0, timestamp)
        yield batch.to_bytes()
        start += count
