"""Arrow tables hold what the messages hold, and no buffer reaches Arrow unchecked."""

from __future__ import annotations

import re
import struct
import sys
from datetime import UTC

import pyarrow as pa
import pytest

from jetstream_client import CorruptBatchError, InvalidRequestError, Messages
from jetstream_client.reading.arrow import SCHEMA, schema_of
from jetstream_protocol.batch import HEADER_BYTES, Batch, crc32c
from jetstream_protocol.extras import install_command
from tests.unit.client.batches import batch_bytes, messages_of, numbered

BLOCK = b"NATS/1.0\r\na: 1\r\n\r\n"


def rows(messages: Messages) -> list[dict[str, object]]:
    return [
        {
            "stream": message.stream,
            "subject": message.subject,
            "offset": message.offset,
            "timestamp": message.timestamp,
            "key": message.key,
            "value": message.value,
            "headers": message.header_block or None,
        }
        for message in messages
    ]


@pytest.mark.parametrize(
    "data",
    [
        numbered(3),
        numbered(3) + numbered(4, 3),
        numbered(3) + numbered(4, 9),  # a gap that compaction left
        batch_bytes([b"v", None], keys=[b"k", None], header_blocks=[BLOCK, b""]),
        batch_bytes([b"a", b"b"], subjects=[b"x", b"y"]) + numbered(2, 2),
        batch_bytes([b"a", b"b"], timestamps=[1, 2]) + numbered(2, 2),
        batch_bytes([b"a", b"b"], offset_deltas=[1, 3], last_offset_delta=5),
        numbered(2) + batch_bytes([b"a"], 2, header_blocks=[BLOCK]),
        batch_bytes([], offset_deltas=[], last_offset_delta=3),
        b"",
    ],
    ids=range(10),
)
def test_a_table_holds_what_the_messages_hold(data: bytes) -> None:
    messages = messages_of(data)
    table = messages.to_arrow()
    assert table.schema == SCHEMA
    table.validate(full=True)
    found = [{**row, "timestamp": row["timestamp"].astimezone(UTC)} for row in table.to_pylist()]
    assert found == rows(messages)


def test_a_table_is_trimmed_like_the_messages() -> None:
    messages = messages_of(
        batch_bytes([b"a", b"b", None], keys=[b"1", None, b"3"], subjects=[b"x", b"y", b"z"]), 1
    )
    table = messages.to_arrow()
    assert table["offset"].to_pylist() == [1, 2]
    assert table["value"].to_pylist() == [b"b", None]
    assert table["key"].to_pylist() == [None, b"3"]
    assert table["subject"].to_pylist() == ["y", "z"]


def test_values_are_not_copied() -> None:
    messages = messages_of(numbered(1000))
    (chunk,) = messages.to_arrow()["value"].chunks
    body = messages.chunks[0].batch.body
    assert chunk.buffers()[2].address in range(
        pa.py_buffer(body).address, pa.py_buffer(body).address + len(body)
    )


@pytest.mark.parametrize(
    ("rows", "lengths"), [(100, [30]), (30, [30]), (29, [15, 15]), (7, [6] * 5)]
)
def test_record_batches_are_even_and_contiguous(rows: int, lengths: list[int]) -> None:
    messages = messages_of(b"".join(numbered(3, 3 * n) for n in range(10)))
    batches = messages.to_batches(rows)
    assert [len(batch) for batch in batches] == lengths
    assert pa.Table.from_batches(batches) == messages.to_arrow()
    assert messages_of(b"").to_batches() == []


def test_one_column_is_no_list_of_its_letters() -> None:
    with pytest.raises(TypeError, match="columns must be a list of names, not one str"):
        schema_of("value")


def test_columns_not_asked_for_are_not_built() -> None:
    damaged = with_body(batch_bytes([b"aa", b"bb"]), 4, struct.pack("<i", 2**31 - 1))
    messages = messages_of(damaged)
    assert messages.to_arrow(["offset"]).to_pydict() == {"offset": [0, 1]}
    with pytest.raises(CorruptBatchError):
        messages.to_arrow(["offset", "value"])
    with pytest.raises(InvalidRequestError, match="no column"):
        messages.to_arrow(["offsets"])


def with_body(data: bytes, position: int, replacement: bytes) -> bytes:
    """`data` with some bytes of its body replaced, and both CRCs made right again."""
    forged = bytearray(data)
    at = HEADER_BYTES + position
    forged[at : at + len(replacement)] = replacement
    body_length = Batch.decode(data).header.body_length
    body = bytes(forged[HEADER_BYTES : HEADER_BYTES + body_length])
    struct.pack_into("<I", forged, 12, crc32c(body))
    struct.pack_into("<I", forged, 84, crc32c(bytes(forged[:84])))
    return bytes(forged)


@pytest.mark.parametrize("wild", [-1, 2**31 - 1, 50])
def test_a_wild_value_offset_is_refused(wild: int) -> None:
    data = with_body(batch_bytes([b"aa", b"bb", b"cc"]), 4, struct.pack("<i", wild))
    with pytest.raises(CorruptBatchError, match="not valid"):
        messages_of(data).to_arrow()


def test_a_wild_offset_beyond_the_rows_asked_for_is_refused_too() -> None:
    data = with_body(batch_bytes([b"aa", b"bb", b"cc"]), 4, struct.pack("<i", 2**31 - 1))
    with pytest.raises(CorruptBatchError, match="not valid"):
        messages_of(data, offset=2).to_arrow()


@pytest.mark.parametrize("subjects", [b"\xff", [b"\xff", b"b"]])
def test_a_subject_that_is_no_text_is_refused(subjects: bytes | list[bytes]) -> None:
    with pytest.raises(CorruptBatchError, match="not valid"):
        messages_of(batch_bytes([b"1", b"2"], subjects=subjects)).to_arrow()


def test_without_pyarrow_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jetstream_client.reading.arrow")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=re.escape(install_command("arrow"))):
        messages_of(numbered(1)).to_arrow()
