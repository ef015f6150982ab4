"""`jetstream schema …`: say what a stream's values are, so that their fields are columns."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from jetstream_client.cli import options
from jetstream_client.cli.exits import UsageError
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_table, printable
from jetstream_client.cli.units import records_text
from jetstream_client.clients.blocking_client import Client
from jetstream_client.reading.schema_files import following, from_file
from jetstream_client.reading.schema_sources import Inference
from jetstream_client.values.positions import Last, Position
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.schema import Schema, changes, parse, shown, why_incompatible

app = options.group("schema")

Text = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCHEMA]", help='As "id bigint, price double, items list<struct<sku string>>".'
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        help="A file: JSON Schema, Avro (.avsc), Protobuf (.proto, or a descriptor set: .binpb), "
        "Arrow (.arrow).",
        dir_okay=False,
    ),
]
Infer = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="Make it of the newest N records.", max=1_000_000),
]
Id = Annotated[
    int | None,
    typer.Option(
        "--id",
        metavar="N",
        help="Avro: the id that a registry's prefix has for it. Without it values have no prefix.",
        min=0,
        max=2**32 - 1,
    ),
]
Message = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Protobuf: which message of the file the values are."),
]


class FormatName(StrEnum):
    JSON = "json"
    ARROW = "arrow"


Format = Annotated[
    FormatName,
    typer.Option("--format", help="What the values of a SCHEMA are; a file tells it."),
]


class _Given(NamedTuple):
    """What the command line says of a schema."""

    text: str | None
    format: FormatName
    path: Path | None
    infer: int | None
    id: int | None
    message: str | None


@app.command("set")
@common_options(patience=True)
def set_(
    cli: Invocation,
    stream: options.StreamName,
    text: Text = None,
    format_: Format = FormatName.JSON,
    from_: From = None,
    infer: Infer = None,
    id_: Id = None,
    message: Message = None,
    drop: Annotated[bool, typer.Option("--drop", help="Take the schema away.")] = False,
) -> None:
    """Set the schema of a stream's values: JSON, Avro, Protobuf, Arrow.

    Publishers and records are not touched: a record that does not fit has nulls in its typed
    columns, and _error says why. A schema can be changed so that programs go on: wider types, new
    fields, other names with the old ones as aliases.

    Examples:

      jetstream schema set orders "id bigint, price double"

      jetstream schema set orders --infer 10000

      jetstream schema set orders --from order.avsc --id 7

      jetstream schema set orders --from orders.proto --message Order

      jetstream schema set orders --format arrow "id bigint, price double"
    """
    given = _Given(text, format_, from_, infer, id_, message)
    if drop and any(each not in (None, FormatName.JSON) for each in given):
        raise UsageError("--drop takes the schema away: say no other one", cli.context)
    with cli.client() as client:
        if drop:
            found = client.set_schema(stream, "")
        else:
            known = client.describe_schema(stream)
            before = parse(known.text) if known.text else Schema(())
            new = _schema(cli, client, stream, given, before)
            found = client.set_schema(stream, str(new), version=known.version)
    told = f"{printable(shown(found.text))}\nis version {found.version} of the schema of {stream}"
    cli.answer(_row(stream, found.version, found.text), f"{stream} has no schema" if drop else told)


@app.command()
@common_options()
def show(cli: Invocation, stream: options.StreamName) -> None:
    """Show the schema of a stream's values.

    Example: jetstream schema show orders
    """
    with cli.client() as client:
        found = client.describe_schema(stream)
    told = f"{stream} has no schema"
    if found.text:
        schema = parse(found.text)
        version = ", ".join(filter(None, (f"version {found.version}", schema.using)))
        told = "\n".join((version, *map(str, schema.fields)))
    cli.answer(_row(stream, found.version, found.text), told)


@app.command()
@common_options()
def history(cli: Invocation, stream: options.StreamName) -> None:
    """Show the versions of the schema that are kept, the newest last.

    Example: jetstream schema history orders
    """
    with cli.client() as client:
        found = client.describe_schema(stream)
    first = found.version - len(found.versions) + 1
    cli.table(
        ("VERSION", "SCHEMA"),
        list(enumerate(found.versions, first)),
        lambda each: (each[0], shown(each[1])),
        lambda each: _row(stream, *each),
        "no schema",
    )


@app.command()
@common_options(patience=True)
def diff(
    cli: Invocation,
    stream: options.StreamName,
    text: Text = None,
    format_: Format = FormatName.JSON,
    from_: From = None,
    infer: Infer = None,
    id_: Id = None,
    message: Message = None,
) -> None:
    """Show what another schema would change, and whether it may. Nothing is changed.

    Example: jetstream schema diff orders --infer 10000
    """
    given = _Given(text, format_, from_, infer, id_, message)
    with cli.client() as client:
        found = client.describe_schema(stream)
        before = parse(found.text) if found.text else Schema(())
        after = _schema(cli, client, stream, given, before)
    lines = changes(before, after)
    why = why_incompatible(before, after) if found.text else ""
    if cli.json:
        emit_json({"stream": stream, "changes": lines, "allowed": not why, "why": why})
        return
    print("\n".join(map(printable, lines)) or "no difference")
    if why:
        print(f"it cannot be set: {printable(why)}")


@app.command()
@common_options(patience=True)
def check(
    cli: Invocation,
    stream: options.StreamName,
    last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Only the newest N records.")
    ] = None,
) -> None:
    """Count the records that fit the schema, and those that do not.

    Example: jetstream schema check orders --last 100000
    """
    reasons: dict[str | None, tuple[int, int]] = {}
    with cli.client() as client:
        start: Position = "earliest" if last is None else Last(last)
        scan = client.scan(stream, start, columns=["offset", "_error"], typed=True)
        for batch in scan:
            offsets, errors = (batch.column(name).to_pylist() for name in ("offset", "_error"))
            for offset, error in zip(offsets, errors, strict=True):
                first, count = reasons.get(error, (offset, 0))
                reasons[error] = first, count + 1
    _, fitting = reasons.pop(None, (0, 0))
    if cli.json:
        emit_json({"stream": stream, "fitting": fitting, "not_fitting": [
            {"error": error, "records": count, "first_offset": first}
            for error, (first, count) in reasons.items()
        ]})  # fmt: skip
        return
    print(f"{records_text(fitting)} fit{'s' if fitting == 1 else ''}")
    if reasons:
        rows = [(error, count, first) for error, (first, count) in reasons.items()]
        print_table(("DOES NOT FIT", "RECORDS", "FIRST OFFSET"), rows)


def _row(stream: str, version: int, text: str) -> dict[str, object]:
    return {"stream": stream, "version": version, "schema": text}


def _schema(cli: Invocation, client: Client, stream: str, given: _Given, before: Schema) -> Schema:
    """The schema that the command was given. before: the one that the stream has."""
    if [given.text, given.path, given.infer].count(None) != 2:
        raise UsageError("say one of: a schema, --from FILE, --infer N", cli.context)
    if given.path is None and (given.id is not None or given.message is not None):
        raise UsageError("--id and --message are about the file of --from", cli.context)
    if given.format != FormatName.JSON:
        if given.text is None:
            raise UsageError("--format is about a SCHEMA: a file tells its own", cli.context)
        return following(before, parse(f"{given.text} using {given.format}"))
    if given.text is not None:
        return parse(given.text)
    if given.path is not None:
        return following(before, from_file(given.path, given.id, given.message))
    if before.format != "json":
        raise InvalidRequestError(
            f"--infer reads JSON, and the values of {stream} are {before.using}: say --from FILE"
        )
    inference = Inference()
    assert given.infer is not None
    for batch in client.scan(stream, Last(given.infer), columns=["value"]):
        inference.add(batch.column("value").to_pylist())
    for name, why in inference.left_out.items():
        print(f"left out: {printable(name)}: {why}", file=sys.stderr)
    if inference.has_more:
        print("left out: further names", file=sys.stderr)
    return inference.schema()
