"""`python -m benchmarks report FOLDER`: a page of the results against peers, from the benchmarks'
JSON.

FOLDER holds one file for each entry of MEASUREMENTS, as `--json` prints it; `--measure` runs those
that are missing. A measurement that is missing is missing on the page, which says so.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, bars
from benchmarks.pairs import Progress

MEASUREMENTS: dict[str, list[str]] = {
    "ingest-1": ["ingest"],
    "ingest-3": ["ingest", "--replicas", "3"],
    "ingest-fsync": ["ingest", "--flush", "group", "--peer-sync", "always"],
    "read": ["read"],
    "publish": ["publish", "--sizes", "128,1024"],
    "latency": ["latency"],
    "open-loop": ["latency", "--open-loop"],
    "tail": ["tail"],
    "raw": ["raw"],
    "recover": ["recover"],
    "replicate": ["replicate"],
    "spark": ["spark"],
}
"""What is measured, and by which command. publish-kafka and publish-liftbridge are added by hand:
`publish --peer kafka --address HOST:PORT --json`."""
BY_HAND = ("publish-kafka", "publish-liftbridge")

Results = Mapping[str, dict[str, Any]]
"""The reports by name."""
Row = dict[str, Any]


class NotAResultError(Exception):
    """A file of the folder is no report; the message is one line."""


@dataclass(frozen=True)
class Target:
    """A line of the table. found: what was measured, and the text; None where it is missing.
    is_met: whether that is enough."""

    work: str
    target: str
    found: Callable[[Results], float | None]
    is_met: Callable[[float], bool]
    text: str = "{:.2f} ×"


def _row(results: Results, name: str, **where: object) -> Row | None:
    for row in results.get(name, {}).get("results", ()):
        if all(row.get(key) == value for key, value in where.items()):
            found: Row = row
            return found
    return None


def _value(name: str, key: str, **where: object) -> Callable[[Results], float | None]:
    """A figure of the first result with these keys."""

    def found(results: Results) -> float | None:
        row = _row(results, name, **where)
        return None if row is None or key not in row else float(row[key])

    return found


def _at_least(least: float) -> Callable[[float], bool]:
    return lambda value: value >= least


def _at_most(most: float) -> Callable[[float], bool]:
    return lambda value: value <= most


def _many_over_plain(results: Results) -> float | None:
    """`publish_many` against plain messages, both to this server, at one replica and 1 KiB."""
    many = _value("publish", "many", replicas=1, size=1024)(results)
    plain = _value("ingest-1", "ours", size=1024)(results)
    return None if many is None or plain is None else many / plain


def _ingest_target(name: str, work: str, size: int, least: float) -> Target:
    return Target(
        f"{work}, {_of(size)}", f"≥ {least:g} ×", _value(name, "ratio", size=size), _at_least(least)
    )


def _of(size: int) -> str:
    return "128 B" if size == 128 else "1 KiB"


def _many_over_kafka(work: str, size: int, replicas: int, least: float) -> Target:
    value = _value("publish-kafka", "direct_over_kafka", replicas=replicas, size=size)
    work = f"{work}, {_of(size)}, {'one replica' if replicas == 1 else 'three replicas'}"
    return Target(work, f"≥ {least:g} ×", value, _at_least(least))


def _at_the_head(readers: int, rate: int, most: float) -> Target:
    work = f"{readers} at the head, {rate:,} a second: servers' processor time vs ordered consumers"
    value = _value("tail", "ratio", readers=readers, rate=rate)
    return Target(work, f"≤ {most:g} ×", value, _at_most(most))


def _processor(work: str, name: str, key: str, most: float, **where: object) -> Target:
    return Target(work, f"≤ {most:g} µs", _value(name, key, **where), _at_most(most), "{:.2f} µs")


TARGETS = (
    _processor(
        "node's processor time per plain acked message, 128 B",
        "ingest-1", "ours_nodes_us", 0.9, size=128,
    ),
    _processor("the same, 1 KiB", "ingest-1", "ours_nodes_us", 2.0, size=1024),
    _ingest_target("ingest-1", "plain acked ingest vs JetStream R1", 128, 1.7),
    _ingest_target("ingest-1", "the same", 1024, 1.3),
    _ingest_target("ingest-3", "plain acked ingest at three replicas vs JetStream R3", 128, 4),
    _ingest_target("ingest-3", "the same", 1024, 2.2),
    _ingest_target("ingest-fsync", "fsync before each ack on both sides", 128, 60),
    _ingest_target("ingest-fsync", "the same", 1024, 60),
    Target("one at a time straight to the leader, p50: one replica vs JetStream R1", "≤ 1.3 ×",
           _value("latency", "direct_ratio_p50", replicas=1), _at_most(1.3)),
    Target("the same: three replicas vs JetStream R3", "≤ 1.4 ×",
           _value("latency", "direct_ratio_p50", replicas=3), _at_most(1.4)),
    Target("one at a time by NATS, p50: one replica vs a bare NATS request and reply", "≤ 1.2 ×",
           _value("latency", "bare_ratio_p50", replicas=1), _at_most(1.2)),
    Target("the same: three replicas vs JetStream R3", "≤ 1.7 ×",
           _value("latency", "ratio_p50", replicas=3), _at_most(1.7)),
    _processor("one message at a time by NATS: node, one replica", "latency", "ours_leader_us", 60,
               replicas=1),
    _processor("the same: leader, three replicas", "latency", "ours_leader_us", 230, replicas=3),
    _processor("the same: each follower", "latency", "ours_follower_us", 100, replicas=3),
    _processor("one message straight to the leader: node, one replica", "latency",
               "direct_leader_us", 60, replicas=1),
    _processor("the same: leader, three replicas", "latency", "direct_leader_us", 230, replicas=3),
    _processor("the same: each follower", "latency", "direct_follower_us", 100, replicas=3),
    _ingest_target("read", "catch-up read by the SDK vs ordered consumer", 128, 6),
    _ingest_target("read", "the same", 1024, 2.5),
    Target("`publish_many` vs nats-py, 128 B", "≥ 40 ×",
           _value("publish", "many_over_nats_py", replicas=1, size=128), _at_least(40)),
    Target("the same vs the raw loader", "≥ 4 ×",
           _value("publish", "many_over_raw", replicas=1, size=128), _at_least(4)),
    Target("`publish_many` of 1 KiB vs plain messages", "≥ 1.5 ×", _many_over_plain,
           _at_least(1.5)),
    Target("`publish_many` straight to the leader vs nats-py, 128 B", "≥ 40 ×",
           _value("publish", "direct_over_nats_py", replicas=1, size=128), _at_least(40)),
    _many_over_kafka("the same vs confluent-kafka to Kafka", 128, 1, 3),
    _many_over_kafka("the same", 128, 3, 3),
    _many_over_kafka("the same", 1024, 1, 1.5),
    _many_over_kafka("the same", 1024, 3, 2),
    Target("data plane vs bare sendfile, MB/s", "≥ 0.9 ×",
           _value("raw", "ratio", figure="megabytes_per_second"), _at_least(0.9)),
    _at_the_head(1, 100, 1.5),
    _at_the_head(100, 100, 1),
    _at_the_head(100, 1000, 0.6),
    Target("recovery of an unflushed log vs reading its bytes, 1 KiB", "≤ 2 ×",
           _value("recover", "ratio", size=1024), _at_most(2)),
    Target("Spark batch read vs the Arrow ceiling", "≥ 0.8 ×",
           _value("spark", "ratio", what="batch"), _at_least(0.8)),
    Target("Spark stream read vs the Arrow ceiling", "≥ 0.85 ×",
           _value("spark", "ratio", what="stream"), _at_least(0.85)),
)  # fmt: skip


@dataclass(frozen=True)
class Plot:
    """Bars of two figures or more of each result. figures: their keys by the name in the legend.
    label: of a result. divided_by: what one unit of the plot is."""

    title: str
    name: str
    figures: Mapping[str, str]
    label: Callable[[Row], str]
    divided_by: float = 1.0


def _size(row: Row) -> str:
    return f"{row['size']:,} B"


def _replicas(row: Row) -> str:
    return f"RF {row['replicas']}, {row['size']:,} B"


_RATES = {"this server": "ours", "JetStream": "peer"}
_WITH_CORE = _RATES | {"core NATS": "core"}
_P = {
    "this server": "ours_{}_us",
    "JetStream": "peer_{}_us",
    "bare request and reply": "bare_{}_us",
}


_ONE_AT_A_TIME = {
    "straight to the leader": "direct_{}_us",
    "by NATS": "ours_{}_us",
    "JetStream": "peer_{}_us",
    "bare request and reply": "bare_{}_us",
}


def _percentile(name: str, sides: Mapping[str, str] = _P) -> dict[str, str]:
    return {legend: key.format(name) for legend, key in sides.items()}


PLOTS = (
    Plot("Acknowledged messages, thousands a second, one replica", "ingest-1", _WITH_CORE, _size,
         1e3),
    Plot("The same, three replicas", "ingest-3", _WITH_CORE, _size, 1e3),
    Plot("The same, one replica, both sides with fsync before each ack", "ingest-fsync", _RATES,
         _size, 1e3),
    Plot("Messages read from the start, thousands a second", "read", _RATES, _size, 1e3),
    Plot("Records published by one Python process, thousands a second", "publish",
         {"straight to the leader": "direct", "by NATS": "many", "send": "send",
          "JetStream: nats-py": "nats_py", "JetStream: raw loader": "raw"}, _replicas, 1e3),
    Plot("The same against Kafka", "publish-kafka",
         {"straight to the leader": "direct", "by NATS": "many", "send": "send",
          "confluent-kafka": "kafka"}, _replicas, 1e3),
    Plot("The same against Liftbridge", "publish-liftbridge",
         {"publish_many": "many", "send": "send", "Liftbridge": "liftbridge"}, _replicas, 1e3),
    Plot("One acknowledged publish at a time, p50, µs", "latency",
         _percentile("p50", _ONE_AT_A_TIME), _replicas),
    Plot("The same, p99, µs", "latency", _percentile("p99", _ONE_AT_A_TIME), _replicas),
    Plot("Half load on a schedule, p50, µs", "open-loop", _percentile("p50"), _replicas),
    Plot("The same, p99.9, µs", "open-loop", _percentile("p999"), _replicas),
    Plot("Readers at the head: servers' processor time per delivered message, µs", "tail",
         {"this server": "ours_servers_us", "JetStream": "peer_servers_us"},
         lambda row: f"{row['readers']} × {row['rate']:,}/s"),
    Plot("Data plane against bare sendfile", "raw", {"this server": "ours", "sendfile": "peer"},
         lambda row: str(row["what"])),
    Plot("Recovery, s for each unflushed GB", "recover",
         {"this server": "ours_seconds", "reading": "peer_seconds"}, _size),
    Plot("Catch-up of a follower, MB/s", "replicate",
         {"this server": "ours_megabytes_per_second", "JetStream": "peer_megabytes_per_second"},
         _size),
)  # fmt: skip


def measure(folder: Path, progress: Progress) -> list[str]:
    """Run the measurements whose files are missing. Returns those that failed."""
    folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, arguments in MEASUREMENTS.items():
        file = folder / f"{name}.json"
        if file.exists():
            continue
        progress(f"{name}: python -m benchmarks {' '.join(arguments)}")
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *arguments, "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        if done.returncode:
            failed.append(name)
        else:
            file.write_text(done.stdout)
    return failed


def load(folder: Path) -> dict[str, dict[str, Any]]:
    """The reports of a folder. Raises NotAResultError."""
    found = {}
    for name in (*MEASUREMENTS, *BY_HAND):
        file = folder / f"{name}.json"
        if file.exists():
            try:
                report = json.loads(file.read_text())
                _ = report["results"][0], report["environment"], report["ours"], report["peer"]
            except (ValueError, LookupError, TypeError) as error:
                raise NotAResultError(f"{file} is not what a benchmark's --json prints") from error
            found[name] = report
    if not found:
        raise NotAResultError(f"{folder} holds no results: give --measure, or another folder")
    return found


def write(results: Results, page: Path, measured: str = "") -> None:
    """Write the page, and its plots into a folder beside it that has the page's name. measured:
    when, and at which commits; a row of the page."""
    plots = page.with_suffix("")
    plots.mkdir(parents=True, exist_ok=True)
    lines = [
        "# Performance",
        "",
        "Measured in a checkout, with `.venv/bin/python -m benchmarks report FOLDER --measure`; "
        "[benchmarks](benchmarks.md) says what each figure means.",
        "",
        *_machine(results, measured),
        *_targets(results),
    ]
    for number, plot in enumerate(PLOTS):
        if plot.name not in results:
            continue
        rows = results[plot.name]["results"]
        image = f"{plot.name}-{number}.svg"
        (plots / image).write_text(bars(plot.title, list(plot.figures), _groups(plot, rows)))
        lines += ["", f"## {plot.title}", "", f"![{plot.title}]({plots.name}/{image})", ""]
        lines += _table(plot, rows)
        lines += ["", f"This server: {results[plot.name]['ours']}.", ""]
        lines += [f"Against: {results[plot.name]['peer']}."]
    missing = [name for name in MEASUREMENTS if name not in results]
    if missing:
        lines += ["", "## Not measured", "", ", ".join(missing) + "."]
    page.write_text("\n".join(lines) + "\n")


def _machine(results: Results, measured: str) -> list[str]:
    """The environment; what differs between the measurements is told for each value."""
    seen: dict[str, list[str]] = {"measured": [measured]} if measured else {}
    for report in results.values():
        for name, value in report["environment"].items():
            if value not in seen.setdefault(name, []):
                seen[name].append(value)
    rows = [f"| {name} | {'; '.join(values)} |" for name, values in seen.items()]
    return ["## The machine", "", "| | |", "|---|---|", *rows]


def _targets(results: Results) -> list[str]:
    lines = ["", "## Targets", "", "| work | target | measured | |", "|---|---|---:|---|"]
    for target in TARGETS:
        value = target.found(results)
        if value is None:
            lines.append(f"| {target.work} | {target.target} | – | not measured |")
        else:
            verdict = "met" if target.is_met(value) else "**missed**"
            text = target.text.format(value)
            lines.append(f"| {target.work} | {target.target} | {text} | {verdict} |")
    return lines


def _groups(plot: Plot, rows: Sequence[Row]) -> list[tuple[str, list[Bar]]]:
    return [
        (
            plot.label(row),
            [Bar(legend, row[key] / plot.divided_by) for legend, key in plot.figures.items()],
        )
        for row in rows
        if all(key in row for key in plot.figures.values())
    ]


def _table(plot: Plot, rows: Sequence[Row]) -> list[str]:
    """The plot's figures, and the processor time per message where it was measured."""
    processor = {
        "node µs": "ours_nodes_us",
        "NATS µs": "ours_nats_us",
        "client µs": "ours_client_us",
        "peer µs": "peer_nats_us",
        "its client µs": "peer_client_us",
    }
    processor = {name: key for name, key in processor.items() if all(key in row for row in rows)}
    lines = [
        "| | " + " | ".join([*plot.figures, *processor]) + " |",
        "|---|" + "---:|" * (len(plot.figures) + len(processor)),
    ]
    for row in rows:
        rates = [_number(row.get(key), plot.divided_by) for key in plot.figures.values()]
        used = [_number(row[key]) for key in processor.values()]
        lines.append(f"| {plot.label(row)} | " + " | ".join([*rates, *used]) + " |")
    return lines


def _number(value: float | None, divided_by: float = 1.0) -> str:
    if value is None:
        return "–"
    shown = value / divided_by
    return f"{shown:,.0f}" if abs(shown) >= 100 else f"{shown:.3g}"
