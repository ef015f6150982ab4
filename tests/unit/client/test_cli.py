"""The command's manners without a server: usage, exit codes, one line of error."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
import typer

from jetstream_client import (
    At,
    InvalidRequestError,
    JetstreamError,
    Last,
    NotLeaderError,
    OffsetOutOfRangeError,
    Position,
    StreamNotFoundError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.cli.exits import Exit, complain, exit_of
from jetstream_client.cli.main import app, run
from jetstream_client.cli.positions import parse_position
from jetstream_client.cli.units import parse_duration, parse_size


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequestError("x"), Exit.USAGE),
        (StreamNotFoundError("x"), Exit.NOT_FOUND),
        (UnavailableError("x"), Exit.UNAVAILABLE),
        (NotLeaderError("x"), Exit.UNAVAILABLE),
        (UnknownOutcomeError("x"), Exit.UNKNOWN),
        (OffsetOutOfRangeError("x"), Exit.FAILED),
    ],
)
def test_each_kind_of_failure_has_its_exit_code(error: JetstreamError, code: Exit) -> None:
    assert exit_of(error) == code


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("two\nlines")
    assert capsys.readouterr().err == "error: two lines\n"


@pytest.mark.parametrize("keep_lines", [False, True])
def test_an_error_does_not_control_the_terminal(
    keep_lines: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name in it may be somebody else's."""
    complain("there is no \x1b]0;caught\x07 größer\u202e", keep_lines=keep_lines)
    assert capsys.readouterr().err == "error: there is no \\x1b]0;caught\\x07 größer\\u202e\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["stream", "create", "x"], "Missing option '--subject'"),
        (["fetch", "x", "--max", str(2**63)], "--max"),
        (["node", "drain", str(2**31)], "NODE"),
        (["node", "remove", str(2**63)], "NODE"),
        (["stream", "transfer-leader", "x", str(10**30)], "NODE"),
        (["stream", "elect", "x", "--unclean", str(2**31), "--yes"], "--unclean"),
        (["stream", "reassign", "--drain", str(2**31)], "--drain"),
        (["stream", "alter", "x", "--stream-epoch", str(2**63)], "--stream-epoch"),
        (["voters", "add", str(2**31)], "NODE"),
        (["voters", "replace", "0", str(2**31)], "NEW"),
        (["acl", "remove", str(10**30), "--yes"], "ID"),
        (["bench", "latency", "x", "--size", str(2**62)], "more than NATS carries"),
        (["stream", "alter", "x", "--replicas", "3"], "stream reassign STREAM --replicas"),
        (["stream", "alter", "x", "--subject", "y"], "a stream keeps its subject"),
        (["stream", "create", "x", "--subject", "a", "--flush", "sometimes"], "sometimes"),
        (["stream", "create", "x", "--subject", "a", "--replicas", "0"], "--replicas"),
        (
            ["stream", "create", "x", "--subject", "a", "--max-age", "7"],
            "'7' is not a duration: say",
        ),
        (["stream", "alter", "x", "--duplicate-window", "60"], "'60' is not a duration: say"),
        (["token", "create", "user:x", "--expires", "30"], "'30' is not a duration: say"),
        (["fetch", "x", "--offset", "yesterday"], "invalid position 'yesterday'"),
        (["fetch", "x", "--max", "0"], "--max"),
        (["fetch"], "STREAM"),
        (["publish", "a", "--header", "nocolon"], "say NAME:VALUE"),
        (["publish", "a.*", "x", "--server", "http://h"], "invalid server"),
        (["nonsense"], "nonsense"),
        (["fetch", "\udcff"], "the stream's name is not valid Unicode"),
        (["stream", "create", "\udcff", "--subject", "a"], "name is not valid Unicode"),
        (["stream", "create", "a", "--subject", "\udcff"], "subject is not valid Unicode"),
        (["stream", "create", "a", "--subject", "a", "--group", "\udcff"], "group"),
        (["stream", "list", "--feeding", "\udcff"], "subject is not valid Unicode"),
        (["stream", "list", "--server", "\udcff:9292"], "server is not valid Unicode"),
        (["sql", "\udcff"], "query is not valid Unicode"),
        (["publish", "a", "x", "--msg-id", "\udcff"], "msg_id is not valid Unicode"),
        (["publish", "a", "x", "--msg-id", ""], "msg_id is empty"),
        (["log", "verify", "/nowhere/at/all"], "does not exist"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == Exit.USAGE
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.startswith("error: ")
    assert output.err.count("\n") == 1
    assert says in output.err
    assert "Value error" not in output.err
    assert " See: " not in output.err.replace(". See: ", "")


@pytest.mark.parametrize("arguments", [[], ["stream"], ["log"]])
def test_without_a_command_the_help_is_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == Exit.USAGE
    shown = capsys.readouterr().out
    assert "Usage:" in shown
    assert shown.endswith("\n")


def test_every_command_has_help_with_an_example() -> None:
    commands = dict(commands_of(typer.main.get_command(app)))
    assert len(commands) > 50
    for name, each in commands.items():
        assert f"jetstream {name}" in each.help.partition("Example")[2], name


def commands_of(command: Any, names: str = "") -> Iterator[tuple[str, Any]]:
    """All commands below, by what one types: "stream list", …"""
    for name, each in command.commands.items():
        if hasattr(each, "commands"):
            yield from commands_of(each, f"{names}{name} ")
        else:
            yield f"{names}{name}", each


def test_help_shows_names_and_extras_in_full(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also on a narrow terminal; and what is in brackets is no markup."""
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["stream", "create", "--help"]) == Exit.OK
    assert "--min-insync-replicas " in capsys.readouterr().out
    assert run(["publish", "--help"]) == Exit.OK
    assert "[VALUE|-]" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--help"], ["stream", "--help"]])
def test_help_says_in_a_line_what_each_command_does(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == Exit.OK
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert commands.count("\n") > 6
    assert "..." not in commands


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == Exit.OK
    assert capsys.readouterr().out.startswith("jetstream ")


def test_the_help_lists_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == Exit.OK
    codes = capsys.readouterr().out.partition("Exit codes: ")[2].partition(".")[0]
    assert [int(code) for code in re.findall(r"\d+", codes)] == [*map(int, Exit)]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", "earliest"),
        ("latest", "latest"),
        ("42", 42),
        ("last:100", Last(100)),
        ("-10", Last(10)),
        ("@1700000000", At(1_700_000_000_000_000)),
        ("@1700000000.5", At(1_700_000_000_500_000)),
        ("@-1.000001", At(-1_000_001)),
    ],
)
def test_positions_are_words_numbers_or_seconds(text: str, position: Position) -> None:
    assert parse_position(text) == position


@pytest.mark.parametrize(("text", "seconds"), [("1h", 3600), ("1h30m", 5400), ("2d", 172_800)])
def test_a_position_may_be_so_long_ago(text: str, seconds: int) -> None:
    position = parse_position(text)
    assert isinstance(position, At)
    assert abs(time.time() - position.timestamp_us / 1e6 - seconds) < 10


def test_a_position_may_be_a_time() -> None:
    moment = parse_position("2026-01-31T12:00:00Z")
    assert str(moment) == "2026-01-31 12:00:00+00:00"


@pytest.mark.parametrize(
    ("text", "year"), [("0001-01-01", 1), ("9999-12-31T23:59", 9999), ("0001-01-01T00:00Z", 1)]
)
def test_a_position_may_be_at_an_end_of_the_calendar(text: str, year: int) -> None:
    moment = parse_position(text)
    assert isinstance(moment, datetime)
    assert moment.tzinfo is not None
    assert moment.year == year


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (str(2**63), "the largest is 9223372036854775807"),
        (f"last:{2**63}", "the largest is 9223372036854775807"),
    ],
)
def test_a_position_beyond_the_last_offset_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        parse_position(text)


@pytest.mark.parametrize("text", ["9" * 400 + "d", "300000000w"])
def test_a_duration_beyond_any_clock_is_refused(text: str) -> None:
    for parse in parse_duration, parse_position:
        with pytest.raises(typer.BadParameter, match="is too long"):
            parse(text)


@pytest.mark.parametrize("text", ["9" * 400, str(2**63), "9" * 20 + "TiB"])
def test_a_size_beyond_any_disk_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is too large"):
        parse_size(text)
    assert parse_size(str(2**63 - 1)) == 2**63 - 1


@pytest.mark.parametrize(
    "text", ["", "--1", "1.5", "1x", "²", "first", "last:", "last:-1", "@", "@1.2345678"]
)
def test_other_positions_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="say earliest, latest"):
        parse_position(text)


def test_all_servers_that_nobody_answers_at_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    servers = "127.0.0.1:1,127.0.0.1:2"
    assert run(["stream", "list", "--server", servers, "--timeout", "1"]) == 4
    said = capsys.readouterr().err
    assert said.startswith(
        "error: cannot reach 127.0.0.1:1: connection refused; "
        "cannot reach 127.0.0.1:2: connection refused. "
    )
    assert said.endswith("jetstream-server --dev\n")


def test_nobody_at_the_address_is_exit_code_4_and_said_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    begun = time.monotonic()
    assert run(["stream", "list", "--server", "127.0.0.1:1", "--timeout", "600"]) == 4
    assert time.monotonic() - begun < 300
    assert capsys.readouterr().err == (
        "error: cannot reach 127.0.0.1:1: connection refused. Is a server running there? One to "
        "try things on: jetstream-server --dev\n"
    )


def test_the_lines_of_a_query_s_error_have_no_gap(capsys: pytest.CaptureFixture[str]) -> None:
    complain('Parser Error: at "selekt"\n\nLINE 1: selekt 1\n        ^', keep_lines=True)
    shown = 'error: Parser Error: at "selekt"\nLINE 1: selekt 1\n        ^\n'
    assert capsys.readouterr().err == shown
