"""`jetstream export`: a range of a stream, or of all streams of a keyed group, as a Parquet file or
as lines of JSON.

The file gets its name when it is complete; until then it is `FILE.XXXXXXXX.partial`. A pipe or a
device is written to. Memory is bounded for any range: a few fetches, for Parquet also one row
group.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import typer

from jetstream_client.cli import interrupts, options, positions
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import json_line, message_row
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.stream_or_group import read_each
from jetstream_client.migration.whole_file import whole_file
from jetstream_client.reading.blocking_consumer import Consumer
from jetstream_client.reading.messages import Message
from jetstream_client.reading.scan import Scan
from jetstream_client.values.types import Stream, StreamLike
from jetstream_protocol.errors import InvalidRequestError
from jetstream_protocol.extras import needed_by
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
        typer.Option(
            "--output", "-o", help="The file; default, or -: standard output.", dir_okay=False
        ),
    ] = None,
    from_: positions.From = "earliest",
    to: positions.To = "latest",
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    """Write the records between two positions to a file.

    Lines of JSON are those of `fetch --json`, with the header block verbatim (header_block,
    header_block_encoding) beside the parsed headers. Bytes that are not UTF-8 are base64, and the
    encoding says so. Parquet has the columns stream, subject, offset, timestamp, key, value,
    headers, the last three binary. Parquet needs the extra arrow.

    With the name of a keyed group it writes the records of all its streams, one stream after the
    other, up to the ends that they had when it began. Lines of JSON then say the stream, too.

    Examples:

      jetstream export orders --output orders.parquet

      jetstream export orders --from -1000 | jq .value
    """
    output = None if output == Path("-") else output
    form = format_ or _format_of(output)
    start, stop = positions.parse_position(from_), positions.parse_position(to)
    with interrupts.interrupted_once(), cli.client() as client:

        def scan(each: StreamLike) -> Scan:
            return client.scan(each, start, stop, read_from=read_from.value)

        def consume(each: StreamLike) -> _Lines:
            patience = client.config.timeout
            consumer = client.consume(
                each, start, stop=stop, read_from=read_from.value, patience=patience
            )
            return _Lines(consumer, with_stream=isinstance(each, Stream))

        if form is Format.parquet:
            _parquet(lambda: read_each(client, stream, scan, start, stop), output)
        else:
            _jsonl(read_each(client, stream, consume, start, stop), output)


def _format_of(output: Path | None) -> Format:
    """The format that the file's name stands for. Raises InvalidRequestError for CSV, which cannot
    hold every record."""
    suffix = "" if output is None else output.suffix.lower()
    if suffix == ".csv":
        raise InvalidRequestError(
            f"{output}: CSV is not written; name it .parquet or .jsonl, or say --format"
        )
    return Format.parquet if suffix == ".parquet" else Format.jsonl


class _Lines(NamedTuple):
    """What is written as lines of JSON. with_stream: it is one of several streams."""

    consumer: Consumer
    with_stream: bool

    @property
    def length(self) -> int:
        return (self.consumer.stop or 0) - (self.consumer.position or 0)


def _jsonl(sources: Sequence[_Lines], output: Path | None) -> None:
    length = sum(each.length for each in sources)
    with _whole(output) as file, progress_bar(length) as advance:
        for consumer, with_stream in sources:
            with consumer:
                for messages in consumer.batches():
                    for message in messages:
                        row = export_row(message)
                        if with_stream:
                            row = {"stream": message.stream, **row}
                        file.write(json_line(row).encode())
                    advance(len(messages))


def export_row(message: Message) -> dict[str, Any]:
    """`message_row` and the header block as it is stored: parsing loses order and spelling."""
    block, encoding = encoded(message.header_block or None)
    return {**message_row(message), "header_block": block, "header_block_encoding": encoding}


def _parquet(begin: Callable[[], Sequence[Scan]], output: Path | None) -> None:
    """`begin` asks the cluster; it is called when it is clear that the file can be written."""
    with needed_by("export to Parquet", "arrow"):
        import pyarrow
        from pyarrow import parquet
    if output is None and sys.stdout.isatty():
        raise InvalidRequestError("Parquet is not for terminals: use --output FILE")
    scans = begin()
    with (
        _whole(output) as file,
        progress_bar(sum(scan.stop - scan.start for scan in scans)) as advance,
        parquet.ParquetWriter(file, scans[0].schema, compression="zstd") as writer,
    ):
        group: list[Any] = []
        for scan in scans:
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
