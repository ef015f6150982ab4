"""One run of a load: its rate, and the processor time that a message took of everybody.

A load is a module of this package that prints one JSON object with `messages`, `seconds`,
`processor_seconds` (its own, within these seconds) and, if it warmed the servers up, `warm_up`
(messages before these seconds).
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

from benchmarks.processes import run_json
from benchmarks.usage import ServerSeconds, server_seconds

PROCESSOR = ("nodes_us", "nats_us", "client_us")


class Run(NamedTuple):
    """rate: messages per second. The others: processor time of a message, in µs, of our nodes, of
    all nats-servers, and of the load."""

    rate: float
    nodes_us: float
    nats_us: float
    client_us: float


def run_load(module: str, *arguments: str) -> Run:
    """Run a load in a process of its own. Raises RuntimeError with what it wrote to stderr."""
    before = server_seconds()
    result = run_json(module, *arguments)
    return run_of(result, server_seconds().since(before))


def run_of(result: dict[str, Any], servers: ServerSeconds) -> Run:
    """result: what the load printed. servers: what they took meanwhile."""
    messages = result["messages"]
    of_servers = messages + result.get("warm_up", 0)
    return Run(
        messages / result["seconds"],
        1e6 * servers.nodes / of_servers,
        1e6 * servers.nats / of_servers,
        1e6 * result["processor_seconds"] / messages,
    )


def medians(side: str, runs: Sequence[Run]) -> dict[str, float]:
    """The rate as `side`, the processor times as `side_nodes_us` and so on."""
    found: dict[str, float] = {side: round(median(run.rate for run in runs))}
    for name in PROCESSOR:
        found[f"{side}_{name}"] = round(median(getattr(run, name) for run in runs), 2)
    return found
