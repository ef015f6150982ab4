"""`jetstream group …`: consumer groups, their members, and the streams that each reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from jetstream_client.cli import options
from jetstream_client.cli.commands.cursor import behind
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.values.types import ConsumerGroup, CursorDescription, StreamDescription

app = options.group("Show and delete consumer groups.")


@app.command("list")
@common_options(watch=True)
def list_(cli: Invocation) -> None:
    """List the consumer groups.

    Example:  jetstream group list
    """
    with cli.client() as client:
        cli.show(client.list_groups, _draw_list, _draw_json_lines)


@app.command()
@common_options(watch=True)
def describe(
    cli: Invocation,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group's name.")],
) -> None:
    """Show a consumer group: who reads which stream, and how far behind it is.

    `cursor seek` moves its positions while it has no members.

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
def delete(
    cli: Invocation,
    group: Annotated[str, typer.Argument(metavar="GROUP", help="A consumer group's name.")],
    yes: options.Yes = False,
) -> None:
    """Delete a consumer group without members, and its positions: its next member begins anew.

    A group without members is forgotten by itself after a week; its positions stay then.

    Example: jetstream group delete workers --yes
    """
    options.confirm(f"Forget consumer group {group} and its positions?", "not deleted", yes=yes)
    with cli.client() as client:
        client.delete_group(group)
    cli.answer({"deleted": group}, f"deleted consumer group {group}")


class _Found(NamedTuple):
    """unread: the group's streams of which it has no cursor yet."""

    group: ConsumerGroup
    cursors: list[CursorDescription]
    unread: list[StreamDescription]


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
