"""Batches with good checksums and dishonest contents: refused, never a crash or a wrong read.

A producer computes its own CRCs, so they may cover anything. Whatever passes `decode` and
`check_columns` must be safe to read in full, and within the bounds of memory its header claims.
"""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_protocol.batch import _HEADER, HEADER_BYTES, Batch, crc32c, decode_header, encode
from jetstream_protocol.body_compression import compress
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import CorruptBatchError
from tests.property.batches import Records, records, wild_bodies

FIELDS = [
    "magic", "version", "flags", "length", "body_crc", "base_offset", "leader_epoch",
    "append_timestamp", "record_count", "last_offset_delta", "uncompressed_length",
    "producer_sequence", "producer_id", "min_timestamp", "max_timestamp", "body_length",
    "header_crc",
]  # fmt: skip
WIDTHS = {"version": 16, "flags": 16, "producer_sequence": 31}
UNSIGNED = {"length", "record_count", "last_offset_delta", "uncompressed_length", "body_length"}


def forged(data: bytes, body: bytes | None = None, /, **changes: int) -> bytes:
    """`data` with header fields and body replaced, and both checksums made good again."""
    fields = dict(zip(FIELDS, _HEADER.unpack_from(data), strict=True))
    if body is None:
        body = data[HEADER_BYTES : HEADER_BYTES + fields["body_length"]]
    elif "body_length" not in changes:
        fields["body_length"] = len(body)
        fields["length"] = HEADER_BYTES + len(body) + -(HEADER_BYTES + len(body)) % 8
        if not fields["flags"] & 3:
            fields["uncompressed_length"] = len(body)
    fields["body_crc"] = crc32c(body)
    fields.update(changes)
    header = bytearray(_HEADER.pack(*fields.values()))
    struct.pack_into("<I", header, 84, crc32c(bytes(header[:84])))
    return bytes(header) + body + bytes(-(HEADER_BYTES + len(body)) % 8)


def read_everything(data: bytes) -> None:
    """Decode, check and read every column. Raises CorruptBatchError, or reads consistently."""
    batch = Batch.decode(data)
    batch.check_columns()
    columns = (
        batch.values(), batch.keys(), batch.header_blocks(), batch.subjects(),
        batch.timestamps(), batch.offsets(),
    )  # fmt: skip
    assert {len(column) for column in columns} == {len(batch)}
    offsets = list(batch.offsets())
    assert offsets == sorted(set(offsets))
    assert all(batch.header.base_offset <= o <= batch.header.last_offset for o in offsets)
    for subject in batch.subjects():
        subject.decode()


PLAIN = encode([b"one", b"two", b"three"], b"s")
PLAIN.stamp(0, 0, 0)
PLAIN_BYTES = PLAIN.to_bytes()


@given(records(max_size=6), st.data())
def test_forged_header_fields_are_refused_or_harmless(
    given_records: Records, data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(FIELDS[1:-1]))
    width = WIDTHS.get(field, 32)
    small = st.integers(0, 100)
    if field in UNSIGNED or field in WIDTHS or field == "body_crc":
        value = data.draw(small | st.integers(0, 2**width - 1))
    else:
        value = data.draw(small | st.integers(-(2**63), 2**63 - 1))
    try:
        read_everything(forged(given_records.to_bytes(), **{field: value}))
    except CorruptBatchError:
        pass


@given(records(max_size=6), st.data())
def test_forged_bodies_are_refused_or_harmless(given_records: Records, data: st.DataObject) -> None:
    good = given_records.to_bytes()
    body = data.draw(wild_bodies(good))
    try:
        read_everything(forged(good, body))
    except CorruptBatchError:
        pass


@given(st.binary(max_size=300))
@example(PLAIN_BYTES)
def test_arbitrary_bytes_are_refused_or_read(data: bytes) -> None:
    try:
        read_everything(data)
    except CorruptBatchError:
        pass


@given(records(max_size=6), st.binary(max_size=200), st.sampled_from([Flags.ZSTD, Flags.LZ4]))
def test_garbage_instead_of_compressed_bytes_is_refused(
    given_records: Records, garbage: bytes, compression: Flags
) -> None:
    good = given_records.to_bytes()
    flags = decode_header(good).flags & ~3 | compression
    with pytest.raises(CorruptBatchError):
        read_everything(forged(good, garbage, flags=flags, uncompressed_length=4096))


@pytest.mark.parametrize("compression", [Flags.ZSTD, Flags.LZ4])
@pytest.mark.parametrize("claimed", [0, 8, 4096])
def test_a_decompression_bomb_is_cut_off_at_the_claimed_length(
    compression: Flags, claimed: int
) -> None:
    zeros = bytes(32 * 1024 * 1024)
    packed = compress(zeros, compression)
    with pytest.raises(CorruptBatchError, match="another length"):
        Batch.decode(
            forged(PLAIN_BYTES, packed, flags=int(compression), uncompressed_length=claimed)
        )


@pytest.mark.parametrize(
    "offsets", [(0, 3, 2, 11), (1, 3, 6, 11), (0, -1, 6, 11), (0, 3, 2**31 - 1, 11), (0, 12, 6, 11)]
)
def test_wild_value_offsets_never_reach_a_reader(offsets: tuple[int, ...]) -> None:
    body = struct.pack("<4i", *offsets) + PLAIN_BYTES[HEADER_BYTES + 16 :]
    with pytest.raises(CorruptBatchError):
        read_everything(forged(PLAIN_BYTES, body))


@pytest.mark.parametrize(
    "changes",
    [
        {"record_count": 2**20 + 1, "last_offset_delta": 2**20 + 1},
        {"record_count": 4},
        {"last_offset_delta": 3},
        {"version": 2},
        {"flags": 1024},
        {"flags": 3},
        {"flags": 16},
        {"base_offset": -1},
        {"leader_epoch": -1},
        {"min_timestamp": 1},
        {"uncompressed_length": 1},
        {"body_length": 2**32 - 1},
        {"length": 2**32 - 8},
    ],
    ids=str,
)
def test_impossible_header_fields_are_refused(changes: dict[str, int]) -> None:
    read_everything(PLAIN_BYTES)
    with pytest.raises(CorruptBatchError):
        read_everything(forged(PLAIN_BYTES, **changes))


def test_a_subject_that_is_not_utf8_is_refused() -> None:
    for subjects in (b"\xff", [b"\xff", b"a"]):
        bad = encode([b"1", b"2"], subjects)
        bad.stamp(0, 0, 0)
        with pytest.raises(CorruptBatchError, match="UTF-8"):
            read_everything(bad.to_bytes())
