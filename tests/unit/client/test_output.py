"""What the command prints: JSON rows programs can rely on, lines a terminal is safe with."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from jetstream_client import Message
from jetstream_client.cli.output import (
    json_line,
    message_line,
    message_row,
    nodes_text,
    print_table,
    printable,
)
from jetstream_protocol.record_json import encoded

BLOCK = b"NATS/1.0\r\na: 1\r\nb: 2\r\nb: 3\r\n\r\n"


def test_a_row_carries_the_promised_fields() -> None:
    row = message_row(Message("orders", 7, 1_700_000_000_000_001, "a.b", b"k", b"v", BLOCK))
    assert row == {
        "offset": 7,
        "timestamp": "2023-11-14T22:13:20.000001Z",
        "subject": "a.b",
        "key": "k",
        "key_encoding": "utf8",
        "value": "v",
        "value_encoding": "utf8",
        "headers": {"a": "1", "b": ["2", "3"]},
    }


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ("", "utf8")),
        ("né".encode(), ("né", "utf8")),
        (b"\xff\x00", ("/wA=", "base64")),
        (None, (None, None)),
    ],
)
def test_bytes_are_text_where_they_can_be_and_null_is_null(
    data: bytes | None, expected: tuple[str | None, str | None]
) -> None:
    assert encoded(data) == expected


def test_a_json_row_is_one_line_whatever_it_holds() -> None:
    odd = b"NATS/1.0\r\nraw: \xff\r\n\r\n"
    line = json_line(message_row(Message("s", 0, 0, "a", b"\n\x1b[2J", b'"\r\n', odd)))
    assert line.count("\n") == 1
    assert line.isascii()
    assert "\x1b" not in line
    assert json.loads(line)["value"] == '"\r\n'


def test_moments_in_json_sort_as_text() -> None:
    line = json_line({"at": datetime(26, 1, 1, tzinfo=UTC)})
    assert json.loads(line) == {"at": "0026-01-01T00:00:00.000000Z"}


def test_a_message_cannot_steer_the_terminal() -> None:
    line = message_line(Message("s", 3, 0, "a.b", b"\x1b]0;t\x07", "line\nbreak\x9b".encode()))
    assert line.endswith("a.b  \\x1b]0;t\\x07  line\\nbreak\\x9b\n")
    assert line.rstrip("\n").isprintable()


def test_bytes_that_are_no_text_are_escapes_to_people() -> None:
    line = message_line(Message("s", 3, 0, "a", b"\xff\x00", b"caf\xc3\xa9\xe9"))
    assert line.endswith("a  \\xff\\x00  café\\xe9\n")


def test_a_tombstone_and_a_missing_key_are_said() -> None:
    assert message_line(Message("s", 3, 0, "a", None, None)).endswith("a  -  (tombstone)\n")


def test_printable_text_stays_as_it_is() -> None:
    assert printable("naïve 日本") == "naïve 日本"


def test_a_piped_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("NAME", "N"), [("a", 1), ("longer", 22)])
    assert capsys.readouterr().out == "NAME    N\na       1\nlonger  22\n"


@pytest.mark.parametrize(
    ("nodes", "text"), [((), "-"), ((0,), "node 0"), ((0, 1, 2), "nodes 0, 1, 2")]
)
def test_numbers_of_nodes_do_not_read_like_counts(nodes: tuple[int, ...], text: str) -> None:
    assert nodes_text(nodes) == text
