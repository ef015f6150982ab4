"""`jetstream token …`: make, list and revoke the tokens that say who a client is."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Annotated

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.units import parse_duration
from jetstream_client.values.access import Token
from jetstream_protocol.times import timestamp_text

app = options.group("token")

Principal = Annotated[
    str, typer.Argument(metavar="PRINCIPAL", help="The principal that it identifies: user:NAME.")
]


@app.command()
@common_options()
def create(
    cli: Invocation,
    principal: Principal,
    expires: Annotated[
        str,
        typer.Option(metavar="DURATION", help="After how long it expires (90d, 12h), or never."),
    ] = "90d",
) -> None:
    """Make a token, and print it. It cannot be shown again.

    Example: JETSTREAM_TOKEN=$(jetstream token create user:jo --expires 30d)
    """
    lifetime = None if expires == "never" else parse_duration(expires)
    with cli.client() as client:
        made = client.create_token(principal, lifetime=lifetime)
    cli.answer({**dataclasses.asdict(made.token), "token": made.text}, made.text)


@app.command("list")
@common_options()
def list_tokens(cli: Invocation) -> None:
    """List the tokens by id. Their texts are not kept anywhere.

    Example: jetstream token list --json
    """
    with cli.client() as client:
        tokens = client.list_tokens()
    columns = ("ID", "PRINCIPAL", "CREATED", "EXPIRES")
    cli.table(columns, tokens, _cells, dataclasses.asdict, "no tokens")


@app.command()
@common_options()
def revoke(
    cli: Invocation,
    token_id: Annotated[
        str, typer.Argument(metavar="ID", help="The token's id: the part between its two _.")
    ],
) -> None:
    """Revoke a token. Connections that use it are closed.

    Example: jetstream token revoke 4e54ffd8dc99
    """
    with cli.client() as client:
        client.revoke_token(token_id)
    cli.answer({"id": token_id, "revoked": True}, f"token {token_id} is revoked")


def _cells(token: Token) -> tuple[object, ...]:
    expires = "never"
    if token.expires_at is not None:
        over = " (over)" if token.expires_at < datetime.now(UTC) else ""
        expires = timestamp_text(token.expires_at) + over
    return token.id, token.principal, timestamp_text(token.created_at), expires
