"""`jetstream stream …`: create, list, describe, alter, hand over, delete."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from jetstream_client._sync import Client
from jetstream_client._types import DamagedRange, ReplicaProgress
from jetstream_client.cli import options
from jetstream_client.cli.elect import elect
from jetstream_client.cli.output import (
    emit_json,
    node_text,
    print_fields,
    print_table,
    stream_row,
)
from jetstream_client.cli.units import duration_text, parse_duration, parse_size

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
    int | None, typer.Option(min=1, help="Copies in sync without which nothing is acknowledged.")
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
"""What `describe` has in seconds."""


@app.command()
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")],
    subject: Annotated[
        str, typer.Option(help="NATS subject to keep; '*' and '>' as in NATS.", metavar="SUBJECT")
    ],
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Copies. Default: 3, or as many as there are nodes.")
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
            "--allow-same-name", help="Also beside a stream of that name on another subject."
        ),
    ] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Create a stream. Creating the same one again is fine.

    Example:  jetstream stream create orders --subject 'orders.>'
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
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
        typer.Option(min=0, help="Only if the stream has not changed since: its epoch then."),
    ] = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Change settings of a running stream; others stay.

    Example:  jetstream stream alter orders --max-age 1h --max-bytes 10GB
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
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
        str, typer.Option(metavar="SUBJECT", help="Only those a message there goes to.")
    ] = "",
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """List the streams.

    Example:  jetstream stream list --feeding orders.eu
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        streams = client.list_streams(feeding)
    if options.wants_json(context, json):
        for stream in streams:
            emit_json(stream_row(stream))
        return
    columns = ("NAME", "SUBJECT", "GROUP", "LEADER", "REPLICAS", "ISR", "FLUSH", "ACKS")
    rows = [
        (
            stream.name,
            stream.subject,
            stream.group or "-",
            node_text(stream.leader),
            ",".join(map(str, stream.replicas)),
            ",".join(map(str, stream.isr)),
            stream.flush,
            stream.acks,
        )
        for stream in streams
    ]
    print_table(columns, rows)


@app.command()
def describe(
    context: typer.Context,
    stream: options.StreamName,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Show a stream: settings, replicas, offsets, counters.

    Example:  jetstream stream describe orders --json | jq .high_watermark
    """
    with Client.from_config(options.config(context, server, timeout)) as client:
        description = client.describe_stream(stream)
    row = stream_row(description)
    if options.wants_json(context, json):
        emit_json(row)
    else:
        row["leader"] = node_text(description.leader)
        row["progress"] = tuple(map(_progress_text, description.progress))
        row |= _compaction_fields(row.pop("compaction"))
        row["damaged"] = tuple(map(_damaged_text, description.damaged))
        row |= {name: duration_text(row[name]) for name in _DURATIONS if row[name] is not None}
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
    with Client.from_config(options.config(context, server, timeout)) as client:
        after = client.transfer_leader(stream, node)
    if options.wants_json(context, json):
        emit_json(stream_row(after))
    else:
        print(f"node {after.leader} leads {after.name}, in epoch {after.leader_epoch}")


app.command()(elect)


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
    with Client.from_config(options.config(context, server, timeout)) as client:
        client.delete_stream(stream)
    if options.wants_json(context, json):
        emit_json({"deleted": stream})
    else:
        print(f"deleted {stream}")
