"""Run many histories, on several processes, and shorten what breaks a promise."""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.property.log_failures.history import Failure, run_seed, shortened, story
from tests.property.log_failures.mutants import MUTANTS, first_seed, record

CHUNK = 500


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.log_failures")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", type=int, help="tell what this seed does")
    parser.add_argument(
        "--mutants", action="store_true", help="find the first seed that kills each mutant"
    )
    arguments = parser.parse_args()
    if arguments.trace is not None:
        failure = run_seed(arguments.trace)
        print(story(arguments.trace))
        return 1 if failure else 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        if arguments.mutants:
            return _kill(pool)
        return _run(pool, arguments)


def _kill(pool: ProcessPoolExecutor) -> int:
    seeds = dict(zip(MUTANTS, pool.map(first_seed, MUTANTS), strict=True))
    for name, seed in seeds.items():
        print(f"{name:45} {'SURVIVES' if seed is None else seed}")
    record({name: seed for name, seed in seeds.items() if seed is not None})
    return 1 if None in seeds.values() else 0


def _chunk(first: int, count: int, deadline: float) -> tuple[int, float, Failure | None]:
    """How many seeds were run, and how long that took."""
    begun, done = time.process_time(), 0
    for seed in range(first, first + count):
        if time.monotonic() > deadline:
            break
        done += 1
        failure = run_seed(seed)
        if failure is not None:
            return done, time.process_time() - begun, shortened(failure)
    return done, time.process_time() - begun, None


def _run(pool: ProcessPoolExecutor, arguments: argparse.Namespace) -> int:
    start, seeds, minutes = arguments.start, arguments.seeds, arguments.minutes
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    running = [
        pool.submit(_chunk, first, min(CHUNK, start + seeds - first), deadline)
        for first in range(start, start + seeds, CHUNK)
    ]
    total, seconds, failures = 0, 0.0, []
    for future in as_completed(running):
        done, took, failure = future.result()
        total, seconds = total + done, seconds + took
        if failure is not None:
            failures.append(failure)
            print(story(failure.seed, failure.steps), flush=True)
    print(f"{total} seeds from {start}, {seconds / 60:.1f} processor-minutes")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
