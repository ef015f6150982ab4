"""Only a node says whence a call comes, and only for the sender whose call it is."""

from __future__ import annotations

import pytest

from jetstream_server.security.origin_proof import checked, value_of

SECRET, PEER, BEARER = b"s" * 16, "[fd00::1]:4711", "Bearer jst_a_b"


def test_a_node_s_word_is_taken_for_its_sender_only() -> None:
    value = value_of(SECRET, PEER, BEARER)
    assert checked(SECRET, value, BEARER) == PEER
    assert checked(SECRET, value, "Bearer jst_c_d") == ""
    assert checked(b"t" * 16, value, BEARER) == ""
    assert checked(SECRET, value.replace("fd00", "fd01"), BEARER) == ""


@pytest.mark.parametrize("value", ["", " ", "a", "a b", "%00 b", f"{'a' * 999} b", "ä é"])
def test_what_no_node_says_is_no_address(value: str) -> None:
    assert checked(SECRET, value, BEARER) == ""


def test_without_a_credential_nobody_is_believed() -> None:
    assert value_of(b"", PEER, BEARER) == ""
    assert checked(b"", value_of(SECRET, PEER, BEARER), BEARER) == ""
