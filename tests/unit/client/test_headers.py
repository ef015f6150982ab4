"""Header blocks are read as NATS writes them, and nothing is sent that would arrive altered."""

from __future__ import annotations

from typing import Any

import pytest

from jetstream_client import Headers, InvalidRequestError
from jetstream_client.values.checks import check_text
from jetstream_client.values.headers import OutgoingHeaders, by_name, outgoing

BLOCK = b"NATS/1.0\r\nsource: web\r\nTag:a\r\nTag: b \r\nEmpty:\r\n\r\n"


def test_the_first_value_of_a_name_is_its_value() -> None:
    headers = Headers(BLOCK)
    assert headers["Tag"] == "a"
    assert headers.get_all("Tag") == ["a", "b"]
    assert headers.multi_items() == [("source", "web"), ("Tag", "a"), ("Tag", "b"), ("Empty", "")]


def test_headers_are_a_mapping() -> None:
    headers = Headers(b"NATS/1.0\r\nsource: web\r\n\r\n")
    assert headers == {"source": "web"}
    assert dict(headers) == {"source": "web"}
    assert "Source" not in headers  # NATS keeps the case of names.


def test_no_block_is_no_headers() -> None:
    assert len(Headers(b"")) == 0
    assert Headers().get_all("any") == []


def test_a_status_line_is_not_a_header() -> None:
    assert Headers(b"NATS/1.0 503 No Responders\r\n\r\n") == {}


def test_values_that_are_not_utf8_keep_their_bytes() -> None:
    value = Headers(b"NATS/1.0\r\nraw: \xff\x00\r\n\r\n")["raw"]
    assert value.encode("utf-8", "surrogateescape") == b"\xff\x00"


def test_several_values_of_one_name_go_out_as_several_lines() -> None:
    pairs = outgoing({"a": "1", "b": ["2", "3"]})
    assert pairs == [("a", "1"), ("b", "2"), ("b", "3")]
    assert list(OutgoingHeaders(pairs).items()) == pairs


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "a\r\nb"])
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="invalid header name"):
        outgoing({name: "x"})


@pytest.mark.parametrize("value", ["a\r\nInjected: b", "a\n", " a", "a\t", "\udc80", "a\x00b"])
def test_a_value_that_would_not_arrive_as_it_is_is_refused(value: str) -> None:
    with pytest.raises(InvalidRequestError, match="header 'x'"):
        outgoing({"x": value})


def test_pairs_go_out_as_they_do_with_kafkas_clients() -> None:
    pairs = [("a", b"1"), ("b", "2"), ("a", "ü".encode())]
    assert outgoing(pairs) == [("a", "1"), ("a", "ü"), ("b", "2")]
    assert by_name(pairs) == {"a": [b"1", "ü".encode()], "b": ["2"]}
    assert outgoing([]) == outgoing(None) == outgoing({}) == []


@pytest.mark.parametrize(
    ("headers", "kind", "said"),
    [
        ({"a": 1}, TypeError, "header 'a' must be str, bytes or a list of them, not int"),
        ({"a": None}, TypeError, "header 'a' must be .* not NoneType"),
        ({"a": ["1", 2]}, TypeError, "header 'a' must be .* not int"),
        ([("a", 1)], TypeError, "header 'a' must be .* not int"),
        ({"a": b"\xff"}, InvalidRequestError, "header 'a' must be UTF-8 text"),
        ({"a": b"x\r\n"}, InvalidRequestError, "header 'a' holds a line break"),
        ({1: "a"}, TypeError, "the name of a header must be a str, not int: 1"),
        ([(b"a", "1")], TypeError, "the name of a header must be a str, not bytes: b'a'"),
        ("a: 1", TypeError, r"a dict, or a list of pairs \(name, value\), not 'a: 1'"),
        (5, TypeError, "not 5"),
        (["ab"], TypeError, "not a list with 'ab'"),
        ([("a", "b", "c")], TypeError, "not a list with"),
    ],
)
def test_headers_of_other_types_are_named(headers: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        outgoing(headers)


def test_a_list_where_one_name_belongs_is_named() -> None:
    with pytest.raises(TypeError, match="the source must be one str, not list"):
        check_text("the source", ["orders"])  # type: ignore[arg-type]
