"""`jetstream top`: the busiest streams, again and again."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import typer

from jetstream_client.cli.invocation import Invocation, common_options
from jetstream_client.cli.output import emit_json, node_text, print_table, replicas_text
from jetstream_client.cli.units import size_text
from jetstream_client.cli.watching import show
from jetstream_client.clients.blocking_client import Client
from jetstream_client.values.types import History, StreamDescription
from jetstream_protocol.errors import JetstreamError

_HEADING_LINES = 5
_BLOCKS = "▁▂▃▄▅▆▇█"
_BLOCKS_MAX = 60
HISTORY_SECONDS = 15.0
"""Nodes take a sample so often."""


class Look(NamedTuple):
    """All streams at one moment. at: seconds of a clock that does not go back."""

    at: float
    streams: Sequence[StreamDescription]


class Rate(NamedTuple):
    """rate: records that became readable, a second; None: not known yet. lag: of the replica that
    is furthest behind, records; observers are left out."""

    stream: StreamDescription
    rate: float | None
    lag: int | None


def rates(before: Look | None, now: Look) -> list[Rate]:
    """The streams, the busiest first, those of which nothing is known last."""
    ends = {} if before is None else {each.id: each.high_watermark for each in before.streams}
    seconds = 0.0 if before is None else now.at - before.at
    found = [_rate(each, ends.get(each.id), seconds) for each in now.streams]
    return sorted(found, key=lambda each: (-(each.rate or 0.0), each.stream.name))


def _rate(stream: StreamDescription, before: int | None, seconds: float) -> Rate:
    rate = None
    if before is not None and stream.high_watermark is not None and seconds > 0:
        rate = max(0, stream.high_watermark - before) / seconds
    observing = {node for node in stream.observers if node not in stream.replicas}
    replicas = [each for each in stream.progress if each.node not in observing]
    lags = [replica.lag for replica in replicas if replica.lag is not None]
    return Rate(stream, rate, max(lags) if lags else None)


class Past(NamedTuple):
    """The cluster's records a second, the oldest first; None: unknown. minutes: how long it is."""

    rates: Sequence[float | None]
    minutes: float


def past_of(histories: Sequence[History]) -> Past | None:
    """The sum over the nodes that answer, by the times of the one with the longest history."""
    records = [
        (history.times, series.values)
        for history in histories
        for series in history.series
        if series.name == "records" and history.times
    ]
    if not records:
        return None
    longest = max(len(times) for times, _ in records)
    last = [tuple(values)[::-1] for _, values in records]  # Samples are as old on every node.
    sums = []
    for at in range(longest):
        there = [each[at] for each in last if at < len(each)]
        known = [each for each in there if each is not None]
        sums.append(sum(known) if known else None)
    return Past(sums[::-1], longest * HISTORY_SECONDS / 60)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """One character for each value, or for the largest of several; a space: unknown."""
    if not values:
        return ""
    count = min(width, len(values))
    groups = [
        values[len(values) * at // count : len(values) * (at + 1) // count] for at in range(count)
    ]
    tops = [max((each for each in group if each is not None), default=None) for group in groups]
    most = max((each for each in tops if each is not None), default=0.0) or 1.0
    return "".join(" " if each is None else _BLOCKS[min(7, int(each / most * 8))] for each in tops)


@common_options(patience=True)
def top(
    cli: Invocation,
    feeding: Annotated[
        str,
        typer.Option(metavar="SUBJECT", help="Only streams that store messages of this subject."),
    ] = "",
) -> None:
    """Show the busiest streams, every 2 seconds, until Ctrl-C.

    RATE is how many records became readable in a second. LAG is how many records the replica that
    is furthest behind lacks. On a terminal it shows as many streams as fit, and above them the
    records a second of the last hour, as the nodes keep them since their start.

    Example: jetstream top
    """
    before: list[Look] = []

    def look() -> list[Rate]:
        now = Look(time.monotonic(), client.describe_streams(feeding))
        found = rates(before.pop() if before else None, now)
        before.append(now)
        return found

    def draw(found: Sequence[Rate]) -> None:
        past.look(client)
        _draw(found, past.known)

    past = _Pasts()
    with cli.client() as client:
        show(look, _draw_json if cli.json else draw, watch=True, lines=cli.json)


class _Pasts:
    """Asks for the last hour, not more often than it grows."""

    def __init__(self) -> None:
        self.known: Past | None = None
        self._asked: float | None = None

    def look(self, client: Client) -> None:
        now = time.monotonic()
        if self._asked is not None and now - self._asked < HISTORY_SECONDS:
            return
        self._asked = now
        found = []
        with suppress(JetstreamError):
            for node in client.describe_cluster().nodes:
                with suppress(JetstreamError):  # An older node, one that is away, no right.
                    found.append(client.describe_history(node=node.id))
        self.known = past_of(found)


def _draw_json(found: Sequence[Rate]) -> None:
    for each in found:
        emit_json(
            {
                "stream": each.stream.name,
                "subject": each.stream.subject,
                "rate": None if each.rate is None else round(each.rate, 1),
                "lag": each.lag,
                "leader": each.stream.leader,
                "isr": each.stream.isr,
                "high_watermark": each.stream.high_watermark,
                "size_bytes": each.stream.size_bytes,
            }
        )


def _draw(found: Sequence[Rate], past: Past | None = None) -> None:
    shown = found
    if sys.stdout.isatty():
        shown = found[: max(1, shutil.get_terminal_size().lines - _HEADING_LINES)]
    total = sum(each.rate or 0.0 for each in found)
    streams = "stream" if len(found) == 1 else "streams"
    print(f"{len(found)} {streams}, {number_text(total)} records/s")
    if past is not None and (known := [each for each in past.rates if each is not None]):
        line = sparkline(past.rates, min(_BLOCKS_MAX, shutil.get_terminal_size().columns - 40))
        print(f"last {past.minutes:.0f} min {line} at most {number_text(max(known))} records/s")
    columns = ("NAME", "SUBJECT", "RATE", "LAG", "LEADER", "REPLICAS", "NEXT OFFSET", "BYTES")
    print_table(columns, map(_cells, shown))
    if len(shown) < len(found):
        print(f"and {len(found) - len(shown)} more")


def number_text(rate: float) -> str:
    """One record a minute is not 0."""
    return f"{rate:.2g}" if 0 < rate < 1 else f"{rate:,.0f}"


def _cells(each: Rate) -> tuple[Any, ...]:
    stream = each.stream
    return (
        stream.name,
        stream.subject,
        "-" if each.rate is None else f"{number_text(each.rate)}/s",
        "-" if each.lag is None else each.lag,
        node_text(stream.leader),
        replicas_text(stream),
        "-" if stream.high_watermark is None else stream.high_watermark,
        "-" if stream.size_bytes is None else size_text(stream.size_bytes),
    )
