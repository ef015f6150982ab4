"""Options that every command takes, before or after its name."""

from __future__ import annotations

import sys
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

import typer

from jetstream_client.cli.completion import (
    complete_context,
    complete_cursor,
    complete_group,
    complete_node,
    complete_stream,
)
from jetstream_client.cli.connecting import Common, reached
from jetstream_client.cli.context_file import CONTEXT_VARIABLE
from jetstream_client.cli.exits import UsageError
from jetstream_client.cli.parts import PARTS
from jetstream_client.cli.suggestions import Commands
from jetstream_client.cli.units import duration_text, parse_timeout
from jetstream_client.values.checks import NODE_MAX
from jetstream_client.values.config import (
    DEFAULT_SERVERS,
    NATS_CA_VARIABLE,
    NATS_CERT_VARIABLE,
    NATS_CREDS_VARIABLE,
    NATS_KEY_VARIABLE,
    RACK_VARIABLE,
    SERVERS_VARIABLE,
    ClientConfig,
    NatsOptions,
)
from jetstream_client.values.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE


def _file(name: str, help_: str) -> Any:
    """An option that names a file."""
    return typer.Option(name, metavar="FILE", help=help_, show_default=False)


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
NatsCa = Annotated[
    str | None,
    _file(
        "--nats-ca",
        f"Speak TLS to NATS and trust these authorities. Default: ${NATS_CA_VARIABLE}; tls:// "
        "in front of a URL trusts the system's.",
    ),
]
NatsCert = Annotated[
    str | None,
    _file("--nats-cert", f"The certificate to show to NATS. Default: ${NATS_CERT_VARIABLE}."),
]
NatsKey = Annotated[str | None, _file("--nats-key", f"Its key. Default: ${NATS_KEY_VARIABLE}.")]
Creds = Annotated[
    str | None,
    _file("--creds", f"A .creds file to sign in to NATS with. Default: ${NATS_CREDS_VARIABLE}."),
]
Tls = Annotated[
    bool,
    typer.Option("--tls", help="Speak TLS, with the system's authorities unless --ca is given."),
]
Ca = Annotated[
    str | None, _file("--ca", f"Speak TLS and trust these authorities. Default: ${CA_VARIABLE}.")
]
Cert = Annotated[
    str | None, _file("--cert", f"The certificate to show. Default: ${CERT_VARIABLE}.")
]
Key = Annotated[str | None, _file("--key", f"Its key. Default: ${KEY_VARIABLE}.")]
ContextName = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        autocompletion=complete_context,
        help=f"A context's servers, certificates and token: see jetstream context --help. "
        f"Default: ${CONTEXT_VARIABLE}, else the one in use.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON: one object, or one on each line.")]
DEFAULT_TIMEOUT = 10.0
_SHOWN_TIMEOUT = duration_text(DEFAULT_TIMEOUT)
Timeout = Annotated[
    float,
    typer.Option(
        metavar="DURATION",
        help=f"How long to try in total. Default: {_SHOWN_TIMEOUT}.",
        parser=parse_timeout,
        show_default=False,
    ),
]
Patience = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help=f"How long to wait for each answer and the next record; the whole may take longer. "
        f"Default: {_SHOWN_TIMEOUT}.",
        parser=parse_timeout,
        show_default=False,
    ),
]
"""The timeout of commands whose work has no bound."""
TimeoutBefore = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="DURATION",
        help="How long to try in total.",
        parser=parse_timeout,
        show_default=False,
    ),
]
"""The timeout before the name of a command; it has the default."""
StreamName = Annotated[
    str,
    typer.Argument(
        metavar="STREAM", help="A stream's name, or name@subject.", autocompletion=complete_stream
    ),
]
OptionalStreamName = Annotated[
    str | None,
    typer.Argument(
        metavar="STREAM", help="A stream's name, or name@subject.", autocompletion=complete_stream
    ),
]
NodeId = Annotated[
    int,
    typer.Argument(
        metavar="NODE",
        min=0,
        max=NODE_MAX,
        help="A node's number.",
        autocompletion=complete_node,
    ),
]

CursorName = Annotated[
    str,
    typer.Argument(metavar="CURSOR", help="A cursor's name.", autocompletion=complete_cursor),
]
GroupName = Annotated[
    str,
    typer.Argument(metavar="GROUP", help="A consumer group's name.", autocompletion=complete_group),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. Needed without a terminal.")]


def nats_options(
    ca: str | None, cert: str | None, key: str | None, creds: str | None
) -> NatsOptions:
    """What the options for NATS say. Raises InvalidRequestError for a key without certificate."""
    return NatsOptions(credentials=creds, tls_ca=ca, tls_certificate=cert, tls_key=key)


def confirm(question: str, declined: str, *, yes: bool, dry_run: bool = False) -> None:
    """Ask on standard error, because standard output may be a pipe; unless `yes`. Without a
    terminal, raise a usage error. declined: what to say after a no, which ends the command.
    dry_run: the command has --dry-run."""
    if yes:
        return
    if not on_terminal():
        instead = "add --yes" + (", or --dry-run to see what it would do" if dry_run else "")
        raise UsageError(f"this command asks first, and there is no terminal: {instead}")
    if not typer.confirm(question, err=True):
        print(declined, file=sys.stderr)
        raise typer.Abort


def on_terminal() -> bool:
    """Whether somebody can be asked."""
    return all(each is not None and each.isatty() for each in (sys.stdin, sys.stderr))


class ReadFromName(StrEnum):
    """As ReadFrom, for typer."""

    LEADER = "leader"
    NEAREST = "nearest"
    ANY = "any"


ReadFromOption = Annotated[
    ReadFromName,
    typer.Option(
        "--read-from",
        help=f"Which copy to read. leader: the leader's. nearest: a replica in sync or an observer "
        f"in ${RACK_VARIABLE}, else the one that answers fastest. any: any replica in sync. "
        "Followers have a record a moment later.",
    ),
]


def options_before(
    context: typer.Context, server: Server = None, timeout: TimeoutBefore = None, json: Json = False
) -> None:
    """Note the options that stand in front of a command, at any level."""
    before = common(context)
    context.obj = replace(
        before,
        server=server or before.server,
        json=json or before.json,
        timeout=before.timeout if timeout is None else timeout,
    )


def common(context: typer.Context) -> Common:
    found = context.find_object(Common)
    return Common() if found is None else found


def group(name: str) -> typer.Typer:
    """A group of commands, by its name in PARTS. Help is plain text: rich cuts the names of options
    to fit its tables, and takes [sql] for markup."""
    app = typer.Typer(cls=Commands, no_args_is_help=True, rich_markup_mode=None)
    app.callback(help=PARTS[name].help)(options_before)
    return app


def config(
    context: typer.Context,
    server: str | None,
    timeout: float = DEFAULT_TIMEOUT,
    nats: str | None = None,
    nats_options: NatsOptions | None = None,
) -> ClientConfig:
    """The client's configuration; options after the command win. nats_options: of the command."""
    before = common(context)
    source = context.get_parameter_source("timeout")
    if before.timeout is not None and (source is None or source.name != "COMMANDLINE"):
        timeout = before.timeout
    return reached(server or before.server, before, timeout, nats, nats_options)


def wants_json(context: typer.Context, json: bool) -> bool:
    return json or common(context).json
