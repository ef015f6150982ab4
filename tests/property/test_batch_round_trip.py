"""Batches give back what they were built from, and every damaged byte is noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import (
    HEADER_BYTES,
    MAGIC,
    Batch,
    decode_header,
    extent_fields,
    iterate,
    producer_fields,
    size_fields,
    with_flags,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from tests.property.batches import INT64, Records, records

OFFSETS = st.integers(0, 2**62)


@given(records(min_size=0), OFFSETS, OFFSETS, INT64)
def test_every_combination_of_columns_round_trips(
    given_records: Records, base_offset: int, leader_epoch: int, timestamp: int
) -> None:
    batch = Batch.decode(given_records.to_bytes(base_offset, leader_epoch, timestamp))
    batch.check_columns()
    count = len(given_records.values)
    assert len(batch) == count
    assert batch.values() == given_records.values
    assert batch.subjects() == list(given_records.subject_column)
    assert batch.keys() == (given_records.keys or [None] * count)
    assert batch.header_blocks() == (given_records.header_blocks or [b""] * count)
    assert batch.timestamps() == (given_records.timestamps or [timestamp] * count)
    deltas = given_records.offset_deltas or range(count)
    assert list(batch.offsets()) == [base_offset + delta for delta in deltas]
    assert batch.header.leader_epoch == leader_epoch


@given(records())
def test_the_length_of_a_batch_is_what_its_header_says(given_records: Records) -> None:
    encoded = given_records.encode()
    encoded.stamp(0, 0, 0)
    data = encoded.to_bytes()
    assert len(data) == encoded.length == decode_header(data).length
    assert len(data) % 8 == 0


@given(records(min_size=0), OFFSETS, st.integers(-1, 2**62), st.integers(-1, 2**31 - 1))
def test_fields_read_one_by_one_are_those_of_the_whole_header(
    given_records: Records, base_offset: int, producer_id: int, sequence: int
) -> None:
    encoded = given_records.encode()
    encoded.set_producer(producer_id, sequence)
    encoded.stamp(base_offset, 0, 0)
    data = encoded.to_bytes()
    header = decode_header(data)
    extent = (MAGIC, header.flags, header.length, header.base_offset, header.last_offset_delta)
    assert extent_fields(data) == extent
    sizes = (header.flags, header.last_offset_delta, header.uncompressed_length)
    assert size_fields(data) == sizes
    assert producer_fields(data) == (header.flags, sequence, producer_id)


@given(records(), OFFSETS)
def test_other_flags_change_nothing_else(given_records: Records, base_offset: int) -> None:
    data = given_records.to_bytes(base_offset, 3, 1_000)
    flags = decode_header(data).flags | Flags.AFTER_GAP
    changed = with_flags(data, flags)
    assert decode_header(changed) == decode_header(data)._replace(flags=flags)
    assert changed[HEADER_BYTES:] == data[HEADER_BYTES:]


@given(records(), st.binary(max_size=9), st.sampled_from((0, 16_384, 16_385, 70_000)))
def test_a_batch_is_the_same_in_any_kind_of_buffer(
    given_records: Records, before: bytes, length: int
) -> None:
    """Of a bytearray nothing is copied, and long bodies are checked piece by piece."""
    if given_records.values and length:
        given_records.values[0] = bytes(length)
    data = before + given_records.to_bytes(7, 3, 1_000)
    expected = Batch.decode(data, len(before))
    for buffer in (bytearray(data), memoryview(data)):
        batch = Batch.decode(buffer, len(before))
        batch.check_columns()
        assert batch.header == expected.header
        assert bytes(batch.body) == expected.body
        assert batch.values() == expected.values() == given_records.values
        assert batch.keys() == expected.keys()
        assert batch.subjects() == expected.subjects()
        assert batch.header_blocks() == expected.header_blocks()
        assert batch.timestamps() == expected.timestamps()
        assert list(batch.offsets()) == list(expected.offsets())


@given(records(), st.sampled_from((0, 16_384, 70_000)), st.data())
def test_every_flipped_byte_is_detected(
    given_records: Records, length: int, data: st.DataObject
) -> None:
    if given_records.values and length:
        given_records.values[0] = bytes(length)
    good = given_records.to_bytes(7, 3, 1_000)
    position = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    bad = bytearray(good)
    bad[position] ^= flip
    with pytest.raises(CorruptBatchError):
        Batch.decode(bad)
    with pytest.raises(CorruptBatchError):
        Batch.decode(bytes(bad))


@given(records(max_size=5), st.data())
def test_every_truncation_is_detected(given_records: Records, data: st.DataObject) -> None:
    good = given_records.to_bytes()
    with pytest.raises(CorruptBatchError):
        Batch.decode(good[: data.draw(st.integers(0, len(good) - 1))])


@given(records(), INT64.filter(lambda n: n >= 0), INT64)
def test_stamping_changes_neither_the_body_nor_its_checksum(
    given_records: Records, offset: int, timestamp: int
) -> None:
    encoded = given_records.encode()
    encoded.stamp(0, 0, 0)
    before = encoded.to_bytes()
    encoded.stamp(offset, 5, timestamp)
    after = encoded.to_bytes()
    assert after[HEADER_BYTES:] == before[HEADER_BYTES:]
    assert decode_header(after).body_crc == decode_header(before).body_crc


@given(st.lists(records(max_size=4), max_size=4))
def test_batches_back_to_back_are_read_one_by_one(batches: list[Records]) -> None:
    data = b"".join(item.to_bytes() for item in batches)
    assert [batch.values() for batch in iterate(data)] == [item.values for item in batches]
