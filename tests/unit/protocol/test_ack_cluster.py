"""The mark of the cluster that answers."""

from __future__ import annotations

import pytest

from jetstream_protocol.ack_cluster import mark_in, mark_of


def test_the_mark_is_a_digest_of_the_id_and_always_the_same() -> None:
    assert mark_of("0123456789abcdef0123456789abcdef") == "e4c790cc2f66"
    assert mark_of("another") != mark_of("one")
    assert mark_of("") == ""


def test_a_mark_is_found_after_a_reply_subject() -> None:
    mark = mark_of("one")
    assert mark_in(f"_INBOX.abc.1f@{mark}".encode()) == mark


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"_INBOX.a",
        b"_INBOX.0123456789ab",
        b"_INBOX.a@example.com",
        b"_INBOX.a@0123456789ax",
        b"_INBOX.a@0123456789ab.c",
        b"_INBOX.a@0123456789abc",
    ],
)
def test_other_replies_have_none(reply: bytes) -> None:
    assert mark_in(reply) == ""
