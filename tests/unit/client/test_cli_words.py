"""What people say who know other tools: words for commands, options in front, ages and sizes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jetstream_client.cli.exits import Exit
from jetstream_client.cli.main import run
from jetstream_client.cli.units import age_text, size_text


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("rm orders", "stream delete"),
        ("stream rm orders", "stream delete"),
        ("info orders", "stream describe"),
        ("stream info", "stream describe"),
        ("cluster info", "cluster status"),
        ("tail orders", "fetch --follow"),
        ("ls", "stream list"),
        ("stream ls", "stream list"),
        ("add orders", "stream create"),
        ("stream add orders", "stream create"),
        ("pub orders.eu x", "publish"),
        ("consume orders", "fetch"),
    ],
)
def test_a_word_of_another_tool_is_answered_with_ours(
    said: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(said.split()) == Exit.USAGE
    error = capsys.readouterr().err
    assert f" {meant}'? See: " in error
    assert error.count("\n") == 1


def test_a_slip_of_the_keys_is_answered_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", "lst"]) == Exit.USAGE
    assert "Did you mean 'list'? See: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "--server 127.0.0.1:1 --timeout 0.2 stream list",
        "--server 127.0.0.1:1 stream --timeout 0.2 list",
        "stream --server 127.0.0.1:1 list --timeout 0.2",
        "--server 127.0.0.1:2 --timeout 60 stream list --server 127.0.0.1:1 --timeout 0.2",
    ],
)
def test_an_option_of_every_command_may_stand_in_front_and_the_last_one_counts(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments.split()) == Exit.UNAVAILABLE
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_a_format_and_json_contradict_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--json", "fetch", "orders", "--format", "%v"]) == Exit.USAGE
    assert "--json and --format" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0s"), (0.4, "0s"), (59, "59s"), (60, "1m"), (5400, "1h"), (86_400 * 12.5, "12d")],
)
def test_an_age_is_said_in_its_largest_unit(seconds: float, text: str) -> None:
    assert age_text(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (3 * 1024**3, "3GiB"), (5 * 1024**4, "5TiB")],
)
def test_a_size_is_said_in_its_largest_unit(size: int, text: str) -> None:
    assert size_text(size) == text
