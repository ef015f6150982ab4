"""Options that every command takes, in front of it or behind it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from jetstream_client._config import (
    DEFAULT_SERVERS,
    RACK_VARIABLE,
    SERVERS_VARIABLE,
    ClientConfig,
)

Server = Annotated[
    str | None,
    typer.Option(
        "--server",
        "-s",
        metavar="HOST:PORT,…",
        help=f"Servers to ask, any of the cluster. Default: ${SERVERS_VARIABLE}, "
        f"else {DEFAULT_SERVERS}.",
        show_default=False,
    ),
]
Nats = Annotated[
    str | None,
    typer.Option(
        metavar="URL,…",
        help="NATS servers to publish to. Default: those the cluster names.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one on each line.")]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long to try, in all.", min=0.001)
]
StreamName = Annotated[
    str, typer.Argument(metavar="STREAM", help="A stream's name, or name@subject.")
]
NodeId = Annotated[int, typer.Argument(metavar="NODE", min=0, help="A node's number.")]

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_UsageError: Any = typer.BadParameter.__mro__[1]  # See main.py.


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless `yes`; where nobody can be asked, that is wrong usage."""
    if yes:
        return
    if not all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout)):
        raise _UsageError(
            "it asks first, and this is no terminal: --yes goes on without, --dry-run only tells"
        )
    typer.confirm(question, abort=True)


class ReadFromName(StrEnum):
    """As ReadFrom, for typer."""

    LEADER = "leader"
    NEAREST = "nearest"
    ANY = "any"


ReadFromOption = Annotated[
    ReadFromName,
    typer.Option(
        "--read-from",
        help=f"Which replica to read: the leader, the nearest in sync (in ${RACK_VARIABLE}, else "
        "the quickest), or any in sync. Followers have a record a moment later.",
    ),
]
DEFAULT_TIMEOUT = 10.0


@dataclass(slots=True)
class Common:
    """What was said in front of the command."""

    server: str | None = None
    json: bool = False


def common(context: typer.Context) -> Common:
    found = context.find_object(Common)
    return Common() if found is None else found


def group(help_: str) -> typer.Typer:
    """Commands under one word. Their help is plain text: rich cuts the names of options to fit its
    tables, and takes [sql] for markup."""
    return typer.Typer(help=help_, no_args_is_help=True, rich_markup_mode=None)


def config(
    context: typer.Context,
    server: str | None,
    timeout: float = DEFAULT_TIMEOUT,
    nats: str | None = None,
) -> ClientConfig:
    """The client's configuration; what is said behind the command wins."""
    return ClientConfig.of(server or common(context).server, nats, timeout=timeout)


def wants_json(context: typer.Context, json: bool) -> bool:
    return json or common(context).json
