"""Batches that go into an object of the lake come out as they were, and damage is refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.batch import Batch, iterate
from jetstream_protocol.batch import encode as encode_batch
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from jetstream_server.lake import parquet_object
from jetstream_server.lake.parquet_object import decode_group, read_footer
from tests.property.batches import Records, records
from tests.support.lake_objects import decode, encode

LOGS = st.lists(records(min_size=0), min_size=1, max_size=6)


def log_of(batches: list[Records], compression: bool = True) -> bytes:
    data, offset = b"", 7
    for at, each in enumerate(batches):
        encoded = each.encode()
        if each.compression and not compression:
            encoded = Records(**{**vars(each), "compression": 0}).encode()
        encoded.stamp(offset, at // 2, 1_000_000 + at)
        data += encoded.to_bytes()
        offset += encoded.last_offset_delta + 1
    return data


def meaning(data: bytes) -> list[object]:
    return [_meaning(batch) for batch in iterate(data)]


def _meaning(batch: Batch) -> object:
    header = batch.header
    same = (
        header.base_offset, header.leader_epoch, header.append_timestamp, header.record_count,
        header.last_offset_delta, header.producer_id, header.producer_sequence,
        header.min_timestamp, header.max_timestamp,
        header.flags & ~(Flags.ZSTD | Flags.LZ4),
    )  # fmt: skip
    subjects = batch.subjects() if len(batch) else []
    return (
        same, list(batch.offsets()), batch.values(), batch.keys(), batch.header_blocks(), subjects,
        batch.timestamps(),
    )  # fmt: skip


@settings(max_examples=40)
@given(LOGS)
def test_plain_batches_come_back_to_the_byte(batches: list[Records]) -> None:
    data = log_of(batches, compression=False)
    encoded = encode(data)
    is_as_compaction_leaves_it = all(each.values or each.subjects == b"" for each in batches)
    if is_as_compaction_leaves_it:
        assert encoded.changed == 0
        assert decode(encoded.data) == data
    assert meaning(decode(encoded.data)) == meaning(data)


@settings(max_examples=40)
@given(LOGS)
def test_compressed_batches_come_back_plain(batches: list[Records]) -> None:
    data = log_of(batches)
    encoded = encode(data)
    back = decode(encoded.data)
    assert meaning(back) == meaning(data)
    assert not any(batch.header.flags & 3 for batch in iterate(back))
    assert encode(back).changed == 0
    assert decode(encode(back).data) == back


@settings(max_examples=40)
@given(LOGS, st.data())
def test_an_object_with_a_flipped_bit_is_refused(
    batches: list[Records], data: st.DataObject
) -> None:
    whole = bytearray(encode(log_of(batches)).data)
    at = data.draw(st.integers(4, len(whole) - 1))  # The first four bytes nobody reads.
    whole[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptBatchError):
        decode(bytes(whole))


@settings(max_examples=40)
@given(LOGS, st.data())
def test_an_object_that_was_cut_is_refused(batches: list[Records], data: st.DataObject) -> None:
    whole = encode(log_of(batches)).data
    with pytest.raises(CorruptBatchError):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])


def many(count: int, value: bytes = b"v" * 1000) -> bytes:
    parts = []
    for at in range(count):
        batch = encode_batch([value] * 100, f"s.{at}".encode(), after_gap=at == 3)
        batch.stamp(100 * at + (50 if at >= 3 else 0), at, 10 * at)
        parts.append(batch.to_bytes())
    return b"".join(parts)


def test_each_group_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_object, "GROUP_BYTES_MAX", 250_000)
    data = many(7)
    whole = encode(data).data
    asked: list[int] = []

    def get(position: int, length: int) -> bytes:
        asked.append(length)
        return whole[position : position + length]

    footer = read_footer(get, len(whole))
    assert len(footer.groups) == 4
    assert len(asked) == 1
    parts = [
        decode_group(footer, at, get(place.position, place.length))
        for at, place in enumerate(footer.groups)
    ]
    assert b"".join(parts) == data
    assert [footer.group_of(offset) for offset in (0, 199, 200, 320, 749)] == [0, 0, 1, 1, 3]


def test_the_facts_of_an_object_are_those_of_its_batches() -> None:
    data = many(5)
    encoded = encode(data)
    facts = encoded.facts
    assert (facts.begin, facts.end, facts.rows, facts.raw_length) == (0, 550, 500, len(data))
    assert (facts.first_epoch, facts.last_epoch, facts.first_us, facts.last_us) == (0, 4, 0, 40)
    assert (facts.subject_min, facts.subject_max) == ("s.0", "s.4")
    footer = read_footer(lambda at, length: encoded.data[at : at + length], len(encoded.data))
    assert footer.facts == facts


def test_any_reader_of_parquet_sees_the_records() -> None:
    table = pq.read_table(pa.BufferReader(encode(many(5)).data))
    assert table.column_names == parquet_object.SCHEMA.names
    assert table["offset"].to_pylist() == [*range(300), *range(350, 550)]
    assert table["subject"].to_pylist()[::100] == [f"s.{at}" for at in range(5)]


@pytest.mark.parametrize("cut", [b"", b"not batches"])
def test_nothing_but_batches_becomes_an_object(cut: bytes) -> None:
    with pytest.raises(CorruptBatchError):
        encode(cut)


def test_batches_that_do_not_follow_each_other_are_refused() -> None:
    one, two, *_ = [bytes(each) for each in _parts(many(3))]
    with pytest.raises(CorruptBatchError, match="does not follow"):
        encode(two + one)


def _parts(data: bytes) -> list[bytes]:
    parts, at = [], 0
    for batch in iterate(data):
        parts.append(data[at : at + batch.header.length])
        at += batch.header.length
    return parts


def test_an_object_of_too_many_batches_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_object, "BATCHES_MAX", 3)
    with pytest.raises(CorruptBatchError, match="at most 3"):
        encode(many(4))


def test_a_footer_that_claims_to_be_long_is_not_read() -> None:
    whole = bytearray(encode(many(1)).data)
    whole[-8:-4] = (2**31).to_bytes(4, "little")
    with pytest.raises(CorruptBatchError, match="not a whole"):
        decode(bytes(whole))
