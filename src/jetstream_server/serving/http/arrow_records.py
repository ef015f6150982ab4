"""Records as Arrow, with the columns and types of the SDK's `to_arrow`. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from jetstream_server.serving.http.record_formats import Columns

SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("subject", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
    ]
)
"""headers: the header block as it came from NATS; null: there is none."""
TAIL = b"\xff\xff\xff\xff\0\0\0\0"
"""The end of a stream that is complete."""


def head() -> Any:
    return SCHEMA.serialize()


def encode(columns: Columns, indexes: Sequence[int]) -> Any:
    """The message of one record batch."""
    found = (
        [columns.offsets[at] for at in indexes],
        [columns.timestamps[at] for at in indexes],
        [columns.subjects[at].decode("utf-8", "replace") for at in indexes],
        [columns.keys[at] for at in indexes],
        [columns.values[at] for at in indexes],
        [columns.header_blocks[at] or None for at in indexes],
    )
    arrays = [pa.array(values, kind) for values, kind in zip(found, SCHEMA.types, strict=True)]
    return pa.record_batch(arrays, schema=SCHEMA).serialize()
