"""How large records may be by their stream's setting `max_message_bytes`."""

from __future__ import annotations

from jetstream_protocol.batch import Batch
from jetstream_protocol.errors import MessageTooLargeError


def check_record_sizes(batch: Batch, limit: int) -> None:
    """Raise MessageTooLargeError if a record of the batch is above the limit; 0: there is none."""
    if not limit:
        return
    sizes = [len(value or b"") for value in batch.values()]
    if batch.layout.keys is not None:
        sizes = [size + len(key or b"") for size, key in zip(sizes, batch.keys(), strict=True)]
    if batch.layout.header_blocks is not None:
        sizes = [size + len(h) for size, h in zip(sizes, batch.header_blocks(), strict=True)]
    if sizes and max(sizes) > limit:
        raise above_limit_error(max(sizes), limit)


def above_limit_error(size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a record of {size} bytes, with its key and headers, is above the stream's "
        f"max_message_bytes: {limit}"
    )
