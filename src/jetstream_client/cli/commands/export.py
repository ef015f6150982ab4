"""`jetstream export`: a range of a stream as a Parquet file or as lines of JSON.

The file gets its name when it is complete; until then it is `FILE.XXXXXXXX.partial`. A pipe or a
device is written to. Memory is bounded for any range: a few fetches, for Parquet also one row
group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from jetstream_client.cli import interrupts, options, positions
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import json_line, message_row
from jetstream_client.cli.progress import progress_bar
from jetstream_client.migration.whole_file import whole_file
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.messages import Message
from jetstream_client.reading.scan import Scan
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.record_json import encoded

ROW_GROUP_BYTES = 64 * 1024 * 1024
"""What Parquet readers take at a time, before compression. Bounds the memory of an export."""


class Format(StrEnum):
    parquet = "parquet"
    jsonl = "jsonl"


@common_options(patience=True, json=False)
def export(
    cli: Invocation,
    stream: options.StreamName,
    format_: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="What to write. Default: what the file's name says (.parquet), or jsonl.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file; default: standard output.", dir_okay=False),
    ] = None,
    from_: positions.From = "earliest",
    to: positions.To = "latest",
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    """Write the records between two positions to a file.

    Lines of JSON are those of `fetch --json`, with the header block verbatim (header_block,
    header_block_encoding) beside the parsed headers. Bytes that are not UTF-8 are base64, and the
    encoding says so. Parquet has the columns stream, subject, offset, timestamp, key, value,
    headers, the last three binary. Parquet needs: pip install 'jetstream-log[arrow]'

    Examples:

      jetstream export orders --output orders.parquet

      jetstream export orders --from last:1000 | jq .value
    """
    form = format_ or _format_of(output)
    start, stop = positions.parse_position(from_), positions.parse_position(to)
    with interrupts.interrupted_once(), cli.client() as client:
        if form is Format.parquet:
            scan = partial(client.scan, stream, start, stop, read_from=read_from.value)
            _parquet(scan, output)
        else:
            patience = client.config.timeout
            consumer = client.consume(
                stream, start, stop=stop, read_from=read_from.value, patience=patience
            )
            _jsonl(consumer, output)


def _format_of(output: Path | None) -> Format:
    """The format that the file's name stands for. Raises InvalidRequestError for CSV, which cannot
    hold every record."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix == ".csv":
        raise InvalidRequestError(
            f"{output}: CSV is not written; name it .parquet or .jsonl, or say --format"
        )
    return Format.parquet if suffix == ".parquet" else Format.jsonl


def _jsonl(consumer: Consumer, output: Path | None) -> None:
    length = (consumer.stop or 0) - (consumer.position or 0)
    with consumer, _whole(output) as file, progress_bar(length) as advance:
        for messages in consumer.batches():
            for message in messages:
                file.write(json_line(export_row(message)).encode())
            advance(len(messages))


def export_row(message: Message) -> dict[str, Any]:
    """`message_row` and the header block as it is stored: parsing loses order and spelling."""
    block, encoding = encoded(message.header_block or None)
    return {**message_row(message), "header_block": block, "header_block_encoding": encoding}


def _parquet(begin: Callable[[], Scan], output: Path | None) -> None:
    """`begin` asks the cluster; it is called when it is clear that the file can be written."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidRequestError(
            "export to Parquet needs pyarrow: pip install 'jetstream-log[arrow]'"
        ) from error
    if output is None and sys.stdout.isatty():
        raise InvalidRequestError("Parquet is not for terminals: use --output FILE")
    scan = begin()
    with (
        _whole(output) as file,
        progress_bar(scan.stop - scan.start) as advance,
        parquet.ParquetWriter(file, scan.schema, compression="zstd") as writer,
    ):
        group: list[Any] = []
        for batch in scan:
            group.append(batch)
            if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                writer.write_table(pyarrow.Table.from_batches(group))
                group.clear()
            advance(len(batch))
        if group:
            writer.write_table(pyarrow.Table.from_batches(group))


@contextmanager
def _whole(output: Path | None) -> Iterator[BinaryIO]:
    """Standard output, or a file."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with whole_file(output) as file:
        yield file
