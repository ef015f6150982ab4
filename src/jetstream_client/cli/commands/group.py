"""`jetstream group …`: consumer groups, their members, and the streams that each reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated

import typer

from jetstream_client.cli import options
from jetstream_client.cli.commands.cursor import behind
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.cli.watching import Watch, show
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import ConsumerGroup, CursorDescription

app = options.group("Show consumer groups.")


@app.command("list")
def list_(
    context: typer.Context,
    watch: Watch = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """List the consumer groups.

    Example:  jetstream group list
    """
    as_json = options.wants_json(context, json)
    config = options.config_of_one_thing(context, server, timeout, watch=watch)
    with Client.from_config(config) as client:
        draw = _draw_json_lines if as_json else _draw_list
        show(client.list_groups, draw, watch=watch, lines=as_json)


@app.command()
def describe(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group's name.")],
    watch: Watch = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show a consumer group: who reads which stream, and how far behind it is.

    `cursor seek` moves its positions while it has no members.

    Example:  jetstream group describe workers
    """
    as_json = options.wants_json(context, json)
    config = options.config_of_one_thing(context, server, timeout, watch=watch)
    with Client.from_config(config) as client:

        def look() -> tuple[ConsumerGroup, list[CursorDescription]]:
            return client.describe_group(group), client.describe_cursors(group)

        show(look, _draw_json if as_json else _draw, watch=watch, lines=as_json)


def _draw_json_lines(groups: Sequence[ConsumerGroup]) -> None:
    for group in groups:
        emit_json(dataclasses.asdict(group))


def _draw_list(groups: Sequence[ConsumerGroup]) -> None:
    columns = ("GROUP", "SOURCE", "GENERATION", "MEMBERS", "STREAMS", "STATE")
    print_table(columns, [_cells(group) for group in groups])


def _cells(group: ConsumerGroup) -> tuple[object, ...]:
    return (
        group.name,
        group.source,
        group.generation,
        len(group.members),
        len(group.streams),
        _state(group),
    )


def _state(group: ConsumerGroup) -> str:
    if not group.members:
        return "empty"
    return "stable" if group.is_settled else "rebalancing"


def _draw_json(found: tuple[ConsumerGroup, list[CursorDescription]]) -> None:
    group, cursors = found
    emit_json(
        {**dataclasses.asdict(group), "cursors": [dataclasses.asdict(each) for each in cursors]}
    )


def _draw(found: tuple[ConsumerGroup, list[CursorDescription]]) -> None:
    group, cursors = found
    print_fields(
        {
            "group": group.name,
            "source": group.source,
            "generation": group.generation,
            "state": _state(group),
        }
    )
    print()
    positions = {each.stream_id: each for each in cursors}
    readers = {n: m.instance or m.id for m in group.members for n in m.streams}
    rows = [_row(number, positions.get(number), readers) for number in group.streams]
    print_table(("STREAM", "MEMBER", "OFFSET", "LAG", "BEHIND"), rows)


def _row(
    number: int, cursor: CursorDescription | None, readers: dict[int, str]
) -> tuple[object, ...]:
    member = readers.get(number, "-")
    if cursor is None:
        return number, member, "-", "-", "-"
    lag = "-" if cursor.lag is None else cursor.lag
    return cursor.stream, member, cursor.offset, lag, behind(cursor.lag_seconds)
