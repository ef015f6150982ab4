"""`jetstream token …`: make, list and revoke the tokens that say who a client is."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.output import emit_json, print_table, timestamp_text
from jetstream_client.cli.units import parse_duration
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.access import Token

app = options.group("Make, list and revoke tokens.")

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="The principal that it identifies: user:NAME.")
]


@app.command()
def create(
    context: typer.Context,
    principal: Principal,
    expires: Annotated[
        str,
        typer.Option(metavar="DURATION", help="After how long it expires (90d, 12h), or never."),
    ] = "90d",
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Make a token, and print it. It cannot be shown again.

    Example: JETSTREAM_TOKEN=$(jetstream token create user:reports --expires 30d)
    """
    lifetime = None if expires == "never" else parse_duration(expires)
    with Client.from_config(options.config(context, server, timeout)) as client:
        made = client.create_token(principal, lifetime=lifetime)
    options.answer(context, json, {**_row(made.token), "token": made.text}, made.text)


@app.command("list")
def list_tokens(
    context: typer.Context,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """List the tokens by id. Their texts are not kept anywhere.

    Example: jetstream token list --json
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        tokens = client.list_tokens()
    if options.wants_json(context, json):
        for token in tokens:
            emit_json(_row(token))
    else:
        print_table(("ID", "PRINCIPAL", "CREATED", "EXPIRES"), map(_cells, tokens))


@app.command()
def revoke(
    context: typer.Context,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="The token's id: the part between its two _.")
    ],
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Revoke a token. Connections that use it are closed.

    Example: jetstream token revoke 4e54ffd8dc99
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        client.revoke_token(token_id)
    options.answer(context, json, {"id": token_id, "revoked": True}, f"token {token_id} is revoked")


def _row(token: Token) -> dict[str, Any]:
    return dataclasses.asdict(token)


def _cells(token: Token) -> tuple[object, ...]:
    expires = "never"
    if token.expires_at is not None:
        over = " (over)" if token.expires_at < datetime.now(UTC) else ""
        expires = timestamp_text(token.expires_at) + over
    return token.id, token.principal, timestamp_text(token.created_at), expires
