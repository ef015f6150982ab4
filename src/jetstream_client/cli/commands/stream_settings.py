"""`jetstream stream create`, `create-group`, `alter`: the commands that set what a stream keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from jetstream_client.cli import options
from jetstream_client.cli.commands.streams_beside import note_others, streams_beside
from jetstream_client.cli.output import emit_json, stream_row
from jetstream_client.cli.stream_or_group import for_each
from jetstream_client.cli.units import parse_duration, parse_size
from jetstream_client.clients.blocking_client import Client
from jetstream_protocol.errors import InvalidRequestError


class FlushChoice(StrEnum):
    none = "none"
    interval = "interval"
    group = "group"


class AcksChoice(StrEnum):
    reply = "reply"
    envelope = "envelope"
    off = "off"


class EncryptionChoice(StrEnum):
    node = "node"
    aes_256_gcm = "aes-256-gcm"


Subject = Annotated[
    str, typer.Option(help="NATS subject to keep; '*' and '>' as in NATS.", metavar="SUBJECT")
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Number of replicas. Default: 3, or as many as there are nodes."),
]
Observers = Annotated[
    int | None,
    typer.Option(
        min=0,
        help="Number of further copies that serve readers (read from nearest) and never count.",
    ),
]
MinInsyncReplicas = Annotated[
    int | None, typer.Option(min=1, help="Replicas that must be in sync for an acknowledgement.")
]
FlushOption = Annotated[
    FlushChoice | None,
    typer.Option(help="When to fsync. Default: group at one replica, interval at more."),
]
AcksOption = Annotated[AcksChoice | None, typer.Option(help="How to acknowledge. Default: reply.")]
EncryptionOption = Annotated[
    EncryptionChoice | None,
    typer.Option(
        help="Encrypt new records on disk. Default: node, as the nodes are configured.",
    ),
]
MaxAge = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Remove records older than this (90s, 1h30m, 7d). 0: no limit.",
    ),
]
MaxBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_size,
        metavar="SIZE",
        help="Remove the oldest records beyond this size (10GB). 0: no limit.",
    ),
]
MaxMessages = Annotated[
    int | None,
    typer.Option(min=0, help="Remove the oldest records beyond this number. 0: no limit."),
]
Compact = Annotated[
    bool | None, typer.Option("--compact/--no-compact", help="Keep the last record of each key.")
]
TombstoneGrace = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How long tombstones stay after compaction first saw them. Default: 24h.",
    ),
]
DuplicateWindow = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="How long message ids are remembered. 0: not at all. Default: 2m.",
    ),
]
SegmentBytes = Annotated[
    int | None,
    typer.Option(
        parser=parse_size,
        metavar="SIZE",
        help="Size at which a segment is sealed. 0: the server's.",
    ),
]
SegmentAge = Annotated[
    float | None,
    typer.Option(
        parser=parse_duration,
        metavar="DURATION",
        help="Age at which a segment is sealed. 0: as the other settings need.",
    ),
]


@contextmanager
def _settings_are_options() -> Iterator[None]:
    """The server's advice names a setting as programs know it."""
    try:
        yield
    except InvalidRequestError as error:
        if "acks: off" not in error.message:
            raise
        message = error.message.replace("acks: off", "--acks off")
        raise InvalidRequestError(message) from error


def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")],
    subject: Subject,
    replicas: Replicas = None,
    observers: Observers = None,
    min_insync_replicas: MinInsyncReplicas = None,
    group: Annotated[
        str, typer.Option(help="Share the subject's messages with the streams of this group.")
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
    encryption: EncryptionOption = None,
    allow_same_name: Annotated[
        bool,
        typer.Option(
            "--allow-same-name", help="Create it even if another subject has a stream of this name."
        ),
    ] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Create a stream. If the same stream exists already, nothing changes.

    Example: jetstream stream create orders --subject 'orders.>'
    """
    config = options.config_of_one_thing(context, server, timeout)
    with _settings_are_options(), Client.from_config(config) as client:
        stream = client.create_stream(
            name,
            subject,
            replicas=replicas,
            observers=observers,
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
            encryption=None if encryption is None else encryption.value,
            allow_same_name=allow_same_name,
        )
        others = streams_beside(client, stream)
    options.answer(
        context, json, stream_row(stream), f"stream {stream.name} keeps {stream.subject}"
    )
    note_others(stream, others)


def create_group(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The group's name; its streams are NAME-0 and on.")
    ],
    subject: Subject,
    streams: Annotated[int, typer.Option(min=1, help="How many streams the group has afterwards.")],
    replicas: Replicas = None,
    observers: Observers = None,
    min_insync_replicas: MinInsyncReplicas = None,
    flush: FlushOption = None,
    max_age: MaxAge = None,
    max_bytes: MaxBytes = None,
    max_messages: MaxMessages = None,
    compact: Compact = None,
    duplicate_window: DuplicateWindow = None,
    encryption: EncryptionOption = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Create streams that share a subject by key.

    They are a keyed group: NAME-0, NAME-1 and so on. The key of a record chooses one of them. If
    the command fails, repeat it: it creates what is missing. With a larger number the group grows,
    and keys are shared out anew. The limits hold for each stream.

    Example: jetstream stream create-group orders --subject 'orders.>' --streams 8
    """
    with Client.from_config(options.config_of_one_thing(context, server, timeout)) as client:
        created = client.create_group(
            name,
            subject,
            streams=streams,
            replicas=replicas,
            observers=observers,
            min_insync_replicas=min_insync_replicas,
            flush=None if flush is None else flush.value,
            max_age=max_age,
            max_bytes=max_bytes,
            max_messages=max_messages,
            compact=compact,
            duplicate_window=duplicate_window,
            encryption=None if encryption is None else encryption.value,
        )
    if options.wants_json(context, json):
        for stream in created:
            emit_json(stream_row(stream))
    else:
        print(f"streams {created[0].name} to {created[-1].name} keep {subject} by key")


def alter(
    context: typer.Context,
    stream: options.StreamName,
    observers: Observers = None,
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
    encryption: EncryptionOption = None,
    stream_epoch: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=options.NUMBER_MAX,
            help="Change settings only if the stream still has this epoch.",
        ),
    ] = None,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Change settings of a running stream; other settings stay.

    With the name of a keyed group it changes all its streams. If that fails, repeat it.

    Example: jetstream stream alter orders --max-age 1h --max-bytes 10GB
    """
    config = options.config_of_one_thing(context, server, timeout)
    with _settings_are_options(), Client.from_config(config) as client:
        change = partial(
            client.alter_stream,
            stream_epoch=stream_epoch,
            observers=observers,
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
            encryption=None if encryption is None else encryption.value,
        )
        if stream_epoch is not None:
            altered = iter([(stream, change(stream))])  # An epoch is of one stream.
        else:
            altered = for_each(client, stream, change)
        for _, after in altered:
            said = f"altered {after.name}, stream epoch {after.stream_epoch}"
            options.answer(context, json, stream_row(after), said)
