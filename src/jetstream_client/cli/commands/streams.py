"""`jetstream stream …`: what is done to a stream. Here: access, leadership, deletion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.commands.backup import backup, restore
from jetstream_client.cli.commands.digest import digest
from jetstream_client.cli.commands.elect import elect
from jetstream_client.cli.commands.reassign import reassign
from jetstream_client.cli.commands.stream_settings import alter, create, create_group
from jetstream_client.cli.commands.stream_views import describe, list_
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import stream_row
from jetstream_client.cli.stream_or_group import (
    NO_SUCH_STREAM,
    each_of,
    for_each,
    listed,
    streams_in,
)
from jetstream_client.publishing.keyed_group import check_group

app = options.group("stream")
app.command()(create)
app.command()(create_group)
app.command()(alter)
app.command("list")(list_)
app.command()(describe)


@app.command()
@common_options()
def readonly(
    cli: Invocation,
    stream: options.StreamName,
    undo: Annotated[bool, typer.Option("--undo", help="Make it writable again.")] = False,
) -> None:
    """Make a stream refuse every record; it can still be read.

    Examples:

      jetstream stream readonly orders

      jetstream stream readonly orders --undo
    """
    with cli.client() as client:
        text = "takes records again" if undo else "is read-only"
        for _, after in for_each(
            client, stream, lambda each: client.set_stream_readonly(each, not undo)
        ):
            cli.answer(stream_row(after), f"{after.name} {text}")


@app.command()
@common_options()
def pause(cli: Invocation, stream: options.StreamName) -> None:
    """Stop listening to a stream's subject, until `resume`.

    Messages that are published meanwhile are not stored, and publishers that ask for no
    acknowledgement do not notice. The stream can still be read.

    Example: jetstream stream pause orders
    """
    with cli.client() as client:
        for _, after in for_each(client, stream, client.pause_stream):
            cli.answer(stream_row(after), f"paused {after.name}")


@app.command()
@common_options()
def resume(cli: Invocation, stream: options.StreamName) -> None:
    """Listen to the subject of a paused stream again.

    Example:  jetstream stream resume orders
    """
    with cli.client() as client:
        for _, after in for_each(client, stream, client.resume_stream):
            text = f"{after.name} keeps {after.subject} again"
            cli.answer(stream_row(after), text)


@app.command("transfer-leader")
@common_options()
def transfer_leader(cli: Invocation, stream: options.StreamName, node: options.NodeId) -> None:
    """Hand a stream's leadership to another node of its ISR.

    Example:  jetstream stream transfer-leader orders 2
    """
    with cli.client() as client:
        after = client.transfer_leader(stream, node)
    text = f"node {after.leader} leads {after.name}, in epoch {after.leader_epoch}"
    cli.answer(stream_row(after), text)


app.command()(elect)
app.command()(backup)
app.command()(restore)
app.command()(digest)
app.command()(reassign)


@app.command()
@common_options()
def delete(cli: Invocation, stream: options.StreamName, yes: options.Yes = False) -> None:
    """Delete a stream and all its records, for good. It asks first.

    With the name of a keyed group it deletes all its streams. If that fails, repeat it.

    Example:  jetstream stream delete orders --yes
    """
    options.confirm(f"Delete stream {stream} and all its records?", "not deleted", yes=yes)
    with cli.client() as client:
        try:
            client.delete_stream(stream)
        except NO_SUCH_STREAM as error:
            streams = streams_in(client.list_streams(), stream, error)
        else:
            cli.answer({"deleted": stream}, f"deleted {stream}")
            return
        what = f"{stream} is a keyed group: delete {listed(streams)} and all records?"
        options.confirm(what, "not deleted", yes=yes)
        for name, _ in each_of(stream, streams[::-1], client.delete_stream):
            cli.answer({"deleted": name}, f"deleted {name}")


@app.command()
@common_options()
def purge(
    cli: Invocation,
    stream: options.StreamName,
    before: Annotated[
        str | None,
        typer.Option(
            metavar=positions.METAVAR,
            help=f"Keep records from this position on: {positions.SAYS}. Default: keep nothing.",
            show_default=False,
        ),
    ] = None,
    yes: options.Yes = False,
) -> None:
    """Remove a stream's records, all or the oldest. It asks first.

    Only whole batches are removed: after --before 50 the first offset may be 20, where the batch of
    50 begins. Records can be removed only from the beginning of a log, so the records of one
    subject cannot be purged.

    Purged records cannot be read from a server any more. Their bytes stay on disk until the segment
    that holds them is sealed and nothing in it is kept. A purge of all records empties the files,
    unless more come meanwhile.

    With the name of a keyed group it purges all its streams; --before is a time then, or the last
    records of each.

    Examples:

      jetstream stream purge orders --yes

      jetstream stream purge orders --before 1h --yes
    """
    position = None if before is None else positions.parse_position(before)
    what = "all records" if before is None else f"the records before {before}"
    options.confirm(f"Purge {what} of stream {stream}?", "not purged", yes=yes)
    with cli.client() as client:
        starts: Iterable[tuple[str, int]]
        try:
            starts = [(stream, client.purge_stream(stream, position))]
        except NO_SUCH_STREAM as error:
            streams = streams_in(client.list_streams(), stream, error)
            check_group(stream, streams, position)
            what = f"{stream} is a keyed group: purge {what} of {listed(streams)}?"
            options.confirm(what, "not purged", yes=yes)
            starts = each_of(stream, streams, lambda each: client.purge_stream(each, position))
        for name, start in starts:
            row = {"purged": name, "log_start_offset": start}
            whole = isinstance(position, int) and start < position
            why = f", where the batch of {position} begins" if whole else ""
            cli.answer(row, f"purged {name}: its first offset is {start} now{why}")
