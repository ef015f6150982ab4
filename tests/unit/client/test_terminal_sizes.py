"""What fits a terminal: tables that are narrower than their headings, and screens shown again."""

from __future__ import annotations

import io
import sys
import time
from typing import Any

import pytest

from jetstream_client.cli import watching
from jetstream_client.cli.output import print_table
from jetstream_client.cli.watching import show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard output becomes a terminal of 20 columns and 6 lines."""
    found = Terminal()
    monkeypatch.setattr(sys, "stdout", found)
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("LINES", "6")
    return found


def test_a_table_wider_than_its_terminal_is_a_list_of_fields(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = terminal(monkeypatch)
    print_table(("NAME", "SUBJECT", "REPLICAS"), [("a", "a.>", "1/1"), ("b", "b.>", "3/3")])
    assert found.getvalue() == (
        "NAME      a\nSUBJECT   a.>\nREPLICAS  1/1\n\nNAME      b\nSUBJECT   b.>\nREPLICAS  3/3\n"
    )


def test_no_character_of_a_long_name_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "32")
    name = "abcdefghijklmnopqrstuvwxyz-0123456789"
    print_table(("NAME", "N"), [(name, 1)])
    shown = [line.split()[0] for line in found.getvalue().splitlines()[1:]]
    assert "".join(shown) == name


def test_what_a_person_compares_is_not_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rather is each row a list of fields."""
    found = terminal(monkeypatch)
    print_table(("NAME", "N"), [("orders-of-europe", 123_456)])
    assert found.getvalue() == "NAME  orders-of-europe\nN     123456\n"


def test_one_long_name_does_not_make_a_table_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "28")
    print_table(("NAME", "SUBJECT"), [("orders", "orders.>"), ("long-" * 8, "long.>")])
    assert found.getvalue().splitlines()[1].split() == ["orders", "orders.>"]


def test_a_name_of_many_lines_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lines of a record each, not ten: 500 such streams are read and copied all the same."""
    found = terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "40")
    long = "a-long-name-" * 10
    print_table(("NAME", "SUBJECT", "N"), [("a", "a.>", 12_345), (long, "long.>", 6)])
    assert found.getvalue().splitlines() == [
        "NAME", "  SUBJECT  N",
        "a", "  a.>      12345",
        long, "  long.>   6",
    ]  # fmt: skip


def test_an_empty_table_is_shown_to_be_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)
    print_table(("NAME", "SUBJECT", "REPLICAS"), [])
    assert found.getvalue() == "NAME      -\nSUBJECT   -\nREPLICAS  -\n"


class _EnoughError(Exception):
    pass


def watched(draw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: float) -> None:
        raise _EnoughError

    monkeypatch.setattr(time, "sleep", stop)
    monkeypatch.setattr(watching, "end_with_the_reader", lambda: None)
    with pytest.raises(_EnoughError):
        show(lambda: None, draw, watch=True, lines=False)


def test_what_is_watched_fits_its_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)

    def draw(_: None) -> None:
        print("long " * 8)  # Two lines of the terminal.
        for number in range(10):
            print(number)

    watched(draw, monkeypatch)
    lines = found.getvalue().removeprefix("\x1b[H\x1b[2J\x1b[3J").splitlines()
    assert lines == ["long " * 8, "0", "1", "and 8 more lines"]


def test_what_fits_is_shown_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    found = terminal(monkeypatch)
    watched(lambda _: print("1\n2\n3\n4\n5"), monkeypatch)
    assert found.getvalue().endswith("J1\n2\n3\n4\n5\n")
