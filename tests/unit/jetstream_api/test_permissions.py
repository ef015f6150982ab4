"""What a leaf link may send, by what NATS announces and by what a subject is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_server.jetstream_api.leaf.permissions import Permissions, is_literal, plain_reply


def test_without_an_announcement_everything_may_be_sent() -> None:
    for announced in (None, {}, {"allow": [], "deny": []}):
        assert Permissions(announced).may_send(b"orders.eu")


def test_only_what_is_allowed_and_not_denied_may_be_sent() -> None:
    permissions = Permissions({"allow": ["_INBOX.>", "a.*.c"], "deny": ["_INBOX.secret.>"]})
    assert permissions.may_send(b"_INBOX.x.y")
    assert permissions.may_send(b"a.b.c")
    for subject in (b"_INBOX", b"a.b.c.d", b"orders", b"_INBOX.secret.x", b"x_INBOX.a"):
        assert not permissions.may_send(subject)


def test_a_denial_of_everything_leaves_nothing_but_the_replies_that_nats_makes() -> None:
    permissions = Permissions({"deny": [">"]})
    assert not permissions.may_send(b"_INBOX.a")
    assert permissions.may_send(b"_R_.abc.def")


def test_the_prefix_of_a_gateway_is_not_compared() -> None:
    permissions = Permissions({"allow": ["_INBOX.>"]})
    assert permissions.may_send(b"_GR_.abcdef.123456._INBOX.a.b")
    assert not permissions.may_send(b"_GR_.abcdef.123456.orders.eu")
    assert not permissions.may_send(b"_GR_.short._INBOX.a")
    assert plain_reply(b"_GR_.abcdef.123456._R_.x") == b""


@pytest.mark.parametrize(
    "subject",
    [b"", b"a.", b".a", b"a..b", b"a.*", b">", b"a b", b"a\r\nPING", b"a\tb", b"\x00", b"a" * 2000,
     b"a*b"],
)  # fmt: skip
def test_nothing_is_sent_to_what_is_no_literal_subject(subject: bytes) -> None:
    assert not is_literal(subject)


@given(st.binary(max_size=30))
def test_a_literal_subject_holds_no_second_line_and_no_second_field(subject: bytes) -> None:
    if is_literal(subject):
        assert subject.split() == [subject]
        assert b"\r" not in subject
        assert b"\n" not in subject
