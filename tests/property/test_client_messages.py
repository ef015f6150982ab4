"""Messages and Arrow tables against the plain lists the batches were built from, and hostile
batches: refused, or read within their own bytes."""

from __future__ import annotations

import struct

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jetstream_client import CorruptBatchError
from jetstream_client.reading.messages import MessageCollector, Messages
from jetstream_protocol.batch import HEADER_BYTES, crc32c
from tests.property.batches import Records, records

Row = tuple[int, bytes, bytes | None, bytes | None, bytes]


def rows_of(batch: Records, base_offset: int) -> list[Row]:
    count = len(batch.values)
    deltas = range(count) if batch.offset_deltas is None else batch.offset_deltas
    return [
        (base_offset + delta, subject, key, value, block)
        for delta, subject, key, value, block in zip(
            deltas,
            batch.subject_column,
            batch.keys or [None] * count,
            batch.values,
            batch.header_blocks or [b""] * count,
            strict=True,
        )
    ]


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[Row]]:
    """A few batches back to back, and their records."""
    data, rows, base_offset = b"", [], draw(st.integers(0, 2**40))
    for batch in draw(st.lists(records(min_size=0), max_size=4)):
        if not batch.values and batch.last_offset_delta is None:
            continue
        data += batch.to_bytes(base_offset)
        rows += rows_of(batch, base_offset)
        last = batch.last_offset_delta
        base_offset += (len(batch.values) if last is None else last + 1) + draw(st.integers(0, 3))
    return data, rows


@given(logs(), st.data())
def test_any_range_holds_exactly_its_records(
    log: tuple[bytes, list[Row]], data: st.DataObject
) -> None:
    batches, rows = log
    offsets = [row[0] for row in rows] or [0]
    start = data.draw(st.integers(max(0, offsets[0] - 2), offsets[-1] + 2))
    end = data.draw(st.none() | st.integers(start, offsets[-1] + 2))
    count_max = data.draw(st.none() | st.integers(1, 10))
    cutter = MessageCollector("s", start, end=end, count_max=count_max)
    cutter.add(batches)
    messages = cutter.messages()
    expected = [row for row in rows if row[0] >= start and (end is None or row[0] < end)]
    expected = expected[:count_max]
    found = [(m.offset, m.subject.encode(), m.key, m.value, m.header_block) for m in messages]
    assert found == expected
    assert [messages[index] for index in range(len(messages))] == list(messages)
    # Going on from next_offset neither repeats nor skips a record.
    after = expected[-1][0] + 1 if expected else start
    assert cutter.next_offset >= after
    skipped = [row for row in rows if after <= row[0] < cutter.next_offset]
    assert skipped == []


@given(logs(), st.integers(0, 2**41))
def test_a_table_holds_what_the_messages_hold(log: tuple[bytes, list[Row]], start: int) -> None:
    cutter = MessageCollector("s", min(start, log[1][0][0] if log[1] else 0))
    cutter.add(log[0])
    messages = cutter.messages()
    table = messages.to_arrow()
    table.validate(full=True)
    assert table["offset"].to_pylist() == messages.offsets()
    assert table["value"].to_pylist() == messages.values()
    assert table["subject"].to_pylist() == messages.subjects()
    assert table["key"].to_pylist() == [m.key for m in messages]
    assert table["headers"].to_pylist() == [m.header_block or None for m in messages]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [m.timestamp_us for m in messages]


@given(records(), st.data())
def test_hostile_batches_with_good_crcs_are_refused_or_read(
    batch: Records, data: st.DataObject
) -> None:
    """Any bytes of the body replaced, both CRCs right: nothing crashes, nothing is half checked."""
    forged = bytearray(batch.to_bytes())
    body_length = struct.unpack_from("<I", forged, 80)[0]
    for _ in range(data.draw(st.integers(1, 4))):
        at = HEADER_BYTES + 4 * data.draw(st.integers(0, max(0, body_length // 4 - 1)))
        word = data.draw(st.sampled_from([0, 1, 7, 2**31 - 1, 2**31, 2**32 - 1]))
        struct.pack_into("<I", forged, at, word)
    body = bytes(forged[HEADER_BYTES : HEADER_BYTES + body_length])
    struct.pack_into("<I", forged, 12, crc32c(body))
    struct.pack_into("<I", forged, 84, crc32c(bytes(forged[:84])))
    try:
        cutter = MessageCollector("s", 0)
        cutter.add(forged)
        messages = cutter.messages()
        assert len(list(messages)) == len(messages)
        messages.to_arrow().validate(full=True)
    except CorruptBatchError:
        pass


@given(logs(), st.integers(1, 5), st.booleans())
def test_messages_are_split_without_a_loss(
    log: tuple[bytes, list[Row]], count: int, newest_first: bool
) -> None:
    cutter = MessageCollector("s", 0)
    cutter.add(log[0])
    rest: Messages | None = cutter.messages()
    assert rest is not None
    if newest_first:
        chunks = [chunk.newest_first() for chunk in reversed(rest.chunks)]
        rest = Messages("s", chunks, next_offset=0)
    whole, parts = rest, []
    while rest is not None:
        part, rest = rest.split(count, newest_first=newest_first)
        parts.append(part)
        if rest is not None:
            assert len(part) == count
            last = part.offsets()[-1]
            assert part.next_offset == (last if newest_first else last + 1)
            assert part.last_epoch == part.chunks[-1].batch.header.leader_epoch
    assert [row for part in parts for row in part] == list(whole)
    assert [row for part in parts for row in part.values()] == whole.values()
    assert (parts[-1].next_offset, parts[-1].last_epoch) == (whole.next_offset, whole.last_epoch)
