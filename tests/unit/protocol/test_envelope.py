"""The envelope against its published vectors, and what makes a payload a plain message."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from jetstream_protocol.batch import crc32c, encode
from jetstream_protocol.envelope import (
    COOKIE,
    TEXT_BYTES_MAX,
    BatchEnvelope,
    RecordEnvelope,
    encode_batch,
    encode_record,
    parse,
)
from jetstream_protocol.errors import InvalidRequestError
from tests.vectors.vector import BATCHES, ENVELOPES, octets

TEXTS = ("value", "key", "header_block", "ack_inbox", "correlation")


def fields(said: dict[str, Any]) -> dict[str, Any]:
    return {name: octets(value) if name in TEXTS else value for name, value in said.items()}


def unstamped(name: str) -> bytes:
    batch = bytearray(BATCHES.read(name)[0])
    batch[16:40], batch[84:88] = bytes(24), bytes(4)
    return bytes(batch)


@pytest.mark.parametrize("name", ENVELOPES.names)
def test_a_vector_says_what_is_written_about_it(name: str) -> None:
    payload, expectation = ENVELOPES.read(name)
    if "record" in expectation:
        assert parse(payload) == RecordEnvelope(**fields(expectation["record"]))
    elif "batch" in expectation:
        said = fields(expectation["batch"])
        batch = unstamped(said.pop("batch"))
        assert parse(payload) == BatchEnvelope(batch[:88], batch[88:], **said)
    else:
        assert payload.startswith(COOKIE)
        assert parse(payload) is None


@pytest.mark.parametrize("name", [name for name in ENVELOPES.names if name.startswith("record")])
def test_a_record_is_encoded_as_in_its_vector(name: str) -> None:
    payload, expectation = ENVELOPES.read(name)
    said = fields(expectation["record"])
    assert encode_record(said.pop("value"), **said) == payload


@pytest.mark.parametrize("name", ["batch", "batch_producer"])
def test_a_batch_is_encoded_as_in_its_vector(name: str) -> None:
    payload, expectation = ENVELOPES.read(name)
    said = fields(expectation["batch"])
    built = BATCHES.read(said.pop("batch"))[1]["encode"]
    batch = encode(
        octets(built["values"]),
        octets(built["subjects"]),
        timestamps=built["timestamps"],
        producer_id=built["producer_id"],
        producer_sequence=built["producer_sequence"],
    )
    assert encode_batch(batch, **said) == payload


def resealed(payload: bytes, at: int, form: str, value: int) -> bytes:
    """The payload with one field changed, and its checksum made good again."""
    changed = bytearray(payload)
    struct.pack_into(form, changed, at, value)
    struct.pack_into("<I", changed, 8, crc32c(bytes(changed[12:])))
    return bytes(changed)


RECORD = encode_record(b"value", key=b"k", header_block=b"NATS/1.0\r\n\r\n", ack_inbox=b"_INBOX.a")
BATCH = encode_batch(encode([b"value"], b"s"), ack_inbox=b"_INBOX.a")
TOMBSTONE = encode_record(None, key=b"k")
KEYLESS = encode_record(b"value")


@pytest.mark.parametrize(
    ("payload", "at", "form", "value"),
    [
        (RECORD, 12, "B", 2),
        (RECORD, 13, "B", 0),
        (RECORD, 13, "B", 2),
        (RECORD, 13, "B", 3),
        (RECORD, 14, "<H", 8),
        (RECORD, 14, "<H", 1 << 15),
        (RECORD, 14, "<H", 3),
        (RECORD, 16, "<q", -2),
        (RECORD, 16, "<q", -(2**63)),
        (RECORD, 24, "<I", 2**32 - 1),
        (RECORD, 28, "<I", 2**32 - 1),
        (RECORD, 28, "<I", 1000),
        (RECORD, 32, "<H", 2**16 - 1),
        (RECORD, 34, "<H", 2**16 - 1),
        (BATCH, 14, "<H", 1),
        (BATCH, 14, "<H", 2),
        (BATCH, 24, "<I", 1),
        (BATCH, 28, "<I", 1),
        (TOMBSTONE, 24, "<I", 0),
        (KEYLESS, 24, "<I", 1),
    ],
)
def test_a_field_out_of_its_rules_makes_a_plain_message(
    payload: bytes, at: int, form: str, value: int
) -> None:
    assert parse(resealed(payload, at, form, struct.unpack_from(form, payload, at)[0])) is not None
    assert parse(resealed(payload, at, form, value)) is None


BAD_INBOXES = [
    b"_INBOX.a\r\nPUB x 0", b"_INBOX.a\n_INBOX.b", b"_INBOX a", b"_INBOX.\t", b"_INBOX.*",
    b"_INBOX.>", b"_INBOX..a", b".a", b"a.", b"_INBOX.\x00", b"_INBOX.\x7f",
    b"_INBOX." + b"x" * TEXT_BYTES_MAX,
]  # fmt: skip


def forged(ack_inbox: bytes, correlation: bytes) -> bytes:
    checked = struct.pack("<BBHqIIHH", 1, 1, 0, -1, 0, 0, len(ack_inbox), len(correlation))
    checked += ack_inbox + correlation + b"value"
    return COOKIE + struct.pack("<I", crc32c(checked)) + checked


@pytest.mark.parametrize("ack_inbox", BAD_INBOXES)
def test_an_ack_inbox_that_could_harm_the_servers_connection_is_never_believed(
    ack_inbox: bytes,
) -> None:
    assert parse(forged(b"_INBOX.a", b"")) is not None
    assert parse(forged(ack_inbox, b"")) is None
    with pytest.raises(InvalidRequestError, match="ack inbox"):
        encode_record(b"", ack_inbox=ack_inbox)


@pytest.mark.parametrize("correlation", [b"\xff", b"x" * (TEXT_BYTES_MAX + 1)])
def test_a_correlation_id_that_is_no_text_is_never_believed(correlation: bytes) -> None:
    assert parse(forged(b"", b"x" * TEXT_BYTES_MAX)) is not None
    assert parse(forged(b"", correlation)) is None
    with pytest.raises(InvalidRequestError, match="correlation"):
        encode_batch(encode([b""], b"s"), correlation=correlation)


@pytest.mark.parametrize("expected_offset", [-2, 1 << 63])
def test_an_offset_that_no_record_has_is_not_expected(expected_offset: int) -> None:
    with pytest.raises(InvalidRequestError, match="offset"):
        encode_record(b"", expected_offset=expected_offset)
