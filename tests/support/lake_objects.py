"""Objects of the lake whose bytes are at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.batch import iterate
from jetstream_server.lake.parquet_object import Encoded, decode_group, encode_batches, read_footer

if TYPE_CHECKING:
    from jetstream_server.lake.typed_columns import TypedColumns


def encode(data: bytes, typed: TypedColumns | None = None) -> Encoded:
    """The object of whole batches in a row, as the log stores them."""
    return encode_batches(iterate(data), typed)


def decode(data: bytes) -> bytes:
    """All batches of an object. Raises CorruptBatchError."""
    footer = read_footer(lambda position, length: data[position : position + length], len(data))
    return b"".join(
        decode_group(footer, at, data[place.position : place.position + place.length])
        for at, place in enumerate(footer.groups)
    )
