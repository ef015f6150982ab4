"""What headers ask for, applied to a whole delivery."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError, PreconditionFailedError
from jetstream_server.ingest.nats.delivery import Delivery
from jetstream_server.ingest.stream.admission import admit


def block(*lines: bytes) -> bytes:
    return b"\r\n".join((b"NATS/1.0", *lines, b"", b""))


def delivery(*messages: tuple[bytes, bytes, bytes]) -> Delivery:
    """(value, reply, header block) each."""
    values, replies, blocks = map(list, zip(*messages, strict=True))
    return Delivery(1, [b"a.b"] * len(values), replies, values, blocks)


def test_a_tombstone_is_null_and_keeps_its_key() -> None:
    admitted = admit(
        delivery(
            (b"", b"", block(b"Jetstream-Key: k", b"Jetstream-Tombstone: true")),
            (b"", b"", block(b"X: y")),
        ),
        "s",
    )
    assert admitted.values == [None, b""]
    assert admitted.keys == [b"k", None]


def test_a_tombstone_with_a_payload_is_refused() -> None:
    admitted = admit(delivery((b"x", b"_INBOX.r", block(b"Jetstream-Tombstone: true"))), "s")
    assert admitted.values == []
    ((reply, error, _),) = admitted.refused
    assert reply == b"_INBOX.r"
    assert isinstance(error, InvalidRequestError)


def test_the_expected_stream_is_taken_and_another_is_refused() -> None:
    admitted = admit(
        delivery(
            (b"1", b"_INBOX.1", block(b"Nats-Expected-Stream: orders")),
            (b"2", b"_INBOX.2", block(b"Nats-Expected-Stream: others")),
        ),
        "orders",
    )
    assert admitted.values == [b"1"]
    ((reply, error, _),) = admitted.refused
    assert reply == b"_INBOX.2"
    assert isinstance(error, PreconditionFailedError)


@pytest.mark.parametrize("filler", [b"\xff", b"x", b'"', b"\\", "é".encode()])
def test_a_refusal_quotes_no_more_than_a_little(filler: bytes) -> None:
    admitted = admit(
        delivery((b"1", b"", block(b"Nats-Expected-Stream: " + filler * 500_000))), "orders"
    )
    ((_, error, _),) = admitted.refused
    assert len(error.message) < 700


def test_ack_levels_decide_who_is_answered_when() -> None:
    admitted = admit(
        delivery(
            (b"all", b"_INBOX.1", block(b"Jetstream-Ack: all")),
            (b"leader", b"_INBOX.2", block(b"Jetstream-Ack: leader")),
            (b"none", b"_INBOX.3", block(b"Jetstream-Ack: none")),
            (b"leader, unasked", b"", block(b"Jetstream-Ack: leader")),
            (b"default", b"_INBOX.5", block(b"X: y")),
        ),
        "s",
    )
    assert admitted.replies == [b"_INBOX.1", b"", b"", b"", b"_INBOX.5"]
    assert admitted.early == {1: b"_INBOX.2"}
    assert len(admitted.values) == 5


def test_positions_of_early_answers_follow_refusals() -> None:
    admitted = admit(
        delivery(
            (b"1", b"", block(b"Nats-TTL: 1s")),
            (b"2", b"_INBOX.2", block(b"Jetstream-Ack: leader")),
            (b"3", b"_INBOX.3", block(b"Jetstream-Nonsense: 1")),
            (b"4", b"_INBOX.4", block(b"Jetstream-Ack: leader")),
        ),
        "s",
    )
    assert admitted.values == [b"2", b"4"]
    assert admitted.early == {0: b"_INBOX.2", 1: b"_INBOX.4"}
    assert [refused.reply for refused in admitted.refused] == [b"", b"_INBOX.3"]


def test_a_subject_that_is_not_utf8_is_refused_and_utf8_is_not() -> None:
    found = Delivery(
        1,
        [b"a.\xff", "a.é".encode(), b"a.\xed\xa0\x80", b"a.b"],
        [b"_INBOX.%d" % index for index in range(4)],
        [b"0", b"1", b"2", b"3"],
    )
    admitted = admit(found, "s")
    assert admitted.values == [b"1", b"3"]
    assert admitted.subjects == ["a.é".encode(), b"a.b"]
    assert [refused.reply for refused in admitted.refused] == [b"_INBOX.0", b"_INBOX.2"]
