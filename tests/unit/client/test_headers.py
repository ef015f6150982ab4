"""Header blocks are read as NATS writes them, and nothing is sent that would arrive altered."""

from __future__ import annotations

import pytest

from jetstream_client import Headers, InvalidRequestError
from jetstream_client.values.headers import OutgoingHeaders, outgoing

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
