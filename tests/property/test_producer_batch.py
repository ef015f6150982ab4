"""Batches as producers send them: whatever is accepted can be read by anyone, and is theirs to say.

A producer computes its own checksums, so they may cover anything.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import HEADER_BYTES, Batch, encode
from jetstream_protocol.body_compression import compress
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
)
from jetstream_protocol.producer_batch import EXPANDED_BYTES_MAX, open_batch
from tests.property.batches import Records, records, wild_bodies
from tests.property.test_batch_hostile import FIELDS, PLAIN_BYTES, forged, read_everything

SUBJECT = b"s"


def stored(data: bytes, subject: bytes = SUBJECT) -> Batch:
    """The batch as a log and its readers get it. Raises what the leader refuses it with."""
    encoded, _ = open_batch(data[:HEADER_BYTES], data[HEADER_BYTES:], subject)
    encoded.stamp(42, 7, 1)
    in_the_log = encoded.to_bytes()
    try:
        read_everything(in_the_log)
    except CorruptBatchError as error:
        raise AssertionError("a batch was accepted that its readers refuse") from error
    batch = Batch.decode(in_the_log)
    header = batch.header
    assert (header.base_offset, header.leader_epoch, header.append_timestamp) == (42, 7, 1)
    assert header.length == len(in_the_log)
    assert header.record_count == header.last_offset_delta + 1 == encoded.record_count > 0
    assert encoded.last_offset_delta == header.last_offset_delta
    assert set(batch.subjects()) == {subject}
    assert header.flags & (Flags.OFFSET_DELTAS | Flags.SUBJECT_COLUMN) == 0
    assert (header.producer_id, header.producer_sequence) == (-1, -1) or (
        header.producer_id >= 0 and header.producer_sequence >= 0
    )
    return batch


@given(records(min_size=1))
def test_what_a_producer_may_send_is_stored_as_it_is(given_records: Records) -> None:
    sent = encode(
        given_records.values, SUBJECT, keys=given_records.keys,
        header_blocks=given_records.header_blocks, timestamps=given_records.timestamps,
        compression=given_records.compression, producer_id=2**62, producer_sequence=3,
    )  # fmt: skip
    batch = stored(sent.to_bytes())
    assert batch.values() == given_records.values
    assert batch.keys() == (given_records.keys or [None] * len(batch))
    if given_records.timestamps is not None:
        assert batch.timestamps() == given_records.timestamps
    if given_records.header_blocks is not None:
        assert batch.header_blocks() == given_records.header_blocks
    assert (batch.header.producer_id, batch.header.producer_sequence) == (2**62, 3)


@given(records(), st.data())
def test_forged_header_fields_are_refused_or_harmless(
    given_records: Records, data: st.DataObject
) -> None:
    good = given_records.to_bytes()
    changes = {}
    for field in data.draw(st.lists(st.sampled_from(FIELDS[1:-1]), min_size=1, max_size=3)):
        width = 16 if field in ("version", "flags") else 32
        signed = field not in (
            "producer_sequence",
            "base_offset",
            "leader_epoch",
            "append_timestamp",
            "producer_id",
            "min_timestamp",
            "max_timestamp",
        )
        changes[field] = data.draw(
            st.integers(0, 100)
            | (st.integers(0, 2**width - 1) if signed else st.integers(-(2**31), 2**31 - 1))
        )  # fmt: skip
    try:
        stored(forged(good, **changes), given_records.subject_column[0])
    except JetstreamError:
        pass


@given(records(), st.data())
def test_forged_bodies_are_refused_or_harmless(given_records: Records, data: st.DataObject) -> None:
    good = given_records.to_bytes()
    body = data.draw(wild_bodies(good))
    try:
        stored(forged(good, body), given_records.subject_column[0])
    except JetstreamError:
        pass


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(JetstreamError):
        stored(data)


@given(records(), st.integers(1, 40), st.binary(max_size=40))
def test_a_batch_cut_short_or_with_something_after_it_is_refused(
    given_records: Records, cut: int, after: bytes
) -> None:
    good = given_records.to_bytes()
    subject = given_records.subject_column[0]
    for bad in (good[:-cut], good + b"\0" + after):
        with pytest.raises(JetstreamError):
            stored(bad, subject)


def test_stamps_of_the_producer_are_not_believed() -> None:
    batch = encode([b"v"], SUBJECT)
    batch.stamp(10**18, 10**18, -1)
    stored(batch.to_bytes())
    wild = bytearray(batch.to_bytes())
    wild[16:40], wild[84:88] = b"\xff" * 24, b"junk"
    stored(bytes(wild))


@pytest.mark.parametrize(
    ("changes", "error", "why"),
    [
        ({"flags": 1 << 6}, InvalidRequestError, "must not set the batch flags"),
        ({"flags": 1 << 8}, InvalidRequestError, "must not set the batch flags"),
        ({"flags": 1 << 9}, InvalidRequestError, "must not set the batch flags"),
        ({"flags": 1 << 10}, CorruptBatchError, "encrypted"),
        ({"flags": 1 << 11}, CorruptBatchError, "unknown batch flags"),
        ({"record_count": 0}, InvalidRequestError, "without records"),
        ({"record_count": 2}, CorruptBatchError, "column"),
        ({"last_offset_delta": 9}, CorruptBatchError, "disagree"),
        ({"last_offset_delta": 2**20}, CorruptBatchError, "more than"),
        ({"producer_id": 5}, InvalidRequestError, "both must be -1"),
        ({"producer_sequence": 5}, InvalidRequestError, "both must be -1"),
        ({"producer_id": -2, "producer_sequence": 0}, InvalidRequestError, "both must be -1"),
        ({"producer_id": 5, "producer_sequence": -7}, InvalidRequestError, "both must be -1"),
        ({"version": 2}, CorruptBatchError, "version"),
        ({"min_timestamp": -5}, CorruptBatchError, "timestamp"),
    ],
)
def test_each_rule_is_refused_with_its_reason(
    changes: dict[str, int], error: type[JetstreamError], why: str
) -> None:
    stored(PLAIN_BYTES)
    with pytest.raises(error, match=why):
        stored(forged(PLAIN_BYTES, **changes))


@pytest.mark.parametrize("claim", [b"other", b"", b"s.x", b"S", b"\xff"])
def test_a_forged_subject_is_refused_whatever_it_claims(claim: bytes) -> None:
    batch = encode([b"v"], claim)
    with pytest.raises(JetstreamError):
        stored(batch.to_bytes())
    if claim != b"\xff":
        stored(batch.to_bytes(), claim)


@pytest.mark.parametrize("compression", [Flags.ZSTD, Flags.LZ4])
def test_a_decompression_bomb_is_refused_before_it_is_opened(compression: Flags) -> None:
    bomb = compress(bytes(EXPANDED_BYTES_MAX + 8), compression)
    honest = forged(
        PLAIN_BYTES, bomb, flags=int(compression), uncompressed_length=EXPANDED_BYTES_MAX + 8
    )
    with pytest.raises(MessageTooLargeError, match="at most"):
        stored(honest)
    lying = forged(PLAIN_BYTES, bomb, flags=int(compression), uncompressed_length=64)
    with pytest.raises(CorruptBatchError, match="another length"):
        stored(lying)
