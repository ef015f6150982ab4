"""Campaigns in several processes at once: most of a round is waiting.

    chunks (first round, count) ──> process ──> Campaign ──> Done for each round ──> the caller

A chunk is the rounds of one cluster, so the result does not depend on the process that runs it.
Each process has its own range of ports (`free_port_base` reads it from the environment), and its
own folders, as every campaign. A chunk that cannot be carried out is reported, and the next one
begins.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.queues import Queue

from tests.chaos.damage.campaign import ROUNDS_PER_CLUSTER, Campaign

LOOK_SECONDS = 1.0
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Settings:
    """Of all chunks alike. deadline: by the monotonic clock."""

    seed: str
    replicas: int
    kinds: tuple[str, ...]
    deadline: float


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a round. told: reports of failures. failure: why the harness itself stopped,
    and with it the rest of the chunk."""

    plan: str = ""
    kind: str = ""
    stop: str = ""
    seconds: float = 0.0
    healed_seconds: float = 0.0
    causes: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    failure: str = ""


def chunks(first: int, count: int) -> list[tuple[int, int]]:
    """First round and number of rounds of each cluster."""
    found = []
    while count > 0:
        taken = min(count, ROUNDS_PER_CLUSTER - first % ROUNDS_PER_CLUSTER)
        found.append((first, taken))
        first, count = first + taken, count - taken
    return found


def rounds(settings: Settings, first: int, count: int, jobs: int) -> Iterator[Done]:
    """Yields one for each round, as they end; closing it ends the processes and their clusters."""
    context = multiprocessing.get_context("spawn")
    to_do: Queue[tuple[int, int] | None] = context.Queue()
    done: Queue[Done] = context.Queue()
    for chunk in [*chunks(first, count), *[None] * jobs]:
        to_do.put(chunk)
    processes = [
        context.Process(target=_work, args=(number, jobs, settings, to_do, done))
        for number in range(jobs)
    ]
    try:
        for process in processes:
            process.start()
        while True:
            is_over = not any(process.is_alive() for process in processes)
            try:
                yield done.get(timeout=0.1 if is_over else LOOK_SECONDS)
            except queue.Empty:
                if is_over:
                    return
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            process.join(END_SECONDS)


def _work(
    number: int, jobs: int, settings: Settings,
    to_do: Queue[tuple[int, int] | None], done: Queue[Done],
) -> None:  # fmt: skip
    """One process."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))  # Nodes are ended, too.
    os.environ["PYTEST_XDIST_WORKER"] = f"gw{number}"
    os.environ["PYTEST_XDIST_WORKER_COUNT"] = str(jobs)
    while (chunk := to_do.get()) is not None:
        try:
            _carry_out(settings, *chunk, done)
        except Exception:  # noqa: BLE001  whatever it is, it is told, and ends this chunk only
            done.put(Done(failure=f"rounds from {chunk[0]} on: {traceback.format_exc()}"))


def _carry_out(settings: Settings, first: int, count: int, done: Queue[Done]) -> None:
    told: list[str] = []
    campaign = Campaign(settings.seed, settings.replicas, told.append, settings.kinds)
    begun = time.monotonic()
    for report in campaign.rounds(first, count, settings.deadline - begun):
        now = time.monotonic()
        causes = tuple(sorted({anomaly.kind.value for anomaly in report.anomalies}))
        plan = report.plan
        done.put(
            Done(
                str(plan), plan.kind, plan.stop, now - begun, report.healed_seconds, causes,
                tuple(told),
            )
        )  # fmt: skip
        told.clear()
        begun = now
