"""Gives the records of a producer's batch the stream's own keys.

On a stream with `key: subject` a record's key is its subject. A producer need not know that: its
batch is encoded anew. It becomes the same bytes each time, so that a repeated batch is still
recognised by its CRC: hence it is stored uncompressed.
"""

from __future__ import annotations

from jetstream_protocol import batch as batches
from jetstream_protocol.batch import Batch, EncodedBatch, decode_header
from jetstream_protocol.errors import MessageTooLargeError
from jetstream_protocol.producer_batch import EXPANDED_BYTES_MAX
from jetstream_server.ingest.stream.admission import other_key_error
from jetstream_server.ingest.stream.headers import deletes


def keyed_by_subject(encoded: EncodedBatch, batch: Batch) -> tuple[EncodedBatch, Batch]:
    """The batch with its subject as the key of each record, and a tombstone for each that deletes
    it. Raises InvalidRequestError for other keys, MessageTooLargeError."""
    subject, count = batch.layout.subject, len(batch)
    keys = set(Batch.keys(batch)) if batch.layout.keys is not None else set()
    if keys - {None, subject}:
        raise other_key_error()
    values = batch.values()
    blocks = batch.header_blocks() if batch.layout.header_blocks is not None else None
    if blocks is not None:
        values = [
            None if deletes(block, value) else value
            for value, block in zip(values, blocks, strict=True)
        ]
    if batch.header.uncompressed_length + count * len(subject) > EXPANDED_BYTES_MAX:
        raise MessageTooLargeError(
            f"with their subject as a key these {count} records are longer than "
            f"{EXPANDED_BYTES_MAX} bytes: send fewer at once"
        )
    header = batch.header
    keyed = batches.encode(
        values,
        subject,
        keys=[subject] * count,
        header_blocks=blocks,
        timestamps=batch.timestamps() if batch.layout.timestamps >= 0 else None,
        producer_id=header.producer_id,
        producer_sequence=header.producer_sequence,
    )
    keyed.stamp(0, 0, header.append_timestamp)
    return keyed, Batch.of_checked(decode_header(keyed.header), keyed.plain_body)
