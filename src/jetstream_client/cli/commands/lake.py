"""`jetstream lake …`: what of the streams is in the lake, and how engines find it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Any

import typer

from jetstream_client.cli import options
from jetstream_client.cli.completion import complete_stream
from jetstream_client.cli.exits import Exit
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import printable
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.units import age_text, records_text
from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.restore import begin_restoring, listen
from jetstream_client.values.types import StreamLake
from jetstream_protocol.errors import NotFoundError, OffsetOutOfRangeError, UnavailableError

app = options.group("lake")

_BYTES_MAX = 4 * 1024 * 1024

Named = Annotated[
    str | None,
    typer.Argument(
        metavar="[STREAM]", help="A stream's name; otherwise all.",
        autocompletion=complete_stream,
    ),
]  # fmt: skip


@app.command()
@common_options()
def status(cli: Invocation, stream: Named = None) -> None:
    """Show which records are in the lake, and how many wait.

    Example: jetstream lake status
    """
    with cli.client() as client:
        rows = list(_found(client, stream))
    cli.table(
        ("STREAM", "START", "END", "WAITING", "PROBLEM"),
        rows,
        lambda each: (
            printable(each[0]), each[1].start_offset, each[1].end_offset, each[1].waiting,
            printable(each[1].problem) or "-",
        ),
        lambda each: _row(*each),
        "no stream with a lake",
    )  # fmt: skip


def _found(client: Client, stream: str | None) -> Iterator[tuple[str, StreamLake]]:
    if stream is not None:
        found = client.describe_lake(stream)
        if not (found.table_url or client.describe_stream(stream).lake):
            raise NotFoundError(
                f"stream {stream!r} has no lake: "
                f"jetstream stream alter {stream} --lake gives it one"
            )
        yield stream, found
        return
    for each in client.list_streams():
        if each.lake:
            yield each.full_name, client.describe_lake(each)


def _table(client: Client, stream: str) -> StreamLake:
    found = client.describe_lake(stream)
    if not found.table_url:
        raise NotFoundError(f"nothing of stream {stream!r} is in the lake yet")
    return found


def _row(name: str, found: StreamLake) -> dict[str, Any]:
    return {
        "stream": name,
        "start_offset": found.start_offset,
        "end_offset": found.end_offset,
        "waiting": found.waiting,
        "table_url": found.table_url,
        "problem": found.problem,
    }


@app.command()
@common_options()
def url(cli: Invocation, stream: options.StreamName) -> None:
    """Show where a stream's table is, and how engines read it.

    The URL is of the table as it is now: later records are in later versions of it. The catalog,
    at /iceberg/v1 of a node's HTTP port, always has the newest one.

    Example: jetstream lake url orders
    """
    with cli.client() as client:
        found = _table(client, stream)
    at = printable(found.table_url)
    lines = [
        at,
        "",
        f'Polars:     pl.scan_iceberg("{at}")',
        f'PyIceberg:  StaticTable.from_metadata("{at}").scan()',
        f"DuckDB:     SELECT * FROM iceberg_scan('{at}')",
        f'Spark:      spark.read.format("iceberg").load("{at}")',
    ]
    cli.answer({"stream": stream, "table_url": found.table_url}, "\n".join(lines))


@app.command()
@common_options(patience=True)
def verify(cli: Invocation, stream: options.StreamName) -> None:
    """Read all that is in the lake, and check every batch.

    A node reads it. Exit code 6: some of it cannot be read.

    Example: jetstream lake verify orders
    """
    with cli.client() as client:
        found = _table(client, stream)
        checked, problem = _read(client, stream, found)
    row = {"stream": stream, "records": checked, "problem": problem}
    cli.answer(
        row,
        printable(problem)
        or f"{records_text(checked)} of {printable(stream)} {'is' if checked == 1 else 'are'} well",
    )
    if problem:
        raise typer.Exit(Exit.DAMAGED)


@app.command()
@common_options()
def sweep(
    cli: Invocation,
    stream: Named = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Delete nothing: show what would be deleted.")
    ] = False,
) -> None:
    """Delete what lies in the lake and no table needs.

    Interrupted copies and purges leave such objects.
    The leader of a stream does it by itself from time to time. Nothing goes before a sweep has
    found it unneeded for `lake.grace`, counted since this leader leads. DELETED: yes, or when at
    the earliest. It shows the 1,000 objects of a stream that go first.

    Example: jetstream lake sweep orders --dry-run
    """
    done = "would be" if dry_run else "yes"
    with cli.client() as client:
        names = [name for name, _ in _found(client, stream)]
        rows = [(name, each) for name in names for each in client.sweep_lake(name, dry_run=dry_run)]
    cli.table(
        ("STREAM", "OBJECT", "DELETED"),
        rows,
        lambda row: (
            printable(row[0]), printable(row[1].name),
            f"in {age_text(timedelta(seconds=row[1].wait))}" if row[1].wait else done,
        ),
        lambda row: {
            "stream": row[0], "object": row[1].name, "wait": row[1].wait,
            "deleted": not (row[1].wait or dry_run),
        },
        "nothing to delete",
    )  # fmt: skip


@app.command()
@common_options()
def adopt(
    cli: Invocation,
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE",
            help="URL of the folder of a lost stream in the lake, or of its table's metadata.",
        ),
    ],
    name: Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")],
    subject: Annotated[str, typer.Option(metavar="SUBJECT", help="The new stream's subject.")],
    replicas: Annotated[int, typer.Option(min=1, help="Number of replicas.")] = 1,
) -> None:
    """Make a stream of a table that a lost cluster has left in the lake.

    The stream holds the records of the table, with their offsets, and goes on after them. Nothing
    is copied: the objects stay where they are. The lost cluster must not come back, or it would
    delete objects which it does not need. If this is interrupted, run it again.

    Example:

      jetstream lake adopt s3://bucket/4bf4ddc9/7-17644 orders --subject orders
    """
    with cli.client() as client:
        stream, _ = begin_restoring(client, name, subject, {"lake": True, "replicas": replicas})
        client.adopt_lake(stream, table)
        listen(client, stream, {})
        found = client.describe_lake(stream)
    row = _row(stream.full_name, found)
    text = f"{printable(name)} has the records {found.start_offset} to {found.end_offset - 1}"
    cli.answer(row, text)


def _read(client: Client, stream: str, found: StreamLake) -> tuple[int, str]:
    """How many records can be read, and why not more; "": those are all."""
    offset, count = found.start_offset, 0
    with progress_bar(found.end_offset - offset) as advance:
        while offset < found.end_offset:
            try:
                fetched = client.fetch(stream, offset, max_bytes=_BYTES_MAX)
            except OffsetOutOfRangeError as error:
                if error.log_start_offset <= offset:
                    raise
                offset = error.log_start_offset  # It was purged meanwhile.
                continue
            except UnavailableError as error:
                return count, f"from offset {offset} on: {error.message}"
            offsets = [each for each in fetched.offsets() if each < found.end_offset]
            count += len(offsets)
            advance(fetched.next_offset - offset)
            offset = fetched.next_offset
    return count, ""
