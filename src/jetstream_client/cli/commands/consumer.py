"""`jetstream consumer …`: consumers, whose messages several readers share."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.completion import complete_consumer
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_fields, print_table
from jetstream_client.cli.units import duration_text, parse_duration
from jetstream_client.values.consumers import ConsumerDescription
from jetstream_protocol.times import to_datetime

app = options.group("consumer")

ConsumerName = Annotated[
    str,
    typer.Argument(metavar="CONSUMER", help="A consumer's name.", autocompletion=complete_consumer),
]
Duration = Annotated[
    float,
    typer.Argument(metavar="DURATION", help="For how long: 90s, 5m, 2h.", parser=parse_duration),
]


@app.command("list")
@common_options(watch=True)
def list_(cli: Invocation, stream: options.OptionalStreamName = None) -> None:
    """List the consumers of a stream, or of all streams.

    Those that NATS clients made are among them.

    PENDING messages are not delivered yet, UNACKED ones are and are not acknowledged. OLDEST: since
    the first of those was delivered.

    Example:  jetstream consumer list jobs --watch
    """
    with cli.client() as client:
        cli.show(lambda: client.list_consumers(stream), _draw_list, _draw_json_lines)


@app.command()
@common_options(watch=True)
def describe(cli: Invocation, stream: options.StreamName, consumer: ConsumerName) -> None:
    """Show one consumer.

    Example:  jetstream consumer describe jobs mailers
    """
    with cli.client() as client:
        cli.show(lambda: client.describe_consumer(stream, consumer), _draw, _draw_json)


@app.command()
@common_options()
def create(
    cli: Invocation,
    stream: options.StreamName,
    consumer: ConsumerName,
    start: Annotated[
        str, typer.Option(metavar=positions.METAVAR, help="Where a new consumer begins.")
    ] = "earliest",
    filter_: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="SUBJECT", help="Only these subjects; repeatable."),
    ] = None,
    ack_wait: Annotated[
        float | None,
        typer.Option(
            metavar="DURATION",
            parser=parse_duration,
            help="After so long without an acknowledgement a message comes again; default: 30s.",
        ),
    ] = None,
    backoff: Annotated[
        list[float] | None,
        typer.Option(
            metavar="DURATION",
            parser=parse_duration,
            help="Instead, for the first, second, … delivery; repeatable.",
        ),
    ] = None,
    max_deliver: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=0, max=2**31 - 1, help="How often a message is delivered; 0: always."
        ),
    ] = None,
    dead_letter: Annotated[
        str | None,
        typer.Option(
            metavar="SUBJECT", help="Where readers publish what was delivered that often."
        ),
    ] = None,
    max_ack_pending: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=10_000, help="Unacknowledged messages; default: 1,000."
        ),
    ] = None,
) -> None:
    """Create a consumer, or alter it.

    Of one that there is, only the given options change.

    Examples:

      jetstream consumer create jobs mailers --ack-wait 1m

      jetstream consumer create jobs mailers --max-deliver 5 --dead-letter dead
    """
    where = positions.parse_position(start)
    with cli.client() as client:
        found = client.create_consumer(
            stream,
            consumer,
            start=where,
            filter=filter_ or (),
            ack_wait=ack_wait,
            backoff=backoff or (),
            max_deliver=max_deliver,
            dead_letter=dead_letter,
            max_ack_pending=max_ack_pending,
        )
    _answer(cli, found, f"consumer {consumer} of {found.stream} is at offset {found.position}")


@app.command()
@common_options()
def delete(
    cli: Invocation,
    stream: options.StreamName,
    consumer: ConsumerName,
    yes: options.Yes = False,
) -> None:
    """Delete a consumer: a new one of its name begins anew.

    Example:  jetstream consumer delete jobs mailers --yes
    """
    options.confirm(f"Forget what {consumer} has acknowledged in {stream}?", "not deleted", yes=yes)
    with cli.client() as client:
        client.delete_consumer(stream, consumer)
    cli.answer({"deleted": consumer, "stream": stream}, f"deleted consumer {consumer} of {stream}")


@app.command()
@common_options()
def pause(
    cli: Invocation,
    stream: options.StreamName,
    consumer: ConsumerName,
    duration: Duration,
) -> None:
    """Deliver nothing for a while. What is delivered may be acknowledged.

    Example:  jetstream consumer pause jobs mailers 10m
    """
    with cli.client() as client:
        found = client.pause_consumer(stream, consumer, duration)
    _answer(
        cli, found, f"consumer {consumer} of {found.stream} pauses for {duration_text(duration)}"
    )


@app.command()
@common_options()
def resume(cli: Invocation, stream: options.StreamName, consumer: ConsumerName) -> None:
    """Deliver again.

    Example:  jetstream consumer resume jobs mailers
    """
    with cli.client() as client:
        found = client.resume_consumer(stream, consumer)
    _answer(cli, found, f"consumer {consumer} of {found.stream} delivers")


def _answer(cli: Invocation, consumer: ConsumerDescription, text: str) -> None:
    if cli.json:
        _draw_json(consumer)
    else:
        print(text)


def _draw_json_lines(consumers: Sequence[ConsumerDescription]) -> None:
    for consumer in consumers:
        _draw_json(consumer)


def _draw_json(consumer: ConsumerDescription) -> None:
    emit_json(dataclasses.asdict(consumer))


def _draw_list(consumers: Sequence[ConsumerDescription]) -> None:
    columns = (
        "CONSUMER",
        "STREAM",
        "POSITION",
        "PENDING",
        "UNACKED",
        "REDELIVERED",
        "OLDEST",
        "STATE",
    )
    print_table(columns, [_cells(consumer) for consumer in consumers], "no consumers")


def _cells(consumer: ConsumerDescription) -> tuple[object, ...]:
    oldest = consumer.oldest_unacknowledged
    return (
        consumer.name,
        consumer.stream,
        consumer.position,
        "unknown" if consumer.pending is None else consumer.pending,
        consumer.ack_pending,
        consumer.redelivered,
        "-" if oldest is None else duration_text(round(oldest, 1 if oldest < 10 else 0)),
        _state(consumer),
    )


def _state(consumer: ConsumerDescription) -> str:
    if consumer.paused_until is not None:
        return "paused"
    if consumer.is_push:
        return "pushes"
    return f"{consumer.waiting} waiting" if consumer.waiting else "no reader"


def _draw(consumer: ConsumerDescription) -> None:
    fields = dataclasses.asdict(consumer)
    oldest, paused = consumer.oldest_unacknowledged, consumer.paused_until
    fields["created"] = to_datetime(fields.pop("created_us"))
    fields["ack_wait"] = duration_text(consumer.ack_wait)
    fields["backoff"] = tuple(map(duration_text, consumer.backoff))
    fields["paused_until"] = None if paused is None else datetime.fromtimestamp(paused, UTC)
    fields["oldest_unacknowledged"] = None if oldest is None else duration_text(round(oldest, 1))
    print_fields(fields)
