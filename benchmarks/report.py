"""What a benchmark says at its end: medians, the ratio, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import tempfile
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import executable


@dataclass
class Pairs:
    """Messages per second of both sides at one message size, pair by pair."""

    size: int
    ours: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)

    def result(self) -> dict[str, Any]:
        """Medians, their ratio, and the runs; rates are whole messages per second."""
        return {
            "size": self.size,
            "ours": round(median(self.ours)),
            "peer": round(median(self.peer)),
            "ratio": round(median(self.ours) / median(self.peer), 2),
            "ours_runs": [round(rate) for rate in self.ours],
            "peer_runs": [round(rate) for rate in self.peer],
        }


@dataclass(frozen=True)
class Report:
    """`ours` and `peer` say in words what was measured and when each side flushes."""

    benchmark: str
    ours: str
    peer: str
    results: list[dict[str, Any]]
    environment: dict[str, str]

    def print(self, as_json: bool) -> None:
        if as_json:
            print(json.dumps(asdict(self)))
        else:
            self._print_table(Console())

    def _print_table(self, console: Console) -> None:
        table = Table(title=f"{self.benchmark}: thousands of messages per second, medians")
        for column in ("size", "ours", "peer", "ratio", "ours: runs", "peer: runs"):
            table.add_column(column, justify="right", no_wrap=True)
        for result in self.results:
            table.add_row(
                f"{result['size']} B",
                _thousands(result["ours"]),
                _thousands(result["peer"]),
                f"{result['ratio']:.2f} ×",
                _spread(result["ours_runs"]),
                _spread(result["peer_runs"]),
            )
        console.print(table)
        console.print(f"ours: {self.ours}", soft_wrap=True, highlight=False)
        console.print(f"peer: {self.peer}", soft_wrap=True, highlight=False)
        for name, value in self.environment.items():
            console.print(f"{name}: {value}", soft_wrap=True, highlight=False)


def _spread(runs: list[int]) -> str:
    return f"{_thousands(min(runs))}–{_thousands(max(runs))}"


def _thousands(rate: int) -> str:
    return f"{rate / 1000:,.0f}"


def environment() -> dict[str, str]:
    """The facts without which a figure means nothing."""
    return {
        "processor": f"{_processor()}, {os.cpu_count()} logical cores",
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "file system": f"{_file_system(Path(tempfile.gettempdir()))} ({tempfile.gettempdir()})",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "jetstream-log": version("jetstream-log"),
        "nats-server": _nats_server_version(),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _file_system(folder: Path) -> str:
    """The type of the file system that holds `folder`, by the longest mount point above it."""
    best = ("", "unknown")
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount_point, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(mount_point):
            best = max(best, (mount_point, kind), key=lambda entry: len(entry[0]))
    return best[1]


def _nats_server_version() -> str:
    done = subprocess.run(
        [executable("nats-server"), "--version"], capture_output=True, text=True, check=True
    )
    return done.stdout.strip().removeprefix("nats-server: ")
