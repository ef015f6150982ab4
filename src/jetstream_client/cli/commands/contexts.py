"""`jetstream context …`: how to reach a cluster, kept under a name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from jetstream_client.cli import options
from jetstream_client.cli.completion import complete_context
from jetstream_client.cli.connecting import tls_of
from jetstream_client.cli.context_file import Context, ContextFile
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.values.config import ClientConfig
from jetstream_client.values.tls import TlsConfig
from jetstream_protocol.errors import InvalidRequestError

app = options.group("context")

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A context's name.", autocompletion=complete_context),
]


@app.command()
def add(
    context: typer.Context,
    name: Name,
    server: options.Server = None,
    nats: options.Nats = None,
    nats_ca: options.NatsCa = None,
    nats_cert: options.NatsCert = None,
    nats_key: options.NatsKey = None,
    creds: options.Creds = None,
    tls: options.Tls = False,
    ca: options.Ca = None,
    cert: options.Cert = None,
    key: options.Key = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A file that holds the token; - is standard input."),
    ] = None,
) -> None:
    """Add a context, or replace the one of that name. The first one is used from now on.

    Examples:

      jetstream context add prod -s a:9292 --ca ca.crt --cert me.crt --key k

      jetstream context add prod --server a.example:9292 --tls --token-file -
    """
    before = options.common(context)
    servers = server or before.server
    if not servers:
        raise InvalidRequestError("which servers? Add --server HOST:PORT,…")
    secured = tls_of(tls, ca, cert, key) or before.tls
    made = Context(
        servers=servers,
        nats=nats or "",
        tls=secured is not None,
        ca=_absolute(secured.ca if secured else None),
        cert=_absolute(secured.cert if secured else None),
        key=_absolute(secured.key if secured else None),
        nats_ca=_absolute(nats_ca),
        nats_cert=_absolute(nats_cert),
        nats_key=_absolute(nats_key),
        nats_creds=_absolute(creds),
        token=_token(token_file),
    )
    ClientConfig.of(made.servers, tls=made.tls_config, token=made.token)  # Refuses what is wrong.
    if isinstance(made.tls_config, TlsConfig):
        made.tls_config.check_files()
    made.nats_options.check_files()
    file = ContextFile()
    file.add(name, made)
    print(f"{name} is {'the current context' if file.current == name else 'added'}")


@app.command()
def use(name: Name) -> None:
    """Make a context the current one.

    The commands then use it, unless --server or JETSTREAM_SERVERS says otherwise.

    Example: jetstream context use prod
    """
    ContextFile().use(name)
    print(f"{name} is the current context")


@app.command("list")
def list_(context: typer.Context, json: options.Json = False) -> None:
    """List the contexts.

    Example: jetstream context list --json
    """
    file = ContextFile()
    if options.wants_json(context, json):
        for name, each in sorted(file.contexts.items()):
            emit_json(_row(name, each, file))
        return
    rows = [
        ("*" if name == file.current else "", name, each.servers, "yes" if each.tls else "no")
        for name, each in sorted(file.contexts.items())
    ]
    print_table(("", "NAME", "SERVERS", "TLS"), rows, "no contexts")


@app.command()
def show(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Default: the current one.",
            show_default=False,
            autocompletion=complete_context,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show a context. Its token is not shown.

    Example: jetstream context show prod
    """
    file = ContextFile()
    name = name or file.current
    if not name:
        raise InvalidRequestError("there is no current context: jetstream context use NAME")
    row = _row(name, file.get(name), file)
    if options.wants_json(context, json):
        emit_json(row)
    else:
        print_fields({key: value for key, value in row.items() if value not in ("", False)})


@app.command()
def remove(name: Name) -> None:
    """Remove a context.

    Example: jetstream context remove prod
    """
    ContextFile().remove(name)
    print(f"{name} is removed")


def _row(name: str, context: Context, file: ContextFile) -> dict[str, object]:
    return {
        "name": name,
        "current": name == file.current,
        "servers": context.servers,
        "nats": context.nats,
        "tls": context.tls,
        "ca": context.ca,
        "cert": context.cert,
        "key": context.key,
        "nats_ca": context.nats_ca,
        "nats_cert": context.nats_cert,
        "nats_key": context.nats_key,
        "nats_creds": context.nats_creds,
        "has_token": bool(context.token),
    }


def _absolute(path: str | None) -> str:
    """Contexts are used from any folder."""
    return str(Path(path).absolute()) if path else ""


def _token(file: Path | None) -> str:
    if file is None:
        return ""
    text = sys.stdin.read() if str(file) == "-" else file.read_text()
    return text.strip()
