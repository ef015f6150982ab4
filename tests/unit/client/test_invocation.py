"""What commands have in common: where their shared options stand, and what is made of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.main import get_command

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.main import app as whole
from jetstream_client.cli.setting_options import with_options
from jetstream_client.values.config import SERVERS_VARIABLE

SHARED = ["server", "nats", "nats_ca", "nats_cert", "nats_key", "creds", "timeout", "json"]


@pytest.fixture(autouse=True)
def _no_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SERVERS_VARIABLE, raising=False)


def called(arguments: str, **kind: bool) -> Invocation:
    """What a command with these options is given, called with these arguments."""
    app = options.group("stream")
    seen: list[Invocation] = []

    @app.command()
    @common_options(**kind)
    def one(cli: Invocation, name: str, size: int = 1) -> int:
        assert (name, size) == ("orders", 2)
        seen.append(cli)
        return 7

    assert app(arguments.split(), standalone_mode=False) == 7
    return seen[0]


BODY = "one orders --size 2"


def test_the_options_of_a_command_win_over_those_in_front_of_it() -> None:
    cli = called(f"--server a:1 --timeout 3 --json {BODY} --server b:1 --timeout 4")
    assert (cli.config.servers, cli.config.timeout, cli.json) == (("b:1",), 4.0, True)
    cli = called(f"--server a:1 --timeout 3 {BODY}")
    assert (cli.config.servers, cli.config.timeout, cli.json) == (("a:1",), 3.0, False)


@pytest.mark.parametrize(
    ("kind", "more", "total"),
    [
        ({}, "", 10.0),
        ({"total": False}, "", None),
        ({"patience": True}, "", None),
        ({"watch": True}, "", 10.0),
        ({"watch": True}, " --watch", None),
    ],
)
def test_the_timeout_is_that_of_all_calls_unless_there_is_no_end_to_them(
    kind: dict[str, bool], more: str, total: float | None
) -> None:
    cli = called(BODY + more, **kind)
    assert (cli.config.timeout, cli.config.total_timeout) == (10.0, total)
    assert cli.watch == bool(more)


def test_the_options_for_nats_are_in_the_configuration() -> None:
    cli = called(f"{BODY} --nats nats://a:4222 --creds a.creds", nats=True)
    assert cli.config.nats == ("nats://a:4222",)
    assert cli.config.nats_options.credentials == "a.creds"


def test_an_option_that_a_command_declares_itself_stays_and_is_given_to_both() -> None:
    app = typer.Typer()
    seen: list[Any] = []

    @app.command()
    @common_options(nats=True)
    def copy(cli: Invocation, nats: str = "nats://old:4222", subject: str = "") -> None:
        seen.extend([cli.config.nats, nats])

    app([], standalone_mode=False)
    assert seen == [("nats://old:4222",), "nats://old:4222"]
    names = [each.name for each in get_command(app).params]
    shown = ["nats", "nats_ca", "nats_cert", "nats_key", "creds", "subject", "server"]
    assert names[: len(shown)] == shown


def test_settings_go_with_the_shared_options() -> None:
    app = typer.Typer()
    seen: list[dict[str, Any]] = []

    @app.command()
    @with_options()
    @common_options()
    def alter(cli: Invocation, stream: str, **settings: Any) -> None:
        assert (cli.json, stream) == (True, "orders")
        seen.append(settings)

    app(["orders", "--max-age", "1h", "--json"], standalone_mode=False)
    assert seen == [{"max_age": 3600.0}]


def test_what_was_done_is_said_in_json_or_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    for more, said in ("--json", '{"done":1}\n'), ("", "it is done\n"):
        called(f"{BODY} {more}").answer({"done": 1}, "it is done")
        assert capsys.readouterr().out == said
    called(f"{BODY} --json").table(("N",), [1, 2], _cells, _row)
    assert capsys.readouterr().out == '{"n":1}\n{"n":2}\n'
    called(BODY).table(("N",), [1, 2], _cells, _row)
    assert capsys.readouterr().out.split() == ["N", "1", "2"]


def _cells(number: int) -> tuple[int]:
    return (number,)


def _row(number: int) -> dict[str, Any]:
    return {"n": number}


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield path, command


def test_every_command_that_asks_a_cluster_has_the_shared_options_in_one_order() -> None:
    asking = 0
    for path, command in _commands(get_command(whole), "jetstream"):
        names = [each.name for each in command.params]
        if "timeout" not in names:
            continue  # Of files, or of contexts.
        asking += 1
        found = [name for name in names if name in SHARED]
        ordered = [name for name in SHARED if name in names]
        if path in ("jetstream import", "jetstream mirror"):  # NATS is what they read from.
            ordered = [*ordered[1:6], "server", *ordered[6:]]
        assert found == ordered, path
        assert names[-1] == ("timeout" if path == "jetstream export" else "json"), path
    assert asking > 40
