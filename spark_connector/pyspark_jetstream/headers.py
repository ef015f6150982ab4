"""Raw NATS header blocks in the form of Spark's Kafka source: `array<struct<key, value>>`.

Headers named `Jetstream-…` are left out: their information is in the columns `key` and `value`, or
was meant for the server. A stream copied with these headers would contain it twice.

A block is `NATS/1.0`, then lines `Name: value`, then an empty line, each ended by CR LF. A whole
column is parsed by a few calls to Arrow. A record without headers has null.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", HEADER))


def parsed_headers(blocks: Any) -> Any:
    """Parse a binary array into one of `HEADERS`. Blanks around names and values are removed."""
    if blocks.null_count == len(blocks):
        return pa.nulls(len(blocks), HEADERS)
    import pyarrow.compute as pc  # As in filters.py.

    # Viewed as text, without a check: only text can be trimmed, and that works byte by byte.
    lines = pc.split_pattern(blocks.fill_null(b"").view(pa.string()), "\r\n")
    flat = lines.flatten()
    of_block = pc.list_parent_indices(lines)
    is_first = pc.not_equal(pc.pairwise_diff(of_block), 0).fill_null(True)
    is_line = pc.and_not(pc.greater_equal(pc.find_substring(flat, ":"), 0), is_first)
    is_ours = pc.starts_with(pc.ascii_ltrim(flat, " \t"), "Jetstream-")
    is_header = pc.and_not(is_line, is_ours)
    halves = pc.split_pattern(flat.filter(is_header), ":", max_splits=1)
    names = pc.ascii_trim(pc.list_element(halves, 0), " \t")
    values = pc.ascii_trim(pc.list_element(halves, 1), " \t")
    headers = pa.StructArray.from_arrays(
        [_text(names), values.view(pa.binary())], fields=list(HEADER)
    )
    # The number of headers before each line, and so before each block.
    before = pa.concat_arrays(
        [pa.array([0], pa.int32()), pc.cumulative_sum(is_header.cast(pa.int32()))]
    )
    offsets = before.take(lines.offsets)
    is_without = pc.equal(pc.pairwise_diff(offsets).slice(1), 0)
    return pa.ListArray.from_arrays(offsets, headers, type=HEADERS, mask=is_without)


def _text(names: Any) -> Any:
    """Names as text. They are UTF-8, except hostile ones, whose other bytes become U+FFFD."""
    raw = names.view(pa.binary())
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([name.decode(errors="replace") for name in raw.to_pylist()], pa.string())
