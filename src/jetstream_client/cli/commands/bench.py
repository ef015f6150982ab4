"""`jetstream bench …`: the rates at which this machine publishes to a cluster and reads from it.

Rates are measured by this command's clock; the processor time is that of its process. To compare
releases or systems, use `python -m benchmarks` of the source tree, which alternates and repeats.
"""

from __future__ import annotations

import math
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

import typer

from jetstream_client.cli import options, positions
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, print_fields
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.units import parse_size, size_text
from jetstream_client.publishing.deliveries import ManyDelivery
from jetstream_client.publishing.sender import Compression

app = options.group("bench")

CHUNK = 1_000
_PERCENTILES = (50.0, 90.0, 99.0, 99.9)

_SIZE_MAX = 64 * 1024 * 1024


def _size(text: str | int) -> int:
    """Raises typer.BadParameter."""
    size = parse_size(text)
    if size > _SIZE_MAX:
        raise typer.BadParameter(f"{text!r} is more than NATS carries: say 64MiB at most.")
    return size


Messages = Annotated[int, typer.Option(min=1, help="How many messages.")]
Size = Annotated[
    int, typer.Option(parser=_size, metavar="SIZE", help="Bytes of each value: 128, 4KiB.")
]
Subject = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="A subject that a stream keeps: what is measured "
                        "stays in it.")
]  # fmt: skip


class CompressionChoice(StrEnum):
    zstd = "zstd"
    lz4 = "lz4"


@dataclass(slots=True)
class Measured:
    """messages of so many bytes in so many seconds. latencies: seconds of each request."""

    messages: int
    size_bytes: int
    seconds: float
    processor_seconds: float
    latencies: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        """Rates per second, latencies in microseconds."""
        rate = self.messages / self.seconds
        row: dict[str, Any] = {
            "messages": self.messages,
            "bytes": self.size_bytes,
            "seconds": round(self.seconds, 6),
            "messages_per_second": round(rate, 1),
            "bytes_per_second": round(self.size_bytes / self.seconds, 1),
            "processor_seconds": round(self.processor_seconds, 6),
        }
        for at, value in zip(_PERCENTILES, percentiles(self.latencies, _PERCENTILES), strict=False):
            row[f"p{at:g}_us"] = round(value * 1e6, 1)
        if self.latencies:
            row["max_us"] = round(max(self.latencies) * 1e6, 1)
        return row


def percentiles(values: Sequence[float], wanted: Sequence[float]) -> list[float]:
    """The nearest-rank percentiles; empty where nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return []
    return [ordered[max(0, math.ceil(len(ordered) * at / 100) - 1)] for at in wanted]


@app.command()
@common_options(patience=True, nats=True)
def publish(
    cli: Invocation,
    subject: Subject,
    messages: Messages = 100_000,
    size: Size = 128,
    compression: Annotated[
        CompressionChoice | None, typer.Option(help="Compression of batches. Default: none.")
    ] = None,
) -> None:
    """Publish messages in batches, as fast as they are acknowledged.

    Example:  jetstream bench publish orders.bench --messages 1000000
    """
    value = os.urandom(size)
    kind: Compression | None = None if compression is None else compression.value
    with (
        cli.client() as client,
        client.publisher(
            subject, compression=kind, delivery_timeout=cli.config.timeout
        ) as publisher,
    ):
        publisher.publish_many([value]).result()  # It is connected, and knows the streams.
        sent: deque[ManyDelivery] = deque()
        with progress_bar(messages) as advance, _Clock() as clock:
            for start in range(0, messages, CHUNK):
                count = min(CHUNK, messages - start)
                sent.append(publisher.publish_many([value] * count))
                while sent and sent[0].done():
                    sent.popleft().result()  # Raises what went wrong, and ends it.
                advance(count)
            publisher.flush()
    _tell(cli, clock.measured(messages, messages * size, []))


@app.command()
@common_options(patience=True, nats=True)
def latency(
    cli: Invocation, subject: Subject, messages: Messages = 1_000, size: Size = 128
) -> None:
    """Publish one message at a time, and wait for each.

    Example:  jetstream bench latency orders.bench
    """
    value = os.urandom(size)
    latencies: list[float] = []
    with cli.client() as client:
        client.publish(subject, value)
        with progress_bar(messages) as advance, _Clock() as clock:
            for _ in range(messages):
                begun = time.perf_counter()
                client.publish(subject, value)
                latencies.append(time.perf_counter() - begun)
                advance(1)
    _tell(cli, clock.measured(messages, messages * size, latencies))


@app.command()
@common_options(patience=True)
def fetch(
    cli: Invocation,
    stream: options.StreamName,
    from_: positions.From = "earliest",
    messages: Annotated[
        int | None, typer.Option(min=1, help="At most so many. Default: all committed records.")
    ] = None,
    read_from: options.ReadFromOption = options.ReadFromName.LEADER,
) -> None:
    """Read values, as fast as they come.

    Percentiles are of fetches.

    Example:  jetstream bench fetch orders --messages 1000000
    """
    latencies: list[float] = []
    count = length = 0
    with cli.client() as client:
        start = client.offset_at(stream, positions.parse_position(from_))
        stop = client.offset_at(stream, "latest")
        if messages is not None:
            stop = min(stop, start + messages)
        with progress_bar(stop - start) as advance, _Clock() as clock:
            offset = start
            while offset < stop:
                begun = time.perf_counter()
                found = client.fetch(
                    stream,
                    offset,
                    stop=stop,
                    max_wait=cli.config.timeout,
                    read_from=read_from.value,
                )
                latencies.append(time.perf_counter() - begun)
                values = found.values()
                count += len(values)
                length += sum(len(value or b"") for value in values)
                advance(found.next_offset - offset)
                offset = found.next_offset
    _tell(cli, clock.measured(count, length, latencies))


class _Clock:
    """The time, and this process's processor time, that something takes."""

    def __enter__(self) -> _Clock:
        self._begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = time.perf_counter(), time.process_time()

    def measured(self, messages: int, size_bytes: int, latencies: list[float]) -> Measured:
        seconds, processor = (
            ended - begun for begun, ended in zip(self._begun, self._ended, strict=True)
        )
        return Measured(messages, size_bytes, max(seconds, 1e-9), processor, latencies)


def _tell(cli: Invocation, measured: Measured) -> None:
    row = measured.row()
    if cli.json:
        emit_json(row)
        return
    fields: dict[str, object] = {
        "messages": f"{measured.messages:,}",
        "rate": f"{row['messages_per_second']:,.0f} messages/s, "
        f"{size_text(round(row['bytes_per_second']))}/s",
        "time": f"{measured.seconds:.3f} s, of the processor {measured.processor_seconds:.3f} s",
    }
    shown = [f"{name.removesuffix('_us')} {row[name]:,.0f} µs" for name in row if "_us" in name]
    if shown:
        fields["latency"] = ", ".join(shown)
    print_fields(fields)
