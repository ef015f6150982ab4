"""`jetstream group …`: consumer groups, their members, and the streams that each reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.commands.cursor import behind
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import (
    ConsumerGroup,
    CursorDescription,
    StreamDescription,
    StreamLike,
)
from jetstream_protocol.errors import NotFoundError, PreconditionFailedError

_SEEKABLE = ("current", "truncated")
"""Cursors of streams that are there."""

app = options.group("group")


@app.command("list")
@common_options(watch=True)
def list_(cli: Invocation) -> None:
    """List the consumer groups.

    LAG is that of all positions of the group together, in records; "-" if no leader answers, or
    there is no position yet.

    Example:  jetstream group list
    """
    with cli.client() as client:

        def look() -> list[_Listed]:
            lags: dict[str, int | None] = {}
            for cursor in client.describe_cursors():
                lag = lags.get(cursor.name, 0)
                known = lag is not None and cursor.lag is not None
                lags[cursor.name] = (lag or 0) + (cursor.lag or 0) if known else None
            return [_Listed(each, lags.get(each.name)) for each in client.list_groups()]

        cli.show(look, _draw_list, _draw_json_lines)


@app.command()
@common_options(watch=True)
def describe(
    cli: Invocation,
    group: options.GroupName,
) -> None:
    """Show who reads which stream of a group, and its lag.

    `group seek` moves its positions while it has no members.

    Example:  jetstream group describe workers
    """
    with cli.client() as client:

        def look() -> _Found:
            found, cursors = client.describe_group(group), client.describe_cursors(group)
            begun = {each.stream_id for each in cursors}
            unread = []
            if not begun.issuperset(found.streams):
                streams = client.describe_streams(internal=True)
                unread = [s for s in streams if s.id in found.streams and s.id not in begun]
            return _Found(found, cursors, unread)

        cli.show(look, _draw, _draw_json)


@app.command()
@common_options()
def seek(
    cli: Invocation,
    group: options.GroupName,
    to: Annotated[
        str, typer.Option(metavar=positions.METAVAR, help=f"Where to: {positions.SAYS}.")
    ],
) -> None:
    """Move the positions of a group that has no members.

    They move in all its streams, and its next members begin there. A stream must hold the offset
    that is asked for. If the command fails, repeat it.

    Examples:

      jetstream group seek workers --to earliest

      jetstream group seek workers --to 1h
    """
    where = positions.parse_position(to)
    with cli.client() as client:
        for stream in _streams_to_seek(client, group):
            found = client.seek_cursor(group, stream, where)
            row = {"group": group, "stream": found.stream, "offset": found.offset}
            cli.answer(row, f"group {group} is at offset {found.offset} of {found.stream}")


def _streams_to_seek(client: Client, group: str) -> list[StreamLike]:
    """The streams of a group, and those where one that is forgotten had positions. Raises
    PreconditionFailedError while it has members, NotFoundError."""
    cursors = [each for each in client.describe_cursors(group) if each.state in _SEEKABLE]
    begun: list[StreamLike] = [each.stream for each in cursors]
    try:
        found = client.describe_group(group)
    except NotFoundError:
        if not begun:
            raise
        return begun
    if found.members:
        raise PreconditionFailedError(
            f"consumer group {group} has {len(found.members)} members: stop them first, because "
            "they would go on where they are"
        )
    known = {each.stream_id for each in cursors}
    return begun + [each for each in found.streams if each not in known]


@app.command()
@common_options()
def delete(
    cli: Invocation,
    group: options.GroupName,
    yes: options.Yes = False,
) -> None:
    """Delete a group that has no members, and its positions.

    Its next member begins anew.
    A group without members is forgotten by itself after a week; its positions stay then.

    Example: jetstream group delete workers --yes
    """
    options.confirm(f"Forget consumer group {group} and its positions?", "not deleted", yes=yes)
    with cli.client() as client:
        client.delete_group(group)
    cli.answer({"deleted": group}, f"deleted consumer group {group}")


class _Listed(NamedTuple):
    """lag: None: not known."""

    group: ConsumerGroup
    lag: int | None


class _Found(NamedTuple):
    """unread: the group's streams of which it has no cursor yet."""

    group: ConsumerGroup
    cursors: list[CursorDescription]
    unread: list[StreamDescription]


def _draw_json_lines(groups: Sequence[_Listed]) -> None:
    for group, lag in groups:
        emit_json({**dataclasses.asdict(group), "lag": lag})


def _draw_list(groups: Sequence[_Listed]) -> None:
    columns = ("GROUP", "SOURCE", "GENERATION", "MEMBERS", "STREAMS", "LAG", "STATE")
    print_table(columns, [_cells(*each) for each in groups], "no consumer groups")


def _cells(group: ConsumerGroup, lag: int | None) -> tuple[object, ...]:
    return (
        group.name,
        group.source,
        group.generation,
        len(group.members),
        len(group.streams),
        "-" if lag is None else lag,
        _state(group),
    )


def _state(group: ConsumerGroup) -> str:
    if not group.members:
        return "empty"
    return "stable" if group.is_settled else "rebalancing"


def _draw_json(found: _Found) -> None:
    cursors = [dataclasses.asdict(each) for each in found.cursors]
    emit_json({**dataclasses.asdict(found.group), "cursors": cursors})


def _draw(found: _Found) -> None:
    group = found.group
    print_fields(
        {
            "group": group.name,
            "source": group.source,
            "generation": group.generation,
            "state": _state(group),
            "creator": group.creator or "-",
        }
    )
    print()
    positions = {each.stream_id: each for each in found.cursors}
    unread = {each.id: each for each in found.unread}
    readers = {n: m.instance or m.id for m in group.members for n in m.streams}
    rows = [
        _begun(positions[n]) if n in positions else _not_begun(n, unread.get(n))
        for n in group.streams
    ]
    members = [readers.get(n, "-") for n in group.streams]
    print_table(
        ("STREAM", "MEMBER", "OFFSET", "LAG", "BEHIND"),
        [(row[0], member, *row[1:]) for row, member in zip(rows, members, strict=True)],
    )


def _begun(cursor: CursorDescription) -> tuple[object, ...]:
    lag = "-" if cursor.lag is None else cursor.lag
    return cursor.stream, cursor.offset, lag, behind(cursor.lag_seconds)


def _not_begun(number: int, stream: StreamDescription | None) -> tuple[object, ...]:
    """The lag is that of a member that begins at the earliest record."""
    if stream is None:  # Deleted, or not for the caller to see.
        return number, "-", "-", "-"
    start, end = stream.log_start_offset, stream.high_watermark
    lag = "-" if start is None or end is None else end - start
    return stream.full_name, "-", lag, "-"
