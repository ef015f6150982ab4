"""`jetstream log …`: the files of a stopped server, without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from jetstream_client.cli import options
from jetstream_client.cli.exits import Exit
from jetstream_client.cli.output import emit_json, message_row, print_table
from jetstream_client.reading.messages import Chunk
from jetstream_protocol.batch import COMPRESSION_MASK
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.logfiles.dump import DumpedBatch
from jetstream_protocol.logfiles.dump import dump as dump_files
from jetstream_protocol.logfiles.findings import Finding
from jetstream_protocol.logfiles.verify import verify as verify_files
from jetstream_protocol.times import timestamp_text, to_datetime

_T = TypeVar("_T")

app = options.group("log")

LogPath = Annotated[
    Path,
    typer.Argument(
        metavar="PATH", exists=True, help="A data folder, a stream's folder, or a segment file."
    ),
]


@app.command()
def verify(context: typer.Context, path: LogPath, json: options.Json = False) -> None:
    """Say in which file, at which position, something is wrong. Changes nothing.

    Stop the server first: while it runs, the batch that it appends looks torn. Exit code 6:
    something is wrong. The server repairs what can be repaired at its next start.

    Example: jetstream log verify ./jetstream-data
    """
    findings = list(_examined(verify_files(path)))
    if options.wants_json(context, json):
        for finding in findings:
            emit_json(_finding_row(finding))
    elif findings:
        columns = ("FILE", "POSITION", "KIND", "REPAIRABLE", "WHAT")
        print_table(columns, [_finding_cells(finding) for finding in findings])
    else:
        print(f"{path}: sound")
    if findings:
        raise typer.Exit(Exit.DAMAGED)


@app.command()
def dump(
    context: typer.Context,
    path: LogPath,
    records: Annotated[
        bool, typer.Option("--records", help="Also show every record, as `fetch --json` prints it.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show every batch of a log, also before and after damage. Exit code 6: there is damage.

    Of batches that are encrypted at rest it shows the key's id, and no records: only a server that
    has the key can read these.

    Example: jetstream log dump ./jetstream-data/streams/3 --records
    """
    wants_json = options.wants_json(context, json)
    damaged = False
    rows = []
    for found in _examined(dump_files(path)):
        damaged = damaged or isinstance(found, Finding)
        if records:
            for row in _record_rows(found):
                emit_json(row)
        elif wants_json:
            emit_json(_finding_row(found) if isinstance(found, Finding) else _batch_row(found))
        else:
            rows.append(_cells(found))
    if rows:
        print_table(tuple(name.upper() for name in _SHOWN), rows)
    if damaged:
        raise typer.Exit(Exit.DAMAGED)


def _examined(found: Iterator[_T]) -> Iterator[_T]:
    """Raises InvalidRequestError for a path that holds no log."""
    try:
        yield from found
    except ValueError as error:
        raise InvalidRequestError(str(error)) from error


_SHOWN = (
    "file",
    "position",
    "base_offset",
    "last_offset",
    "leader_epoch",
    "append_timestamp",
    "records",
    "bytes",
    "compression",
    "key",
)


def _finding_row(finding: Finding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "position": finding.position,
        "kind": finding.kind.value,
        "repairable": finding.repairable,
        "message": finding.message,
    }


def _finding_cells(finding: Finding) -> tuple[object, ...]:
    repairable = "yes" if finding.repairable else "no"
    return finding.file, finding.position, finding.kind.value, repairable, finding.message


def _cells(found: DumpedBatch | Finding) -> tuple[object, ...]:
    if isinstance(found, DumpedBatch):
        row = _batch_row(found)
        return tuple(row[name] for name in _SHOWN)
    blanks = ("",) * (len(_SHOWN) - 3)
    return found.file, found.position, f"{found.kind.value}: {found.message}", *blanks


def _batch_row(dumped: DumpedBatch) -> dict[str, Any]:
    header = dumped.header
    compression = header.flags & COMPRESSION_MASK
    return {
        "file": dumped.file,
        "position": dumped.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "leader_epoch": header.leader_epoch,
        "append_timestamp": timestamp_text(to_datetime(header.append_timestamp)),
        "records": header.record_count,
        "bytes": header.length,
        "compression": Flags(compression).name.lower() if compression else "none",
        "key": dumped.key_id,
    }


def _record_rows(found: DumpedBatch | Finding) -> Iterator[dict[str, Any]]:
    if isinstance(found, Finding):
        yield _finding_row(found)
        return
    batch = found.batch
    if batch is None:
        yield {**_batch_row(found), "message": f"encrypted with key {found.key_id}"}
        return
    for message in Chunk(batch, 0, len(batch)).messages(""):
        yield message_row(message)
