"""Records as Arrow, with the columns and types of the SDK's `to_arrow`. Needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jetstream_protocol.arrow_values import integers, strings

if TYPE_CHECKING:
    from jetstream_server.serving.http.record_formats import Columns

TIMESTAMP = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
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
    subjects = [columns.subjects[at].decode("utf-8", "replace").encode() for at in indexes]
    arrays = [
        integers([columns.offsets[at] for at in indexes], pa.int64()),
        integers([columns.timestamps[at] for at in indexes], TIMESTAMP),
        strings(subjects, pa.string()),
        strings([columns.keys[at] for at in indexes], pa.binary()),
        strings([columns.values[at] for at in indexes], pa.binary()),
        strings([columns.header_blocks[at] or None for at in indexes], pa.binary()),
    ]
    return pa.record_batch(arrays, schema=SCHEMA).serialize()
