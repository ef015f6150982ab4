"""Envelopes of anything: what goes in comes out, and what is damaged is a plain message."""

from __future__ import annotations

import struct

from hypothesis import example, given
from hypothesis import strategies as st

from jetstream_protocol.batch import crc32c
from jetstream_protocol.envelope import (
    COOKIE,
    BatchEnvelope,
    RecordEnvelope,
    encode_batch,
    encode_record,
    parse,
)
from tests.property.batches import records

TOKEN = st.text(st.characters(codec="utf-8", exclude_characters=".*> \x7f", min_codepoint=33),
                min_size=1, max_size=10)  # fmt: skip
INBOXES = st.just(b"") | st.lists(TOKEN, min_size=1, max_size=4).map(
    lambda tokens: ".".join(tokens).encode()
)
ASKS = st.fixed_dictionaries(
    {
        "ack_inbox": INBOXES,
        "correlation": st.text(st.characters(codec="utf-8"), max_size=20).map(str.encode),
        "expected_offset": st.integers(-1, 2**63 - 1),
        "ack_leader": st.booleans(),
    }
)
RECORDS = st.builds(
    lambda value, key, header_block, asks: (
        encode_record(value, key=key, header_block=header_block, **asks),
        RecordEnvelope(value, key, header_block, **asks),
    ),
    st.none() | st.binary(max_size=40),
    st.none() | st.binary(max_size=20),
    st.binary(max_size=40),
    ASKS,
)
BATCHES = st.builds(
    lambda batch, asks: (
        encode_batch(batch.encode(), **asks),
        BatchEnvelope(bytes(batch.encode().header), batch.encode().body, **asks),
    ),
    records(max_size=5),
    ASKS,
)


@given(RECORDS | BATCHES)
def test_what_is_enveloped_comes_out_again(
    given_pair: tuple[bytes, RecordEnvelope | BatchEnvelope],
) -> None:
    payload, envelope = given_pair
    assert parse(payload) == envelope


@given(RECORDS | BATCHES)
def test_every_truncation_is_a_plain_message(
    given_pair: tuple[bytes, RecordEnvelope | BatchEnvelope],
) -> None:
    payload, _ = given_pair
    for length in range(len(payload)):
        assert parse(payload[:length]) is None


@given(RECORDS | BATCHES, st.integers(1, 255))
def test_every_flipped_byte_makes_a_plain_message(
    given_pair: tuple[bytes, RecordEnvelope | BatchEnvelope], flip: int
) -> None:
    payload, _ = given_pair
    for at in range(len(payload)):
        changed = bytearray(payload)
        changed[at] ^= flip
        assert parse(bytes(changed)) is None


@given(st.binary(max_size=100))
@example(b"")
def test_a_coincidental_cookie_is_a_plain_message(rest: bytes) -> None:
    assert parse(rest) is None
    assert parse(COOKIE + rest) is None


@given(st.binary(min_size=24, max_size=400), st.integers(0, 3), st.integers(0, 16))
def test_foreign_bytes_after_a_good_checksum_give_an_envelope_or_a_plain_message(
    rest: bytes, kind: int, flags: int
) -> None:
    checked = struct.pack("<BBH", 1, kind, flags) + rest
    envelope = parse(COOKIE + struct.pack("<I", crc32c(checked)) + checked)
    if envelope is not None:
        assert not set(envelope.ack_inbox) & set(b"\r\n\0 *>")
        envelope.correlation.decode()


@given(st.text())
def test_no_text_begins_as_an_envelope_does(text: str) -> None:
    assert not text.encode().startswith(COOKIE[:1])
