"""`jetstream import` and `jetstream mirror`: streams of other systems, and files."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from jetstream_client.cli import interrupts, options
from jetstream_client.cli.exits import UsageError, end_with_the_reader
from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json
from jetstream_client.cli.progress import progress_bar
from jetstream_client.cli.units import records_text
from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration import importing, json_lines, kafka, parquet
from jetstream_client.migration.file_records import Defaults
from jetstream_client.migration.nats_stream import NatsStream, StreamInfo
from jetstream_client.migration.records import Records
from jetstream_client.migration.restore import OTHERS_WERE_FASTER
from jetstream_client.values.config import NatsOptions
from jetstream_client.values.types import Stream
from jetstream_protocol.errors import (
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.times import to_timestamp_us

FOLLOW_SECONDS = 2.0
SAY_SECONDS = 1.0
"""A mirror says at most this often how far it is, and once more when nothing else comes."""

_NO_RECORDS = Records([], [], [], [], [], [])

Name = Annotated[str, typer.Argument(metavar="NAME", help="The new stream's name.")]
FromJetStream = Annotated[
    str | None, typer.Option(metavar="STREAM", help="A stream of NATS JetStream.")
]
NatsUrl = Annotated[
    str | None,
    typer.Option(
        metavar="URL,…", help="Where JetStream is. Default: the NATS servers of the cluster."
    ),
]
Subject = Annotated[
    str | None,
    typer.Option(metavar="SUBJECT", help="The new stream's subject. Default: the source's."),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, help="Number of replicas. Default: 3, or as many as there are nodes."),
]


@common_options(patience=True, nats=True)
def import_(
    cli: Invocation,
    name: Name,
    from_jetstream: FromJetStream = None,
    from_kafka: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="A topic of Kafka.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Parquet or JSON lines, of `jetstream export` or with at least `value`.",
        ),
    ] = None,
    nats: NatsUrl = None,
    kafka_servers: Annotated[
        str, typer.Option("--kafka", metavar="HOST:PORT,…", help="Where Kafka is.")
    ] = "localhost:9092",
    subject: Subject = None,
    replicas: Replicas = None,
) -> None:
    """Make a new stream of another system's records.

    The records keep their offsets, times, subjects, keys and headers. A sequence of JetStream is an
    offset + 1. At the end the stream is read back and compared, by count and record digest; then it
    listens to its subject. If an import is interrupted, run it again: it goes on where it stopped.
    Partitions of a topic of Kafka become streams NAME-0, NAME-1 … of one group; those that are
    complete are passed over. Records of a file that have no offset are counted from 0, those
    without a time have the new stream's time of creation, and those without a subject the stream's,
    which then has no wildcards.

    Examples:

      jetstream import orders --from-jetstream ORDERS --nats nats://old:4222

      jetstream import orders --from orders.parquet --subject 'orders.>'

      jetstream import orders --from-kafka orders --kafka old:9092 --subject o
    """
    if [from_jetstream, from_kafka, from_].count(None) != 2:
        raise InvalidRequestError("use one of --from-jetstream, --from-kafka, --from")
    settings: dict[str, Any] = {"replicas": replicas}
    login = cli.config.nats_options
    with interrupts.interrupted_once(), cli.client() as client:
        if from_jetstream is not None:
            done = [_from_jetstream(client, name, from_jetstream, nats, login, subject, settings)]
        elif from_kafka is not None:
            if subject is None:
                raise InvalidRequestError("name the subject of the new streams: --subject")
            done = _from_kafka(client, name, from_kafka, kafka_servers, subject, settings)
        else:
            assert from_ is not None
            done = [_from_file(client, name, from_, subject, settings)]
    for row in done:
        cli.answer(row, f"imported {_text(row)}")


@common_options(patience=True, nats=True)
def mirror(
    cli: Invocation,
    name: Name,
    from_jetstream: FromJetStream = None,
    cut_over: Annotated[
        bool, typer.Option("--cut-over", help="Copy the rest, compare, and listen to the subject.")
    ] = False,
    wait: Annotated[
        bool,
        typer.Option(
            "--wait",
            help="With --cut-over: wait for a line on standard input before the last records are "
            "copied. Without it this is done on a terminal only.",
        ),
    ] = False,
    nats: NatsUrl = None,
    subject: Subject = None,
    replicas: Replicas = None,
) -> None:
    """Follow a stream of NATS JetStream, until it is cut over.

    The new stream gets each record a moment later, and can be read like any stream. It does not
    listen to its subject. Ctrl-C stops the mirror; the next run goes on where it stopped. To cut
    over, run the same command with --cut-over: it compares both streams while publishers go on, and
    then asks you to stop them. Start them again once it has ended. Without a terminal it asks only
    with --wait; without that, stop the publishers before.

    Examples:

      jetstream mirror orders --from-jetstream ORDERS

      jetstream mirror orders --from-jetstream ORDERS --cut-over
    """
    if from_jetstream is None:
        raise InvalidRequestError("name the stream to mirror: --from-jetstream STREAM")
    settings: dict[str, Any] = {"replicas": replicas}
    login = cli.config.nats_options
    with interrupts.interrupted_once(), cli.client() as client:
        if not cut_over:
            end_with_the_reader()
            _follow(client, name, from_jetstream, nats, login, subject, settings, cli.json)
        row = _from_jetstream(
            client, name, from_jetstream, nats, login, subject, settings,
            waits=wait or options.on_terminal(),
        )  # fmt: skip
    cli.answer(row, f"cut over to {_text(row)}")


def _text(row: dict[str, Any]) -> str:
    return f"{row['stream']}: {records_text(row['records'])}, record digest {row['record_digest']}"


def _source(client: Client, name: str, nats: str | None, login: NatsOptions) -> NatsStream:
    urls = nats.split(",") if nats else list(client.describe_cluster().nats)
    return NatsStream(urls, login, name)


def _settings_of(
    info: StreamInfo, subject: str | None, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The new stream's subject and settings. Raises InvalidRequestError for a stream that cannot be
    imported."""
    if info.retention == "workqueue":
        raise InvalidRequestError(
            f"stream {info.name} is a work queue, of which JetStream lets only its workers read: "
            "let them finish what is in it, and create the new stream yourself"
        )
    if subject is None and len(info.subjects) != 1:
        listed = ", ".join(info.subjects) or "none of its own"
        raise InvalidRequestError(
            f"stream {info.name} has several subjects or none ({listed}): say the new stream's "
            "with --subject"
        )
    kept = {
        "max_age": info.max_age,
        "max_bytes": info.max_bytes,
        "max_messages": info.max_messages,
        "duplicate_window": info.duplicate_window,
    }
    return subject or info.subjects[0], {**kept, **settings}


def _from_jetstream(
    client: Client, name: str, stream: str, nats: str | None, login: NatsOptions,
    subject: str | None, settings: dict[str, Any], *, waits: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """waits: for a line on standard input, once all that there is was copied and compared; then it
    copies and compares what has come since."""
    with _source(client, stream, nats, login) as source:
        info = source.info()
        subject, settings = _settings_of(info, subject, settings)
        start, end = max(0, info.first_sequence - 1), info.last_sequence
        try:
            copying = importing.Import(client, name, subject, settings, may_shrink=True)
            copying.begin(start)
            made = copying.copy(source.records(start, end), (start, end), progress_bar)
        except OTHERS_WERE_FASTER:
            before = importing.imported_before(
                client, name, subject, lambda _: source.records(start, end), progress_bar
            )
            if before is None:
                raise
            return _row(before)
        if waits:
            _wait_for_publishers(name, stream, end)
            now = source.info()
            if now.created != info.created or now.last_sequence < end:
                raise PreconditionFailedError(
                    f"stream {stream} was deleted or began anew meanwhile: {name} is a copy of "
                    "the one before, and does not listen to its subject yet"
                )
            start, end = end, now.last_sequence
            made = copying.copy(source.records(start, end), (start, end), progress_bar)
        copying.listen()
        missed = source.info().last_sequence - end
    if missed:
        print(
            f"note: {missed} messages came to JetStream while its stream was copied: those before "
            f"{name} listened are not in it. Publishers have to rest while a stream is cut over",
            file=sys.stderr,
        )
    return _row(made)


def _wait_for_publishers(name: str, stream: str, end: int) -> None:
    print(
        f"{name} holds what {stream} has up to sequence {end}, and was compared. "
        "Stop the publishers now, then press Enter",
        file=sys.stderr,
        flush=True,
    )
    if not sys.stdin.readline():
        raise UsageError("standard input ended before a line came: nothing was cut over")


def _follow(
    client: Client, name: str, stream: str, nats: str | None, login: NatsOptions,
    subject: str | None, settings: dict[str, Any], as_json: bool,
) -> None:  # fmt: skip
    def opened() -> NatsStream:
        return _source(client, stream, nats, login)

    with opened() as source:
        info = source.info()
    subject, settings = _settings_of(info, subject, settings)
    copying = importing.Import(client, name, subject, settings, may_shrink=True)
    copying.begin(max(0, info.first_sequence - 1))
    before, reported_at = -1, -math.inf
    for records in _followed(opened, info, lambda: copying.next_offset):
        if len(records):
            copying.add([records], lambda _: None)
        due = not len(records) or time.monotonic() >= reported_at + SAY_SECONDS
        if due and copying.next_offset != before:
            before, reported_at = copying.next_offset, time.monotonic()
            if as_json:
                emit_json({"stream": name, "next_offset": before})
            else:
                print(f"{name} holds what {stream} has up to sequence {before}")
            sys.stdout.flush()


def _followed(
    opened: Callable[[], NatsStream], info: StreamInfo, next_offset: Callable[[], int]
) -> Iterator[Records]:
    """The records from `next_offset()` on, without end: JetStream may be away for a while. Raises
    PreconditionFailedError if the stream is another one when it is back."""
    trouble = ""
    while True:
        try:
            with opened() as source:
                now = source.info()
                if now.created != info.created or now.last_sequence < next_offset():
                    raise PreconditionFailedError(
                        f"stream {info.name} was deleted or began anew meanwhile: what was copied "
                        "is of the one before"
                    )
                for records in source.records(next_offset(), None, wait=FOLLOW_SECONDS):
                    if trouble:
                        trouble = ""
                        print("note: the mirror goes on", file=sys.stderr, flush=True)
                    yield records
        except UnavailableError as error:
            if error.message != trouble:
                trouble = error.message
                print(f"note: the mirror waits: {trouble}", file=sys.stderr, flush=True)
            time.sleep(FOLLOW_SECONDS)


def _from_file(
    client: Client, name: str, path: Path, subject: str | None, settings: dict[str, Any]
) -> dict[str, Any]:
    if not path.is_file():
        raise InvalidRequestError(
            f"{path} is no file; a folder with a backup is restored: jetstream stream restore"
        )
    if subject is None:
        raise InvalidRequestError("name the subject of the new stream: --subject")
    read = parquet.read if path.suffix == ".parquet" else json_lines.read
    # Most files that cannot be imported are refused before anything is made.
    first = next(read(path, Defaults(subject, 0)), _NO_RECORDS)
    start = first.offsets[0] if len(first) else 0
    end = start

    def noted(parts: Iterable[Records]) -> Iterable[Records]:
        nonlocal end
        for part in parts:
            if len(part):
                end = part.offsets[-1] + 1
                yield part

    def records(stream: Stream) -> Iterable[Records]:
        # The same time each time that an interrupted import goes on.
        return read(path, Defaults(subject, to_timestamp_us(stream.created_at)))

    try:
        copying = importing.Import(client, name, subject, settings, may_shrink=False)
        copying.begin(start)
        with progress_bar(None, "copying") as advance:
            copying.add(noted(records(copying.stream)), advance)
        with progress_bar(end - start, "comparing") as advance:
            done = copying.verify(end, advance)
    except OTHERS_WERE_FASTER:
        before = importing.imported_before(client, name, subject, records, progress_bar)
        if before is None:
            raise
        return _row(before)
    copying.listen()
    return _row(done)


def _from_kafka(
    client: Client, name: str, topic: str, servers: str, subject: str, settings: dict[str, Any]
) -> list[dict[str, Any]]:
    done = []
    complete = {
        each.name: each.partition
        for each in client.list_streams()
        if each.group == name and not each.restoring
    }
    with kafka.KafkaTopic(servers, topic) as source:
        bounds = source.bounds(client.config.timeout)
        for partition, (start, end) in bounds.items():
            if complete.get(f"{name}-{partition}") == partition:
                _check_complete(client, f"{name}-{partition}", end)
                print(f"note: {name}-{partition} is complete already", file=sys.stderr)
                continue
            records = source.records(partition, start, end, subject.encode(), client.config.timeout)
            grouped = {
                **settings, "group": name, "partition": partition, "partitions": len(bounds)
            }  # fmt: skip
            made = importing.run(
                client, f"{name}-{partition}", subject, grouped, records, (start, end),
                progress_bar, may_shrink=True,
            )  # fmt: skip
            done.append(_row(made))
    return done


def _check_complete(client: Client, stream: str, end: int) -> None:
    """Raises PreconditionFailedError if the stream ends before its partition: something has come to
    Kafka since it was imported, or it was not imported."""
    found = client.offset_at(stream, "latest")
    if found < end:
        raise PreconditionFailedError(
            f"{stream} exists already and ends at offset {found}, and its partition in Kafka at "
            f"{end}: what is between is not in it; stop the publishers of Kafka, delete {stream} "
            "and run the same again"
        )


def _row(made: importing.Imported) -> dict[str, Any]:
    if made.removed:
        print(
            f"note: {made.stream.name} also holds {records_text(made.removed)} copied before, that "
            "the source has removed since",
            file=sys.stderr,
        )
    return {"stream": made.stream.name, "records": made.count, "record_digest": made.digest}
