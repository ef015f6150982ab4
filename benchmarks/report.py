"""What a benchmark says at its end: medians, ratios, and what they were measured on."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.processes import executable

WIDTH = 200
"""Characters of a table that is written into a file or a pipe."""


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, and the text for one result."""

    heading: str
    text: Callable[[dict[str, Any]], str]


@dataclass(frozen=True)
class Report:
    """`ours` and `peer` say in words what was measured and when each side flushes."""

    benchmark: str
    ours: str
    peer: str
    results: list[dict[str, Any]]
    environment: dict[str, str]

    def print_json(self) -> None:
        print(json.dumps(asdict(self)))

    def print_table(self, title: str, columns: Sequence[Column]) -> None:
        console = Console(width=None if sys.stdout.isatty() else WIDTH)
        table = Table(title=f"{self.benchmark}: {title}")
        for column in columns:
            table.add_column(column.heading, justify="right", no_wrap=True)
        for result in self.results:
            table.add_row(*(column.text(result) for column in columns))
        console.print(table)
        for line in (f"ours: {self.ours}", f"peer: {self.peer}"):
            console.print(line, soft_wrap=True, highlight=False)
        for name, value in self.environment.items():
            console.print(f"{name}: {value}", soft_wrap=True, highlight=False)


def spread(runs: Sequence[float], text: Callable[[float], str]) -> str:
    return f"{text(min(runs))}–{text(max(runs))}"


def thousands(rate: float) -> str:
    return f"{rate / 1000:,.0f}"


def times(ratio: float) -> str:
    return f"{ratio:.2f} ×"


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
