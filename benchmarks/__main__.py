"""The command line: `python -m benchmarks ingest|publish|read|latency|tail|raw|recover|replicate|
streams|cursors|consumers|idle-link|compaction|spark|tls|checks|encryption|typed|lake|http`, and
`report`.

Progress goes to standard error; standard output holds the table, or with --json one object.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import checks as checks_benchmark
from benchmarks import compaction as compaction_benchmark
from benchmarks import consumers as consumers_benchmark
from benchmarks import cursors as cursors_benchmark
from benchmarks import encryption as encryption_benchmark
from benchmarks import idle_link as idle_link_benchmark
from benchmarks import ingest as ingest_benchmark
from benchmarks import latency as latency_benchmark
from benchmarks import pairs as pairs_of_runs
from benchmarks import performance
from benchmarks import publish as publish_benchmark
from benchmarks import raw as raw_benchmark
from benchmarks import read as read_benchmark
from benchmarks import recover as recover_benchmark
from benchmarks import replicate as replicate_benchmark
from benchmarks import streams as streams_benchmark
from benchmarks import tail as tail_benchmark
from benchmarks import tls as tls_benchmark
from benchmarks import typed as typed_benchmark
from benchmarks.report import Column, Report
from benchmarks.this_server import default_flush

command = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure this server against a peer on this machine.",
)


class Peer(StrEnum):
    JETSTREAM = "jetstream"


class PublishPeer(StrEnum):
    JETSTREAM = "jetstream"
    KAFKA = "kafka"
    LIFTBRIDGE = "liftbridge"


class FlushOption(StrEnum):
    GROUP = "group"
    INTERVAL = "interval"
    NONE = "none"


class Touch(StrEnum):
    VALUES = "values"
    MESSAGES = "messages"


PeerOption = Annotated[Peer, typer.Option(help="What to measure against.")]
SizesOption = Annotated[str, typer.Option(help="Message sizes in bytes, comma-separated.")]
PairsOption = Annotated[int, typer.Option(min=1, help="Alternating runs of both sides.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


ReplicasOption = Annotated[str, typer.Option(help="Numbers of replicas, comma-separated.")]
PeerSyncOption = Annotated[
    str, typer.Option(help="The peer's sync_interval: a duration or 'always'.")
]


@command.command()
def ingest(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "128,1024",
    pairs: PairsOption = 5,
    replicas: Annotated[
        int, typer.Option(min=1, max=5, help="Replicas, each on a node of its own.")
    ] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 4.0,
    messages: Annotated[
        int | None, typer.Option(min=1, help="Messages in one run, instead of --seconds.")
    ] = None,
    flush: Annotated[
        FlushOption | None,
        typer.Option(help="This server's flush policy; default: what such a stream has."),
    ] = None,
    peer_sync: PeerSyncOption = "2m",
    json: JsonOption = False,
) -> None:
    """Publish with acks, at most 16,384 unacknowledged, from one raw socket."""
    load = ["--seconds", str(seconds)] if messages is None else ["--messages", str(messages)]
    policy = default_flush(replicas) if flush is None else flush.value
    report = ingest_benchmark.run(
        _numbers(sizes), pairs, load, replicas, policy, peer_sync, _progress
    )
    is_alone = replicas == 1
    columns = pairs_of_runs.INGEST_COLUMNS if is_alone else pairs_of_runs.INGEST_CLUSTER_COLUMNS
    _finish(report, json, pairs_of_runs.TITLE, columns)


@command.command()
def publish(
    peer: Annotated[
        PublishPeer, typer.Option(help="What to measure against.")
    ] = PublishPeer.JETSTREAM,
    address: Annotated[
        str, typer.Option(help="Where Kafka or Liftbridge listens: HOST:PORT.")
    ] = "",
    sizes: SizesOption = "128",
    pairs: PairsOption = 3,
    replicas: ReplicasOption = "1,3",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 4.0,
    peer_sync: PeerSyncOption = "2m",
    json: JsonOption = False,
) -> None:
    """Publish from one Python process: our batched publisher, the peer's client."""
    report = publish_benchmark.run(
        _numbers(sizes), pairs, seconds, _numbers(replicas), peer.value, address, peer_sync,
        _progress,
    )  # fmt: skip
    _finish(report, json, publish_benchmark.TITLE, publish_benchmark.columns(report))


@command.command()
def read(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "128,1024",
    pairs: PairsOption = 5,
    messages: Annotated[int, typer.Option(min=1, help="Messages in the stream.")] = 500_000,
    touch: Annotated[
        Touch, typer.Option(help="What our reader makes of each record.")
    ] = Touch.VALUES,
    json: JsonOption = False,
) -> None:
    """Read a whole stream from its start, touching every value once."""
    report = read_benchmark.run(_numbers(sizes), pairs, messages, touch.value, _progress)
    _finish(report, json, pairs_of_runs.TITLE, pairs_of_runs.COLUMNS)


@command.command()
def latency(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "128",
    pairs: PairsOption = 5,
    replicas: ReplicasOption = "1,3",
    messages: Annotated[int, typer.Option(min=1, help="Round trips in one run.")] = 5_000,
    open_loop: Annotated[
        bool,
        typer.Option("--open-loop", help="Send on a schedule, at half of what both sides can do."),
    ] = False,
    seconds: Annotated[float, typer.Option(min=0.1, help="Of one run with --open-loop.")] = 4.0,
    rate: Annotated[
        int | None, typer.Option(min=1, help="Messages a second with --open-loop.")
    ] = None,
    flush: Annotated[
        FlushOption, typer.Option(help="This server's flush policy.")
    ] = FlushOption.INTERVAL,
    peer_sync: PeerSyncOption = "2m",
    json: JsonOption = False,
) -> None:
    """Publish one message at a time and wait for its ack, or on a schedule: p50 to p99.9."""
    load = latency_benchmark.one_at_a_time(messages)
    columns = latency_benchmark.COLUMNS
    if open_loop:
        load = latency_benchmark.open_loop(seconds, rate, flush.value, peer_sync, _progress)
        columns = latency_benchmark.OPEN_LOOP_COLUMNS
    report = latency_benchmark.run(
        _numbers(sizes), pairs, load, _numbers(replicas), flush.value, peer_sync, _progress
    )
    _finish(report, json, latency_benchmark.TITLE, columns)


@command.command()
def streams(
    peer: PeerOption = Peer.JETSTREAM,
    replicas: ReplicasOption = "1,3",
    created: Annotated[int, typer.Option(min=1, help="Streams whose creation is timed.")] = 1_000,
    idle: Annotated[int, typer.Option(min=1, help="Streams that then idle.")] = 10_000,
    peer_idle: Annotated[
        int, typer.Option(min=0, help="The same at the peer; 0: leave it out.")
    ] = 1_000,
    settle: Annotated[float, typer.Option(min=0, help="Seconds of quiet before watching.")] = 10.0,
    watch: Annotated[float, typer.Option(min=0.1, help="Seconds to watch idle nodes.")] = 20.0,
    json: JsonOption = False,
) -> None:
    """Create streams, then watch what idle ones cost: processor and memory of each node."""
    plan = streams_benchmark.Plan(min(created, idle), idle, settle, watch)
    report = streams_benchmark.run(plan, peer_idle, _numbers(replicas), _progress)
    _finish(report, json, streams_benchmark.TITLE, streams_benchmark.COLUMNS)


@command.command()
def spark(
    messages: Annotated[int, typer.Option(min=20_000, help="Rows in the stream.")] = 5_000_000,
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value.")] = 100,
    pairs: Annotated[int, typer.Option(min=1, help="Alternating rounds of all sides.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="Of trickling for the latency.")] = 20.0,
    json: JsonOption = False,
) -> None:
    """Read a stream into Spark, against the most that a Python source can do. Needs Java."""
    # PySpark comes with the extra of its name; the other benchmarks do without.
    from benchmarks import spark as spark_benchmark

    report = spark_benchmark.run(messages, size, pairs, seconds, _progress)
    _finish(report, json, spark_benchmark.TITLE, spark_benchmark.COLUMNS)


@command.command()
def cursors(
    cursors: Annotated[int, typer.Option(min=1, help="Each is committed once a second.")] = 10_000,
    seconds: Annotated[int, typer.Option(min=1, help="Rounds.")] = 10,
    replicas: ReplicasOption = "1",
    json: JsonOption = False,
) -> None:
    """Commit cursors: the rate, and what one commit takes of the processor."""
    report = cursors_benchmark.run(cursors, seconds, _numbers(replicas), _progress)
    _finish(report, json, cursors_benchmark.TITLE, cursors_benchmark.COLUMNS)


@command.command()
def http(
    size: Annotated[int, typer.Option(min=1, help="Bytes of a value.")] = 128,
    messages: Annotated[int, typer.Option(min=1_000, help="Records.")] = 200_000,
    rounds: Annotated[int, typer.Option(min=1, help="Of all loads, one after the other.")] = 3,
    json: JsonOption = False,
) -> None:
    """Publish and read over HTTP, against the SDK."""
    # pyarrow comes with an extra; the other benchmarks do without.
    from benchmarks import http_records as http_benchmark

    report = http_benchmark.run(size, messages, rounds, _progress)
    _finish(report, json, http_benchmark.TITLE, http_benchmark.COLUMNS)


@command.command()
def consumers(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "128,1024",
    pairs: PairsOption = 3,
    messages: Annotated[int, typer.Option(min=1, help="Messages in the stream.")] = 200_000,
    json: JsonOption = False,
) -> None:
    """Read by consumers of the JetStream API: ordered, in batches of 500, and one by one."""
    report = consumers_benchmark.run(_numbers(sizes), pairs, messages, _progress)
    columns = (consumers_benchmark.WAY, *pairs_of_runs.COLUMNS)
    _finish(report, json, consumers_benchmark.TITLE, columns)


@command.command()
def compaction(
    records: Annotated[int, typer.Option(min=1, help="Records in the stream.")] = 10_000_000,
    keys: Annotated[int, typer.Option(min=1, help="Different keys among them.")] = 1_000_000,
    json: JsonOption = False,
) -> None:
    """Compact one stream while messages are stored, with acks, in another."""
    report = compaction_benchmark.run(records, keys, _progress)
    _finish(report, json, compaction_benchmark.TITLE, compaction_benchmark.COLUMNS)


@command.command()
def lake(
    records: Annotated[int, typer.Option(min=10_000, help="Records in the stream.")] = 1_000_000,
    days: Annotated[int, typer.Option(min=1, help="Of commits to a table, one an hour.")] = 30,
    spark: Annotated[
        str, typer.Option(help="Python with PySpark 4.1: only compare its typed reads.")
    ] = "",
    jar: Annotated[
        Path | None, typer.Option(help="Iceberg's runtime for it; by default in ~/.m2.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Copy a stream to the lake, read it from there, and compare all readers of it."""
    from benchmarks import lake as lake_benchmark  # Its packages are an extra.
    from benchmarks import lake_spark

    if spark:
        jar = jar or Path.home() / ".m2/repository" / lake_spark.JAR
        report = lake_spark.run(spark, jar, records, _progress)
    else:
        report = lake_benchmark.run(records, days, _progress)
    _finish(report, json, lake_benchmark.TITLE, lake_benchmark.COLUMNS)


@command.command()
def tls(
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 3.0,
    pairs: Annotated[int, typer.Option(min=1, help="Alternating runs of both sides.")] = 3,
    json: JsonOption = False,
) -> None:
    """Fetch batches and open connections with TLS and without it."""
    report = tls_benchmark.run(seconds, pairs, _progress)
    _finish(report, json, tls_benchmark.TITLE, tls_benchmark.COLUMNS)


@command.command()
def checks(
    sizes: Annotated[
        str, typer.Option(help="Bytes that a fetch asks for, comma-separated.")
    ] = "1,1048576",
    fetches: Annotated[int, typer.Option(min=1, help="Fetches of one run.")] = 20_000,
    pairs: Annotated[int, typer.Option(min=1, help="Alternating runs of both sides.")] = 10,
    json: JsonOption = False,
) -> None:
    """Fetch with security on and off: what the checks take of the node's processor."""
    report = checks_benchmark.run(_numbers(sizes), fetches, pairs, _progress)
    _finish(report, json, checks_benchmark.TITLE, checks_benchmark.COLUMNS)


@command.command("idle-link")
def idle_link(
    sizes: SizesOption = "128,1024",
    pairs: Annotated[int, typer.Option(min=1, help="Alternating runs of both sides.")] = 10,
    messages: Annotated[int, typer.Option(min=1, help="Messages in one run.")] = 200_000,
    json: JsonOption = False,
) -> None:
    """Ingest with a leaf link that is on and unused, and without one."""
    load = ["--messages", str(messages)]
    report = idle_link_benchmark.run(_numbers(sizes), pairs, load, _progress)
    _finish(report, json, idle_link_benchmark.TITLE, idle_link_benchmark.COLUMNS)


@command.command()
def encryption(
    sizes: SizesOption = "128,1024",
    batches: Annotated[str, typer.Option(help="Records in a batch, comma-separated.")] = "1,100",
    seconds: Annotated[float, typer.Option(min=0.01, help="Time for each figure.")] = 1.0,
    json: JsonOption = False,
) -> None:
    """Encode, encrypt, decode and decrypt batches, in this process."""
    report = encryption_benchmark.run(_numbers(sizes), _numbers(batches), seconds, _progress)
    _finish(report, json, encryption_benchmark.TITLE, encryption_benchmark.COLUMNS)


@command.command()
def typed(
    records: Annotated[int, typer.Option(min=1_000, help="In the stream.")] = 1_000_000,
    runs: Annotated[int, typer.Option(min=1, help="Of each query in each form.")] = 5,
    ingest: Annotated[bool, typer.Option("--ingest", help="The check of on_mismatch.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Each format, in memory.")] = False,
    spark: Annotated[bool, typer.Option("--spark", help="In Spark, which needs Java.")] = False,
    json: JsonOption = False,
) -> None:
    """Query JSON by the columns of a schema, by hand, and as Parquet: what it takes of the
    processor. With --spark: the same in Spark. With --decode: decode each format, without a server.
    With --ingest: store it with a check by the schema, and without."""
    if spark:
        from benchmarks import typed_spark

        report = typed_spark.run(records, runs, _progress)
        _finish(report, json, typed_spark.TITLE, typed_spark.COLUMNS)
        return
    if decode:
        report = typed_benchmark.decode(records, runs, _progress)
        _finish(report, json, typed_benchmark.DECODE_TITLE, typed_benchmark.DECODE_COLUMNS)
        return
    if ingest:
        report = typed_benchmark.ingest(records, runs, _progress)
        _finish(report, json, typed_benchmark.INGEST_TITLE, typed_benchmark.INGEST_COLUMNS)
        return
    report = typed_benchmark.run(records, runs, _progress)
    _finish(report, json, typed_benchmark.TITLE, typed_benchmark.COLUMNS)


@command.command()
def raw(
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 3.0,
    pairs: PairsOption = 5,
    json: JsonOption = False,
) -> None:
    """Fetch batches, against a bare sendfile of the same file."""
    report = raw_benchmark.run(seconds, pairs, _progress)
    _finish(report, json, raw_benchmark.TITLE, raw_benchmark.COLUMNS)


@command.command()
def recover(
    sizes: SizesOption = "128,1024",
    megabytes: Annotated[int, typer.Option(min=1, max=1900, help="Values in the log.")] = 1900,
    pairs: PairsOption = 5,
    json: JsonOption = False,
) -> None:
    """Start after kill -9 with an unflushed log, against reading its bytes."""
    report = recover_benchmark.run(_numbers(sizes), megabytes, pairs, _progress)
    _finish(report, json, recover_benchmark.TITLE, recover_benchmark.COLUMNS)


@command.command()
def replicate(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "1024",
    megabytes: Annotated[int, typer.Option(min=1, help="Of values that are missed.")] = 500,
    pairs: PairsOption = 3,
    json: JsonOption = False,
) -> None:
    """Let a follower catch up that was away, at three replicas."""
    report = replicate_benchmark.run(_numbers(sizes), megabytes, pairs, _progress)
    _finish(report, json, replicate_benchmark.TITLE, replicate_benchmark.COLUMNS)


@command.command()
def tail(
    peer: PeerOption = Peer.JETSTREAM,
    readers: Annotated[str, typer.Option(help="Numbers of readers, comma-separated.")] = "1,100",
    sizes: SizesOption = "128",
    rates: Annotated[
        str, typer.Option(help="Messages published a second, comma-separated.")
    ] = "100,1000",
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 5.0,
    pairs: PairsOption = 3,
    json: JsonOption = False,
) -> None:
    """Read at the head of a stream while it is published to."""
    report = tail_benchmark.run(
        _numbers(readers), _numbers(sizes), _numbers(rates), seconds, pairs, _progress
    )
    _finish(report, json, tail_benchmark.TITLE, tail_benchmark.COLUMNS)


@command.command()
def report(
    folder: Annotated[Path, typer.Argument(help="One JSON file for each measurement.")],
    output: Annotated[Path, typer.Option(help="The page; plots go into a folder beside it.")] = (
        Path("docs", "performance.md")
    ),
    measure: Annotated[
        bool, typer.Option("--measure", help="First run the measurements that are missing.")
    ] = False,
    measured: Annotated[
        str, typer.Option(metavar="TEXT", help="When, and at which commits; a row of the page.")
    ] = "",
) -> None:
    """Write a page with plots, the machine and the targets, from results in FOLDER."""
    failed = performance.measure(folder, _progress) if measure else []
    try:
        performance.write(performance.load(folder), output, measured)
    except performance.NotAResultError as error:
        _progress(f"error: {error}")
        raise typer.Exit(1) from error
    _progress(f"written: {output}")
    if failed:
        _progress(f"error: failed, and missing on the page: {', '.join(failed)}")
        raise typer.Exit(1)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of numbers")
    return [int(part) for part in parts]


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _finish(report: Report, as_json: bool, title: str, columns: Sequence[Column]) -> None:
    if as_json:
        report.print_json()
    else:
        report.print_table(title, columns)


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(143)  # Unwinds the context managers that stop the servers.


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    command()
