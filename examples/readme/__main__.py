"""Run it by `scripts/record`. Exit code 1: with --check, the page shows what is no longer so."""

from __future__ import annotations

import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from examples.readme import recordings

FEW_ORDERS = 6_000
LOW_RATE = 50
"""Messages a second that a machine which does much else keeps up with."""
README = Path(__file__).resolve().parents[2] / "README.md"


def main(
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; compare all but the figures.")
    ] = False,
) -> None:
    """Record what the README shows of real runs."""
    text = README.read_text()
    with tempfile.TemporaryDirectory(prefix="jetstream-record-") as folder:
        runs = made(Path(folder), quickly=check)
    if check:
        stale = [name for name, run in runs.items() if shape(block(text, name)) != shape(run)]
        if stale:
            sys.exit(f"README.md does not show what happens: {', '.join(stale)}; scripts/record")
        return
    for name, run in runs.items():
        start, end = place(text, name)
        text = text[:start] + run + text[end:]
    README.write_text(text)


def made(folder: Path, *, quickly: bool) -> dict[str, str]:
    """The runs by their names. quickly: at once and with fewer records, which changes figures."""
    orders, rate = (FEW_ORDERS, LOW_RATE) if quickly else (recordings.ORDERS, recordings.RATE)
    with ThreadPoolExecutor(max_workers=2 if quickly else 1) as pool:
        begun = {
            "sql": pool.submit(recordings.sql, folder, orders),
            "failover": pool.submit(recordings.failover, rate),
        }
        return {name: run.result() for name, run in begun.items()}


def block(text: str, name: str) -> str:
    start, end = place(text, name)
    return text[start:end]


def place(text: str, name: str) -> tuple[int, int]:
    """Of what stands under the mark of that name."""
    found = re.search(rf"<!-- recorded: {name} -->\n```console\n(.*?)\n```", text, re.DOTALL)
    if found is None:
        sys.exit(f"README.md has no block under <!-- recorded: {name} -->")
    return found.span(1)


def shape(run: str) -> list[str]:
    """The lines without figures, and without the line of bars, which is another in every run."""
    lines = (re.sub(r"[\d.,]+", "0", " ".join(line.split())) for line in run.splitlines())
    return [line for line in lines if line and not set(line) <= set(" 0▁▂▃▄▅▆▇█")]


if __name__ == "__main__":
    typer.run(main)
