"""`jetstream fetch`: records of a stream, by offset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import islice
from typing import Annotated

import typer

from jetstream_client._messages import Message
from jetstream_client._positions import Position
from jetstream_client._sync import Client
from jetstream_client._types import ReadFrom
from jetstream_client.cli import options, positions
from jetstream_client.cli.output import json_line, message_line, message_row


def fetch(
    context: typer.Context,
    stream: options.StreamName,
    offset: Annotated[
        str,
        typer.Option(
            "--offset",
            "--from",
            metavar=positions.METAVAR,
            help="Where to begin; TIME as 2026-01-31T12:00:00Z or @SECONDS.",
        ),
    ] = "earliest",
    to: Annotated[
        str | None,
        typer.Option(
            metavar=positions.METAVAR,
            help="Where to stop, not included; default: latest, with --follow nowhere.",
            show_default=False,
        ),
    ] = None,
    max_: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Print a stream's records by offset; --follow waits for more.

    Without --follow it ends with what is committed by now.

    JSON rows carry offset, timestamp, subject, key, key_encoding, value, value_encoding, headers;
    an encoding is utf8 or base64.

    Examples:

      jetstream fetch orders --offset 1000 --max 10

      jetstream fetch orders --from last:100 --to 2026-01-31T12:00:00Z

      jetstream fetch orders --offset latest --follow --json | jq .value
    """
    line = _json_line if options.wants_json(context, json) else message_line
    start = positions.parse_position(offset)
    stop: Position | None = None if follow else "latest"
    if to is not None:
        stop = positions.parse_position(to)
    with Client.from_config(options.config(context, server, timeout)) as client:
        _print(client, stream, start, stop, max_, read_from.value, line)


def _print(
    client: Client,
    stream: str,
    start: Position,
    stop: Position | None,
    count_max: int | None,
    read_from: ReadFrom,
    line: Callable[[Message], str],
) -> None:
    if count_max is not None and isinstance(start, int) and stop == "latest":
        # No need to read ahead of what is wanted.
        messages = client.fetch(stream, start, max_messages=count_max, read_from=read_from)
        sys.stdout.writelines(map(line, messages))
        return
    left = count_max
    with client.consume(stream, start, stop=stop, read_from=read_from) as consumer:
        for messages in consumer.batches():
            # Line by line: unbuffered (PYTHONUNBUFFERED), Python drops the rest of one long write
            # when the reader leaves in the middle, without a word.
            sys.stdout.writelines(map(line, islice(messages, left)))
            sys.stdout.flush()  # Whoever follows wants to see it now.
            if left is not None:
                left -= min(left, len(messages))
                if left == 0:
                    return


def _json_line(message: Message) -> str:
    return json_line(message_row(message))
