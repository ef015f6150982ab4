"""`jetstream cursor …`: show the positions and the lag of readers, and move them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.cli.units import age_text, duration_text
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import CursorDescription
from jetstream_protocol.errors import NotFoundError, StreamNotFoundError

app = options.group("cursor")

CursorStream = Annotated[
    str,
    typer.Argument(
        metavar="STREAM",
        help="A stream's name; name@subject, if the stream was deleted.",
        autocompletion=options.complete_stream,
    ),
]


@app.command("list")
@common_options(watch=True)
def list_(
    cli: Invocation,
    name: Annotated[
        str, typer.Option("--cursor", metavar="CURSOR", help="Only those of this name.")
    ] = "",
    stream: Annotated[
        str | None,
        typer.Option(metavar="STREAM", help="Only those in this stream.", show_default=False),
    ] = None,
) -> None:
    """List the cursors, with how far behind they are.

    LAG is in records, BEHIND is the time since the first record that is not read yet was appended;
    "-" if no leader answers, or it does not know yet what was committed. On a compacted stream LAG
    counts offsets, so it is an upper bound.

    Examples:

      jetstream cursor list --stream orders

      jetstream cursor list --watch
    """
    with cli.client() as client:
        cli.show(lambda: client.describe_cursors(name, stream=stream), _draw_list, _draw_json_lines)


@app.command()
@common_options(watch=True)
def describe(cli: Invocation, cursor: options.CursorName, stream: CursorStream) -> None:
    """Show one cursor.

    Example:  jetstream cursor describe billing orders
    """
    with cli.client() as client:
        cli.show(lambda: client.describe_cursor(cursor, stream), _draw, _draw_json)


@app.command(context_settings={"ignore_unknown_options": True})
@common_options()
def seek(
    cli: Invocation,
    cursor: options.CursorName,
    stream: CursorStream,
    position: Annotated[
        str, typer.Argument(metavar=positions.METAVAR, help=f"Where to: {positions.SAYS}.")
    ],
    create: Annotated[
        bool, typer.Option("--create", help="Make the cursor if there is none of this name.")
    ] = False,
) -> None:
    """Move a cursor; with --create, or make one.

    The next consumer of the cursor begins at this position. A consumer that uses the cursor now
    ends with an error at its next commit, so stop it first.

    Examples:

      jetstream cursor seek billing orders earliest

      jetstream cursor seek billing orders 1h

      jetstream cursor seek audit orders latest --create
    """
    where = positions.parse_position(position)
    with cli.client() as client:
        if not create:
            _check_exists(client, cursor, stream)
        found = client.seek_cursor(cursor, stream, where)
        if cli.json:
            _draw_json(client.describe_cursor(cursor, found.stream))
        else:
            print(f"cursor {cursor} is at offset {found.offset} of {found.stream}")


def _check_exists(client: Client, cursor: str, stream: str) -> None:
    """A name with a typing error would be another cursor. Raises NotFoundError."""
    try:
        client.describe_cursor(cursor, stream)
    except StreamNotFoundError:
        raise
    except NotFoundError as error:
        raise NotFoundError(f"{error.message}; --create makes one") from error


@app.command()
@common_options()
def delete(
    cli: Invocation, cursor: options.CursorName, stream: CursorStream, yes: options.Yes = False
) -> None:
    """Delete a cursor: its next consumer begins anew.

    Example: jetstream cursor delete billing orders --yes
    """
    options.confirm(f"Forget the position of {cursor} in {stream}?", "not deleted", yes=yes)
    with cli.client() as client:
        client.delete_cursor(cursor, stream)
    cli.answer({"deleted": cursor, "stream": stream}, f"deleted cursor {cursor} on {stream}")


def _draw_json_lines(cursors: Sequence[CursorDescription]) -> None:
    for cursor in cursors:
        _draw_json(cursor)


def _draw_json(cursor: CursorDescription) -> None:
    emit_json(dataclasses.asdict(cursor))


def _draw_list(cursors: Sequence[CursorDescription]) -> None:
    columns = ("CURSOR", "STREAM", "OFFSET", "LAG", "BEHIND", "COMMITTED", "STATE")
    now = datetime.now(UTC)
    print_table(columns, [_cells(cursor, now) for cursor in cursors], "no cursors")


def _cells(cursor: CursorDescription, now: datetime) -> tuple[object, ...]:
    return (
        cursor.name,
        cursor.stream,
        cursor.offset,
        "-" if cursor.lag is None else cursor.lag,
        behind(cursor.lag_seconds),
        f"{age_text(now - cursor.committed_at)} ago",
        cursor.state,
    )


def behind(seconds: float | None) -> str:
    """A lag; "-" where it is not known."""
    if seconds is None:
        return "-"
    return duration_text(round(seconds, 1 if seconds < 10 else 0))


def _draw(cursor: CursorDescription) -> None:
    fields = dataclasses.asdict(cursor)
    if cursor.lag_seconds is not None:
        fields["lag_seconds"] = f"{cursor.lag_seconds:.3f}"
    print_fields(fields)
