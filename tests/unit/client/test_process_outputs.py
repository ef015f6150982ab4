"""What a handler may return, and what a dead letter says."""

from __future__ import annotations

import pytest

from jetstream_client import InvalidRequestError, Message, Output
from jetstream_client.processing.outputs import dead_letter, outputs_of, read_dead_letter
from jetstream_client.values.headers import outgoing
from jetstream_client.values.records import block_of_pairs

ONE = Output("out", b"1")


def test_a_handler_returns_nothing_or_outputs() -> None:
    assert outputs_of(None) == []
    assert outputs_of(ONE) == [ONE]
    assert outputs_of((ONE, ONE)) == [ONE, ONE]
    assert outputs_of(each for each in [ONE]) == [ONE]


@pytest.mark.parametrize("returned", [5, True, "text", b"bytes", [ONE, None], {"a": 1}])
def test_anything_else_is_a_mistake(returned: object) -> None:
    with pytest.raises(InvalidRequestError, match="returns None, an Output or a list of Outputs"):
        outputs_of(returned)


def letter(
    block: bytes, key: bytes | None, error: Exception
) -> tuple[bytes | None, dict[str, str]]:
    message = Message("orders", 7, 0, "orders.eu", key, b"v", block)
    kept, headers = dead_letter(message, "orders@orders.>", 3, "billing", 4, error)
    return kept, dict(reversed(outgoing(headers)))  # The first of a name wins.


def test_its_own_headers_stay_and_those_for_the_server_go() -> None:
    block = b"NATS/1.0\r\nTrace: t\r\nNats-Msg-Id: 5\r\nJetstream-Key: k\r\n\r\n"
    key, headers = letter(block, b"k", ValueError("bad"))
    assert key == b"k"
    assert headers["Trace"] == "t"
    assert headers["Dead-Letter-Timestamp"] == "1970-01-01T00:00:00+00:00"
    assert headers["Dead-Letter-Error"] == "builtins.ValueError"
    assert not {"Nats-Msg-Id", "Jetstream-Key"} & headers.keys()


def test_a_dead_letter_that_fails_again_says_the_newest_first() -> None:
    block = b"NATS/1.0\r\nDead-Letter-Offset: 1\r\n\r\n"
    message = Message("dead", 7, 0, "dead", None, b"v", block)
    _, headers = dead_letter(message, "dead@dead", 3, "again", 1, ValueError())
    assert headers["Dead-Letter-Offset"] == ["7", "1"]


def test_a_short_dead_letter_says_which_record_it_is_and_leaves_out_the_rest() -> None:
    block = (
        b"NATS/1.0\r\nTrace: t\r\nDead-Letter-Error: old\r\nDead-Letter-Key-Base64: YQpi\r\n\r\n"
    )
    message = Message("dead", 7, 0, "dead", None, b"v", block)
    error = ValueError("x" * 1000)
    _, headers = dead_letter(message, "dead@dead", 3, "again", 1, error, is_short=True)
    assert len(str(outgoing(headers))) < 600
    stored = block_of_pairs(outgoing(headers))
    read = read_dead_letter(Message("dead", 8, 0, "dead", None, b"v", stored))
    assert read is not None
    assert (read.record_offset, read.error, read.error_message) == (7, "builtins.ValueError", "")
    assert (read.key, read.headers) == (b"a\nb", {"Trace": ["t"]})


def test_what_no_header_can_carry_is_spelled_out() -> None:
    block = b"NATS/1.0\r\nOdd name\xff: \xfe\r\n\r\n"
    error = ValueError("two\nlines \0 \ud800 " + "x" * 2000)
    key, headers = letter(block, b"a\nb", error)
    assert (key, headers["Dead-Letter-Key-Base64"]) == (None, "YQpi")
    assert headers["Dead-Letter-Error-Message"].startswith("two lines \\0 \\ud800 xxx")
    assert len(headers["Dead-Letter-Error-Message"]) < 1100
    assert headers["Odd_name_"] == "\\udcfe"
