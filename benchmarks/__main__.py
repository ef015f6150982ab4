"""The command line: `python -m benchmarks ingest|read --peer jetstream [--json]`.

Progress goes to standard error; standard output holds the table, or with --json one object.
"""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from benchmarks import ingest as ingest_benchmark
from benchmarks import read as read_benchmark
from benchmarks.report import Report

command = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Measure this server against a peer on this machine.",
)


class Peer(StrEnum):
    JETSTREAM = "jetstream"


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


@command.command()
def ingest(
    peer: PeerOption = Peer.JETSTREAM,
    sizes: SizesOption = "128,1024",
    pairs: PairsOption = 5,
    seconds: Annotated[float, typer.Option(min=0.1, help="Length of one run.")] = 4.0,
    messages: Annotated[
        int | None, typer.Option(min=1, help="Messages in one run, instead of --seconds.")
    ] = None,
    flush: Annotated[
        FlushOption, typer.Option(help="This server's flush policy.")
    ] = FlushOption.GROUP,
    peer_sync: Annotated[
        str, typer.Option(help="The peer's sync_interval: a duration or 'always'.")
    ] = "2m",
    json: JsonOption = False,
) -> None:
    """Publish with acks, at most 16,384 unacknowledged, from one raw socket."""
    load = ["--seconds", str(seconds)] if messages is None else ["--messages", str(messages)]
    _finish(
        ingest_benchmark.run(_sizes(sizes), pairs, load, flush.value, peer_sync, _progress), json
    )


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
    _finish(read_benchmark.run(_sizes(sizes), pairs, messages, touch.value, _progress), json)


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not a comma-separated list of sizes in bytes")
    return [int(part) for part in parts]


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _finish(report: Report, as_json: bool) -> None:
    report.print(as_json)


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(143)  # Unwinds the context managers that stop the servers.


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _terminate)
    command()
