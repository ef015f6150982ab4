"""Records over HTTP: whatever a record holds, its row is read back from every format."""

from __future__ import annotations

import base64
import csv
import io
import json
import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import Batch, encode
from jetstream_protocol.types import WallUs
from jetstream_server.serving.http import record_formats
from jetstream_server.serving.http.record_formats import (
    ArrowStream,
    Columns,
    Csv,
    Format,
    JsonLines,
    ServerSentEvents,
    gathered,
)

blobs = st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode)
blocks = st.just(b"") | st.binary(max_size=30).map(lambda block: b"NATS/1.0\r\n" + block)
records = st.lists(st.tuples(blobs, blobs, blocks), min_size=1, max_size=6)


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    text = row[name]
    if text is None:
        return None
    return base64.b64decode(text) if row[f"{name}_encoding"] == "base64" else str(text).encode()


@given(records, st.sampled_from([2, record_formats.PIECE_BYTES]))
def test_every_record_is_a_row_of_every_format(
    found: list[tuple[Any, Any, bytes]], piece_bytes: int
) -> None:
    """piece_bytes: with 2 most records are large."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(record_formats, "PIECE_BYTES", piece_bytes)
        check(found)


def check(found: list[tuple[Any, Any, bytes]]) -> None:
    def encoded(form: Format) -> bytes:
        pieces = [*gathered(form.pieces(columns, every))]
        assert all(pieces), "an empty piece is the end"
        return b"".join(pieces)

    keys, values, headers = (list(column) for column in zip(*found, strict=True))
    subject = "löwe.\n,\"'".encode()
    batch = encode(values, subject, keys=keys, header_blocks=headers)
    batch.stamp(0, 0, WallUs(1))
    columns, every = Columns(Batch.decode(batch.to_bytes())), range(len(found))
    lines = [json.loads(line) for line in encoded(JsonLines()).splitlines()]
    assert [row["offset"] for row in lines] == list(range(len(found)))
    assert {row["subject"] for row in lines} == {subject.decode()}
    assert [(_bytes(row, "key"), _bytes(row, "value")) for row in lines] == [
        *zip(keys, values, strict=True)
    ]
    events = encoded(ServerSentEvents()).decode().split("\n\n")[:-1]
    assert [json.loads(event.partition("data: ")[2]) for event in events] == lines
    text = (Csv().head() + encoded(Csv())).decode()
    table = csv.DictReader(io.StringIO(text, newline=""))
    assert [row["value"] for row in table] == [row["value"] or "" for row in lines]
    arrow = ArrowStream()
    body = arrow.head() + encoded(arrow) + arrow.tail()
    found_table = pa.ipc.open_stream(body).read_all()
    assert found_table["key"].to_pylist() == keys
    assert found_table["value"].to_pylist() == values
    assert found_table["headers"].to_pylist() == [block or None for block in headers]


@pytest.mark.parametrize("form", [JsonLines(), ServerSentEvents(), Csv()], ids=lambda f: f.name)
def test_a_long_value_is_never_there_in_all_its_length_in_json(form: Format) -> None:
    length = 2 << 20
    batch = encode([b"\x01" * length], b"s")
    batch.stamp(0, 0, WallUs(1))
    columns = Columns(Batch.decode(batch.to_bytes()))
    tracemalloc.start()
    try:
        written = sum(map(len, gathered(form.pieces(columns, [0]))))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert written > length
    assert peak < 2 * length, "the text of the value, and a piece; in JSON it is six times as long"
