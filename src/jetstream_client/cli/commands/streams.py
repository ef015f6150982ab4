"""`jetstream stream …`: create, list, describe, alter, pause, hand over, purge, delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.commands.backup import backup, restore
from jetstream_client.cli.commands.digest import digest
from jetstream_client.cli.commands.elect import elect
from jetstream_client.cli.commands.reassign import reassign
from jetstream_client.cli.output import emit_json, node_text, print_fields, print_table, stream_row
from jetstream_client.cli.units import (
    age_text,
    duration_text,
    parse_duration,
    parse_size,
    size_text,
)
from jetstream_client.cli.watching import Watch, show
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import DamagedRange, ReplicaProgress, Stream, StreamDescription

app = options.group("Create, look at, alter and delete streams.")


class FlushChoice(StrEnum):
    none = "none"
    interval = "interval"
    group = "group"


class AcksChoice(StrEnum):
    reply = "reply"
    envelope = "envelope"
    off = "off"


MinInsyncReplicas = Annotated[
    int | None, typer.Option(min=1, help="Replicas that must be in sync for an acknowledgement.")
]
FlushOption = Annotated[
    FlushChoice | None,
    typer.Option(help="When to fsync. Default: group at one replica, interval at more."),
]
AcksOption = Annotated[AcksChoice | None, typer.Option(help="How to acknowledge. Default: reply.")]
MaxAge = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Remove records older than this (90s, 1h30m, 7d). 0: never.",
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_size,
        metavar="SIZE",
        help="Remove the oldest records beyond this size (10GB). 0: unlimited.",
    ),
]
MaxMessages = Annotated[
    int | None,
    typer.Option(min=0, help="Remove the oldest records beyond this number. 0: unlimited."),
]
Compact = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help="Keep the last record of each key.")
]
TombstoneGrace = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How long tombstones stay once compacted. Default: 24h.",
    ),
]
DuplicateWindow = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How long message ids are remembered. 0: not. Default: 2m.",
    ),
]
SegmentBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_size, metavar="SIZE", help="Size at which a segment rolls. 0: the server's."
    ),
]
SegmentAge = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Age at which a segment rolls. 0: as the other settings need.",
    ),
]


_DURATIONS = ("max_age", "tombstone_grace", "duplicate_window", "segment_age", "hand_over_gap")
"""Fields of `describe` in seconds."""

_ZERO_MEANS = {
    "max_age": "unlimited",
    "max_bytes": "unlimited",
    "max_messages": "unlimited",
    "duplicate_window": "off",
    "segment_bytes": "the server's default",
    "segment_age": "as the other settings need",
}


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")],
    subject: Annotated[
        str, typer.Option(help="NATS subject to keep; '*' and '>' as in NATS.", metavar="SUBJECT")
    ],
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of replicas. Default: 3, or as many as there are nodes."),
    ] = None,
    min_insync_replicas: MinInsyncReplicas = None,
    group: Annotated[
        str, typer.Option(help="Share the subject with the streams of this group.")
    ] = "",
    flush: FlushOption = None,
    acks: AcksOption = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    compact: Compact = None,
    tombstone_grace: TombstoneGrace = None,
    duplicate_window: DuplicateWindow = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    allow_same_name: Annotated[
        bool,
        typer.Option(
            "--allow-same-name", help="Even if another subject has a stream of that name."
        ),
    ] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Create a stream. Creating the same one again is fine.

    Example:  jetstream stream create orders --subject 'orders.>'
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        stream = client.create_stream(
            name,
            subject,
            replicas=replicas,
            min_insync_replicas=min_insync_replicas,
            flush=None if flush is None else flush.value,
            acks=None if acks is None else acks.value,
            group=group,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            compact=compact,
            tombstone_grace=tombstone_grace,
            duplicate_window=duplicate_window,
            segment_bytes=segment_bytes,
            segment_age=segment_age,
            allow_same_name=allow_same_name,
        )
    if options.wants_json(context, json):
        emit_json(stream_row(stream))
    else:
        print(f"stream {stream.name} keeps {stream.subject}")


@app.command()
def create_group(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The group's name; its streams are NAME-0 and on.")
    ],
    subject: Annotated[
        str, typer.Option(help="NATS subject to keep; '*' and '>' as in NATS.", metavar="SUBJECT")
    ],
    streams: Annotated[int, typer.Option(min=1, help="How many streams it is to have.")],
    replicas: Annotated[
        int | None,
        typer.Option(min=1, help="Number of replicas. Default: 3, or as many as there are nodes."),
    ] = None,
    min_insync_replicas: MinInsyncReplicas = None,
    flush: FlushOption = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    compact: Compact = None,
    duplicate_window: DuplicateWindow = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Create streams that share a subject by key.

    They are a keyed group: NAME-0, NAME-1 and so on. The key of a record chooses one of them. Again
    with the same number this finishes what failed; with a higher one the group grows, and keys are
    shared out anew. The limits hold for each stream.

    Example:  jetstream stream create-group orders --subject 'orders.>' --streams 8
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        created = client.create_group(
            name,
            subject,
            streams=streams,
            replicas=replicas,
            min_insync_replicas=min_insync_replicas,
            flush=None if flush is None else flush.value,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            compact=compact,
            duplicate_window=duplicate_window,
        )
    if options.wants_json(context, json):
        for stream in created:
            emit_json(stream_row(stream))
    else:
        print(f"streams {created[0].name} to {created[-1].name} keep {subject} by key")


@app.command()
def alter(
    context: typer.Context,
    stream: options.StreamName,
    min_insync_replicas: MinInsyncReplicas = None,
    flush: FlushOption = None,
    acks: AcksOption = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    compact: Compact = None,
    tombstone_grace: TombstoneGrace = None,
    duplicate_window: DuplicateWindow = None,
    segment_bytes: SegmentBytes = None,
    segment_age: SegmentAge = None,
    stream_epoch: Annotated[
        int | None,
        typer.Option(min=0, help="Change it only if the stream still has this epoch."),
    ] = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Change settings of a running stream; others stay.

    Example:  jetstream stream alter orders --max-age 1h --max-bytes 10GB
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        after = client.alter_stream(
            stream,
            stream_epoch=stream_epoch,
            min_insync_replicas=min_insync_replicas,
            flush=None if flush is None else flush.value,
            acks=None if acks is None else acks.value,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            compact=compact,
            tombstone_grace=tombstone_grace,
            duplicate_window=duplicate_window,
            segment_bytes=segment_bytes,
            segment_age=segment_age,
        )
    if options.wants_json(context, json):
        emit_json(stream_row(after))
    else:
        print(f"altered {after.name}, stream epoch {after.stream_epoch}")


@app.command("list")
def list_(
    context: typer.Context,
    feeding: Annotated[
        str,
        typer.Option(metavar="SUBJECT", help="Only streams that store messages on this subject."),
    ] = "",
    internal: Annotated[
        bool, typer.Option("--internal", help="Also the server's own, such as __cursors.")
    ] = False,
    watch: Watch = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """List the streams.

    REPLICAS: how many are in sync, of how many. LAST: the age of the last record. "-": no leader
    answers. MESSAGES of a compacted stream counts offsets, so it is an upper bound. STATE:
    read-only, paused, both, or "-".

    Examples:

      jetstream stream list --feeding orders.eu

      jetstream stream list --watch
    """
    as_json = options.wants_json(context, json)
    with Client.from_config(
        options.config_of_one_thing(context, server, timeout, watch=watch)
    ) as client:
        draw = _draw_json_lines if as_json else _draw_list
        show(
            lambda: client.describe_streams(feeding, internal=internal),
            draw,
            watch=watch,
            lines=as_json,
        )


def _draw_json_lines(streams: Sequence[StreamDescription]) -> None:
    for stream in streams:
        _draw_json(stream)


_LIST = (
    *("NAME", "SUBJECT", "GROUP", "LEADER", "REPLICAS"),
    *("MESSAGES", "BYTES", "LAST", "STATE"),
)


def _draw_list(streams: Sequence[StreamDescription]) -> None:
    columns = (
        "NAME",
        "SUBJECT",
        "GROUP",
        "LEADER",
        "REPLICAS",
        "MESSAGES",
        "BYTES",
        "LAST",
        "STATE",
    )
    now = datetime.now(UTC)
    print_table(columns, [_list_cells(stream, now) for stream in streams])


def _list_cells(stream: StreamDescription, now: datetime) -> tuple[object, ...]:
    """See `list_`."""
    messages = "-"
    if stream.high_watermark is not None and stream.log_start_offset is not None:
        at_most = "<=" if stream.compact else ""
        messages = f"{at_most}{stream.high_watermark - stream.log_start_offset}"
    return (
        stream.name,
        stream.subject or "-",
        stream.group or "-",
        node_text(stream.leader),
        f"{len(stream.isr)}/{len(stream.replicas)}",
        messages,
        "-" if stream.size_bytes is None else size_text(stream.size_bytes),
        "-" if stream.last_append is None else age_text(now - stream.last_append),
        ", ".join(_marks(stream)) or "-",
    )


def _marks(stream: Stream) -> Iterator[str]:
    if stream.readonly:
        yield "read-only"
    if stream.paused:
        yield "paused"


@app.command()
def describe(
    context: typer.Context,
    stream: options.StreamName,
    watch: Watch = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show a stream: settings, replicas, offsets, counters.

    Examples:

      jetstream stream describe orders --json | jq .high_watermark

      jetstream stream describe orders --watch
    """
    as_json = options.wants_json(context, json)
    with Client.from_config(
        options.config_of_one_thing(context, server, timeout, watch=watch)
    ) as client:
        draw = _draw_json if as_json else _draw_description
        show(lambda: client.describe_stream(stream), draw, watch=watch, lines=as_json)


def _draw_json(stream: Stream) -> None:
    emit_json(stream_row(stream))


def _draw_description(description: StreamDescription) -> None:
    row = stream_row(description)
    row["leader"] = node_text(description.leader)
    row["progress"] = tuple(map(_progress_text, description.progress))
    row |= _compaction_fields(row.pop("compaction"))
    row["damaged"] = tuple(map(_damaged_text, description.damaged))
    row |= {name: duration_text(row[name]) for name in _DURATIONS if row[name] is not None}
    row |= {name: said for name, said in _ZERO_MEANS.items() if not getattr(description, name)}
    print_fields(row)


def _compaction_fields(compaction: dict[str, Any] | None) -> dict[str, Any]:
    """One line for each, under its own name."""
    if compaction is None:
        return {}
    fields = {f"compaction_{name}": value for name, value in compaction.items()}
    fields["compaction_dirty_ratio"] = f"{compaction['dirty_ratio']:.2f}"
    fields["compaction_ended_at"] = compaction["ended_at"] or "-"
    return fields


def _damaged_text(damaged: DamagedRange) -> str:
    if damaged.start == damaged.end:
        return f"node {damaged.node}: all of it is looked at"
    return f"node {damaged.node} has lost {damaged.start} to {damaged.end - 1}"


def _progress_text(follower: ReplicaProgress) -> str:
    if follower.lag is None:
        return f"node {follower.node} not heard of"
    return f"node {follower.node} at {follower.offset} (lag {follower.lag})"


@app.command()
def readonly(
    context: typer.Context,
    stream: options.StreamName,
    undo: Annotated[bool, typer.Option("--undo", help="Make it writable again.")] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Make a stream refuse every record; it is read as before.

    Examples:

      jetstream stream readonly orders

      jetstream stream readonly orders --undo
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        after = client.set_stream_readonly(stream, not undo)
    said = "takes records again" if undo else "is read-only"
    _say_changed(context, json, after, f"{after.name} {said}")


@app.command()
def pause(
    context: typer.Context,
    stream: options.StreamName,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Stop listening to a stream's subject, until `resume`.

    What is published meanwhile is not stored, and publishers that ask for no acknowledgement are
    not told. The stream is read as before.

    Example:  jetstream stream pause orders
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        after = client.pause_stream(stream)
    _say_changed(context, json, after, f"paused {after.name}")


@app.command()
def resume(
    context: typer.Context,
    stream: options.StreamName,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Listen to the subject of a paused stream again.

    Example:  jetstream stream resume orders
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        after = client.resume_stream(stream)
    _say_changed(context, json, after, f"{after.name} keeps {after.subject} again")


def _say_changed(context: typer.Context, json: bool, after: Stream, said: str) -> None:
    if options.wants_json(context, json):
        emit_json(stream_row(after))
    else:
        print(said)


@app.command("transfer-leader")
def transfer_leader(
    context: typer.Context,
    stream: options.StreamName,
    node: options.NodeId,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Hand a stream's leadership to another node of its ISR.

    Example:  jetstream stream transfer-leader orders 2
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        after = client.transfer_leader(stream, node)
    if options.wants_json(context, json):
        emit_json(stream_row(after))
    else:
        print(f"node {after.leader} leads {after.name}, in epoch {after.leader_epoch}")


app.command()(elect)
app.command()(backup)
app.command()(restore)
app.command()(digest)
app.command()(reassign)


@app.command()
def delete(
    context: typer.Context,
    stream: options.StreamName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Delete a stream and all its records, for good. On a terminal it asks first.

    Example:  jetstream stream delete orders --yes
    """
    if not yes and all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout)):
        typer.confirm(f"Delete stream {stream} and all its records?", abort=True)
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        client.delete_stream(stream)
    if options.wants_json(context, json):
        emit_json({"deleted": stream})
    else:
        print(f"deleted {stream}")


@app.command()
def purge(
    context: typer.Context,
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
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Remove a stream's records, all or the oldest, for good. On a terminal it asks first.

    Only whole batches are removed, so a few records before the position may stay. A log loses
    records only at its beginning, so the records of one subject cannot be purged.

    Examples:

      jetstream stream purge orders

      jetstream stream purge orders --before 1h --yes
    """
    position = None if before is None else positions.parse_position(before)
    if not yes and all(each is not None and each.isatty() for each in (sys.stdin, sys.stdout)):
        what = "all records" if before is None else f"the records before {before}"
        typer.confirm(f"Purge {what} of stream {stream}?", abort=True)
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        start = client.purge_stream(stream, position)
    if options.wants_json(context, json):
        emit_json({"purged": stream, "log_start_offset": start})
    else:
        print(f"purged {stream}: its first offset is {start} now")
