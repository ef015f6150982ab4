"""Which names and subjects are accepted, said by example; the rules against brute force are in
tests/property/test_subjects.py."""

from __future__ import annotations

import pytest

from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.stream_names import check_name
from jetstream_protocol.subjects import (
    RESERVED,
    check_literal,
    check_pattern,
    example_pattern,
    is_pattern,
    matches,
    overlaps,
)


@pytest.mark.parametrize("name", ["orders", "a", "0", "__cursors", "a-b.c_d", "x" * 255])
def test_usable_stream_names_are_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize(
    "name", ["", "-a", ".a", "a b", "a/b", "a@b", "é", "a\n", "x" * 256, "../a", "a*", "a>"]
)
def test_stream_names_that_would_confuse_a_path_or_a_shell_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_name(name)


@pytest.mark.parametrize(
    "subject", ["a", "a.b", "*", ">", "a.*.b", "a.>", "é.ü", "a>b", "a*", "$JS.A"]
)
def test_nats_subjects_and_patterns_are_accepted(subject: str) -> None:
    check_pattern(subject)


@pytest.mark.parametrize(
    "subject",
    ["", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nb", "a\x00", "a\x7f", ">.a", "a.>.b",
     "a\u2028b", "a\u00a0b", "a" * 1025],
)  # fmt: skip
def test_subjects_nats_would_refuse_or_garble_are_refused(subject: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_pattern(subject)


@pytest.mark.parametrize("subject", ["*", ">", "a.*", "a.>"])
def test_nobody_can_publish_to_a_pattern(subject: str) -> None:
    assert is_pattern(subject)
    with pytest.raises(InvalidRequestError, match="wildcard"):
        check_literal(subject)


@pytest.mark.parametrize("subject", ["a*b", "a>", "*a", "a.b*"])
def test_a_wildcard_inside_a_token_is_an_ordinary_character(subject: str) -> None:
    assert not is_pattern(subject)
    check_literal(subject)
    assert matches(subject, subject)


def test_a_full_wildcard_needs_at_least_one_token() -> None:
    assert matches("a.>", "a.b.c")
    assert not matches("a.>", "a")
    assert not overlaps("a.>", "a")


@pytest.mark.parametrize("pattern", [">", "*.>", "_INBOX.*", "$SYS.REQ.>", "*.API.>"])
def test_patterns_that_would_swallow_reserved_traffic_overlap_it(pattern: str) -> None:
    assert any(overlaps(pattern, reserved) for reserved in RESERVED)


@pytest.mark.parametrize("pattern", ["orders.>", "_inbox.>", "INBOX.>", "*"])
def test_ordinary_patterns_do_not_overlap_reserved_traffic(pattern: str) -> None:
    assert not any(overlaps(pattern, reserved) for reserved in RESERVED)


@pytest.mark.parametrize(
    ("subject", "pattern"), [("zzz", "zzz"), ("a.b", "a.>"), ("orders.eu.de", "orders.>")]
)
def test_the_pattern_that_errors_suggest_hears_the_subject(subject: str, pattern: str) -> None:
    assert example_pattern(subject) == pattern
    assert matches(pattern, subject)
