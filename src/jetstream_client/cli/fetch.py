"""`jetstream fetch`: records of a stream, by offset."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from itertools import islice
from typing import Annotated

import typer

from jetstream_client._messages import Message
from jetstream_client._sync import Client
from jetstream_client._types import Position
from jetstream_client.cli import options
from jetstream_client.cli.output import json_line, message_line, message_row
from jetstream_protocol.errors import InvalidRequestError


def fetch(
    context: typer.Context,
    stream: options.StreamName,
    offset: Annotated[
        str,
        typer.Option(
            metavar="earliest|latest|N|TIME", help="Where to begin; TIME as 2026-01-31T12:00:00Z."
        ),
    ] = "earliest",
    max_: Annotated[int | None, typer.Option("--max", min=1, help="Stop after so many.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")
    ] = False,
    server: options.Server = None,
    timeout: options.Timeout = options.DEFAULT_TIMEOUT,
    json: options.Json = False,
) -> None:
    """Print a stream's records: those committed by now, or with --follow on and on.

    JSON rows carry offset, timestamp, subject, key, key_encoding, value, value_encoding, headers;
    an encoding is utf8 or base64.

    Examples:

      jetstream fetch orders --offset 1000 --max 10

      jetstream fetch orders --offset latest --follow --json | jq .value
    """
    line = _json_line if options.wants_json(context, json) else message_line
    position = parse_position(offset)
    with Client.from_config(options.config(context, server, timeout)) as client:
        _print(client, stream, position, max_, follow, line)


def _print(
    client: Client,
    stream: str,
    position: Position,
    count_max: int | None,
    follow: bool,
    line: Callable[[Message], str],
) -> None:
    end: Position | None = None if follow else "latest"
    if count_max is not None and isinstance(position, int) and not follow:
        # No need to read ahead of what is wanted.
        messages = client.fetch(stream, position, max_messages=count_max)
        sys.stdout.writelines(map(line, messages))
        return
    left = count_max
    with client.consume(stream, position, end=end) as consumer:
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


def parse_position(text: str) -> Position:
    """Raises InvalidRequestError."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(
            f"invalid offset {text!r}: say earliest, latest, a number or a time"
        ) from error
    return moment.astimezone() if moment.tzinfo is None else moment
