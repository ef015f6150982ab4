"""`fetch --format`: letters, escapes, and what a terminal is spared."""

from __future__ import annotations

import pytest

from jetstream_client import InvalidRequestError, Message
from jetstream_client.cli.record_format import RecordFormat

BLOCK = b"NATS/1.0\r\na: 1\r\nb: 2\r\nb: 3\r\n\r\n"
MESSAGE = Message("orders", 7, 1_700_000_000_000_001, "a.b", b"k\xff", b"v\n\x1b[2J", BLOCK)
TOMBSTONE = Message("orders", 8, 0, "a.b", None, None)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("%o", b"7"),
        ("%u", b"a.b"),
        ("%k %K", b"k\xff 2"),
        ("%v", b"v\n\x1b[2J"),
        ("%s", b"v\n\x1b[2J"),
        ("%t", b"orders"),
        ("%N", b"orders"),
        ("%S", b"6"),
        ("%h", b"a=1,b=2,b=3"),
        ("%d", b"2023-11-14T22:13:20.000001Z"),
        ("%T", b"1700000000000"),
        (r"%%\n\t\r\0\\\x41\xff", b"%\n\t\r\0\\A\xff"),
        ("ü", "ü".encode()),
        ("", b""),
    ],
)
def test_each_letter_and_escape_is_written_as_documented(text: str, written: bytes) -> None:
    assert RecordFormat(text)(MESSAGE) == written


def test_what_is_null_is_written_as_nothing_and_has_no_size() -> None:
    assert RecordFormat("%k|%v|%K|%S|%h")(TOMBSTONE) == b"||-1|-1|"


def test_a_record_does_not_steer_a_terminal_and_the_format_may() -> None:
    shown = RecordFormat(r"\x1b[1m%k %v\n", for_terminal=True)(MESSAGE)
    assert shown == b"\x1b[1mk\\xff v\\n\\x1b[2J\n"


@pytest.mark.parametrize("text", ["%q", "%", r"\q", "\\", r"\x4", "100%"])
def test_what_it_does_not_know_is_refused_with_what_it_knows(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"%o %s %v.*escapes"):
        RecordFormat(text)


def test_the_letter_of_kcat_that_means_nothing_here_is_refused_with_a_hint() -> None:
    with pytest.raises(InvalidRequestError, match=r"%p is the partition in kcat.*%s is the value"):
        RecordFormat("%p %o %s")
