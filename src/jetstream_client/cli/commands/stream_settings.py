"""`jetstream stream create`, `create-group`, `alter`: the commands that set what a stream keeps."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, stream_row
from jetstream_client.cli.setting_options import with_options
from jetstream_client.cli.stream_or_group import for_each
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.checks import NUMBER_MAX
from jetstream_client.values.types import Stream, StreamLike
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from jetstream_protocol.settings import STREAM_SETTINGS
from jetstream_protocol.subjects import covers, overlaps

Subject = Annotated[
    str, typer.Option(help="NATS subject to keep; '*' and '>' as in NATS.", metavar="SUBJECT")
]
_NOT_ALTERABLE = [each.name for each in STREAM_SETTINGS if not each.alterable]
_NOT_OF_GROUPS = ("acks", "tombstone_grace", "segment_bytes", "segment_age")
"""Settings that `create-group` leaves to `alter`."""


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


@with_options(after={"group": "min_insync_replicas"})
@common_options()
def create(
    cli: Invocation,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")],
    subject: Subject,
    group: Annotated[
        str, typer.Option(help="Share the subject's messages with the streams of this group.")
    ] = "",
    allow_same_name: Annotated[
        bool,
        typer.Option(
            "--allow-same-name", help="Create it even if another subject has a stream of this name."
        ),
    ] = False,
    **settings: Any,
) -> None:
    """Create a stream. If the same stream exists already, nothing changes.

    Example: jetstream stream create orders --subject 'orders.>'
    """
    with _settings_are_options(), cli.client() as client:
        stream = client.create_stream(
            name, subject, group=group, allow_same_name=allow_same_name, **settings
        )
        others = overlapping_streams(client, stream)
    cli.answer(stream_row(stream), f"stream {stream.name} keeps {stream.subject}")
    note_others(stream, others)


@with_options(without=_NOT_OF_GROUPS)
@common_options()
def create_group(
    cli: Invocation,
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The group's name; its streams are NAME-0 and on.")
    ],
    subject: Subject,
    streams: Annotated[int, typer.Option(min=1, help="How many streams the group has afterwards.")],
    **settings: Any,
) -> None:
    """Create streams that share a subject by key.

    They are a keyed group: NAME-0, NAME-1 and so on. The key of a record chooses one of them. If
    the command fails, repeat it: it creates what is missing. With a larger number the group grows,
    and keys are shared out anew. The limits hold for each stream.

    Example:

      jetstream stream create-group orders --subject 'orders.>' --streams 8
    """
    with cli.client() as client:
        created = client.create_group(name, subject, streams=streams, **settings)
    if cli.json:
        for stream in created:
            emit_json(stream_row(stream))
    else:
        print(f"streams {created[0].name} to {created[-1].name} keep {subject} by key")


@with_options(without=_NOT_ALTERABLE)
@common_options()
def alter(
    cli: Invocation,
    stream: options.StreamName,
    stream_epoch: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=NUMBER_MAX,
            help="Change settings only if the stream still has this epoch.",
        ),
    ] = None,
    **settings: Any,
) -> None:
    """Change settings of a running stream; other settings stay.

    With the name of a keyed group it changes all its streams. If that fails, repeat it.

    Example: jetstream stream alter orders --max-age 1h --max-bytes 10GB
    """
    with _settings_are_options(), cli.client() as client:

        def change(each: StreamLike) -> Stream:
            return client.alter_stream(each, stream_epoch=stream_epoch, **settings)

        if stream_epoch is not None:
            altered = iter([(stream, change(stream))])  # An epoch is of one stream.
        else:
            altered = for_each(client, stream, change)
        for _, after in altered:
            text = f"altered {after.name}, stream epoch {after.stream_epoch}"
            cli.answer(stream_row(after), text)


NAMED_MAX = 3
"""So many of them are named."""


def overlapping_streams(client: Client, stream: Stream) -> list[Stream]:
    """The other streams that store some of its messages. Streams of one group share their messages
    out, so they are none. Empty, too, if the streams cannot be listed: `stream` is created all the
    same."""
    try:
        known = client.list_streams()
    except JetstreamError:
        return []
    return [
        other
        for other in known
        if other.id != stream.id
        and not (stream.group and other.group == stream.group)
        and other.subject
        and overlaps(other.subject, stream.subject)
    ]


def note_others(stream: Stream, others: Sequence[Stream]) -> None:
    """On standard error: it may be meant."""
    if not others:
        return
    named = ", ".join(f"{other.name} ({other.subject})" for other in others[:NAMED_MAX])
    more = f" and {len(others) - NAMED_MAX} more" if len(others) > NAMED_MAX else ""
    verb = "stores" if len(others) == 1 else "store"
    some = "" if any(covers(other.subject, stream.subject) for other in others) else "some of "
    print(f"note: {named}{more} {verb} {some}these messages, too", file=sys.stderr)
