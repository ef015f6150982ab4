"""What a batch looks like from outside: sizes, constants, refusals, and the published vectors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jetstream_protocol.batch import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    RECORDS_MAX,
    Batch,
    decode_header,
    encode,
    iterate,
)
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from tests.vectors.vector import BATCHES, ENCRYPTED, octets, texts


def test_the_header_is_88_bytes() -> None:
    assert HEADER_BYTES == 88


def test_a_null_value_is_not_an_empty_value() -> None:
    batch = encode([b"", None], b"s", keys=[None, b""])
    batch.stamp(0, 0, 0)
    decoded = Batch.decode(batch.to_bytes())
    assert decoded.values() == [b"", None]
    assert decoded.keys() == [None, b""]


def test_columns_that_say_nothing_are_left_out() -> None:
    plain = encode([b"a", b"b"], [b"same", b"same"])
    assert decode_flags(plain.to_bytes()) == 0
    full = encode([b"a"], [b"s"], keys=[b"k"], header_blocks=[b"NATS/1.0\r\n\r\n"], timestamps=[1])
    assert decode_flags(full.to_bytes()) == Flags.KEYS | Flags.HEADERS | Flags.TIMESTAMPS


def decode_flags(data: bytes) -> int:
    return int.from_bytes(data[6:8], "little")


def test_a_batch_without_timestamps_has_its_append_timestamp() -> None:
    batch = encode([b"a", b"b"], b"s")
    batch.stamp(0, 0, 42)
    assert Batch.decode(batch.to_bytes()).timestamps() == [42, 42]


def test_a_batch_emptied_by_compaction_still_covers_its_offsets() -> None:
    batch = encode([], b"s", offset_deltas=[], last_offset_delta=9)
    batch.stamp(100, 1, 0)
    decoded = Batch.decode(batch.to_bytes())
    decoded.check_columns()
    assert decoded.values() == []
    assert (decoded.header.last_offset, decoded.header.next_offset) == (109, 110)


@pytest.mark.parametrize("compression", [0, Flags.ZSTD, Flags.LZ4])
def test_a_batch_beyond_the_bounds_is_refused_by_readers(compression: int) -> None:
    for values in ([bytes(BATCH_BYTES_MAX)], [b""] * (RECORDS_MAX + 1)):
        batch = encode(values, b"s", compression=compression)
        batch.stamp(0, 0, 0)
        with pytest.raises(CorruptBatchError, match=r"batch longer than|batch of more than"):
            Batch.decode(batch.to_bytes())


def test_the_largest_batches_are_read_back() -> None:
    for values in ([bytes(BATCH_BYTES_MAX - HEADER_BYTES - 24)], [b""] * RECORDS_MAX):
        batch = encode(values, b"s")
        batch.stamp(0, 0, 0)
        assert len(Batch.decode(batch.to_bytes())) == len(values)


def test_a_corrupt_batch_names_its_file_and_position() -> None:
    batch = encode([b"a"], b"s")
    batch.stamp(0, 0, 0)
    data = bytearray(batch.to_bytes() * 2)
    data[batch.length + HEADER_BYTES] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        list(iterate(data, file="00000000000000000000.log"))
    assert caught.value.file == "00000000000000000000.log"
    assert caught.value.position == batch.length
    assert "body fails its CRC" in caught.value.reason


@pytest.mark.parametrize("name", BATCHES.names)
def test_the_published_vectors_decode_to_their_expectation(name: str) -> None:
    data, expectation = BATCHES.read(name)
    batch = Batch.decode(data)
    batch.check_columns()
    header = decode_header(data)._asdict()
    assert header == expectation["header"]
    assert {
        "offsets": list(batch.offsets()),
        "timestamps": list(batch.timestamps()),
        "subjects": texts(batch.subjects()),
        "keys": texts(batch.keys()),
        "values": texts(batch.values()),
        "header_blocks": texts(batch.header_blocks()),
    } == expectation["records"]


@pytest.mark.parametrize("name", BATCHES.names)
def test_the_published_vectors_are_what_this_encoder_writes(name: str) -> None:
    data, expectation = BATCHES.read(name)
    built = expectation["encode"]
    batch = encode(
        octets(built["values"]),
        octets(built["subjects"]),
        keys=octets(built["keys"]),
        header_blocks=octets(built["header_blocks"]),
        timestamps=built["timestamps"],
        offset_deltas=built["offset_deltas"],
        last_offset_delta=built["last_offset_delta"],
        producer_id=built["producer_id"],
        producer_sequence=built["producer_sequence"],
        compression=built["compression"],
        after_gap=built.get("after_gap", False),
    )
    batch.stamp(*built["stamp"])
    if built["compression"]:
        # Another release of a compressor may write other bytes; what they say is the same.
        assert Batch.decode(batch.to_bytes()).body == Batch.decode(data).body
    else:
        assert batch.to_bytes() == data


def test_every_flag_appears_in_some_vector() -> None:
    seen = 0
    for vectors in (BATCHES, ENCRYPTED):
        for name in vectors.names:
            seen |= vectors.read(name)[1]["header"]["flags"]
    assert seen == sum(Flags)


def test_the_vectors_are_plain_text() -> None:
    for path in Path(__file__).parents[2].joinpath("vectors").glob("*.json"):
        json.loads(path.read_text("ascii"))
