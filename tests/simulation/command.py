"""The command line of the simulation."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.simulation.killing import SEEDS_MAX, kill_within_bounds, record, recorded
from tests.simulation.mutants import MUTANTS
from tests.simulation.runner import (
    CLIENTS,
    COMPACTED,
    DAMAGED,
    GROUPS,
    LAKED,
    OBSERVED,
    PLAIN,
    REASSIGNED,
    SEVERAL,
    TYPED,
    Failure,
    Totals,
    run_clients,
    run_group,
    run_seed,
    run_seeds,
    story,
)

CHUNK = 100


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=0.0, help="stop after so long")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--trace", type=int, help="run this seed and tell its story")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument(
        "--compacted", dest="kind", action="store_const", const=COMPACTED, default=PLAIN,
        help="with a compacted stream",
    )  # fmt: skip
    kinds.add_argument(
        "--damaged", dest="kind", action="store_const", const=DAMAGED,
        help="with disks that rot, fail and are lost in every seed",
    )  # fmt: skip
    kinds.add_argument(
        "--reassigned", dest="kind", action="store_const", const=REASSIGNED,
        help="with a stream that moves to other nodes all the time",
    )  # fmt: skip
    kinds.add_argument(
        "--observed", dest="kind", action="store_const", const=OBSERVED,
        help="with observers that come and go, and are promoted",
    )  # fmt: skip
    kinds.add_argument(
        "--laked", dest="kind", action="store_const", const=LAKED,
        help="with a stream in the lake",
    )  # fmt: skip
    kinds.add_argument(
        "--typed", dest="kind", action="store_const", const=TYPED,
        help="with a stream that refuses what does not fit its schema",
    )  # fmt: skip
    kinds.add_argument(
        "--streams", dest="kind", action="store_const", const=SEVERAL,
        help="with several streams, and clocks that run at different speeds",
    )  # fmt: skip
    kinds.add_argument(
        "--groups", dest="kind", action="store_const", const=GROUPS,
        help="consumer groups instead of a cluster",
    )  # fmt: skip
    kinds.add_argument(
        "--clients", dest="kind", action="store_const", const=CLIENTS,
        help="whole clients: publishers and members of a consumer group",
    )  # fmt: skip
    parser.add_argument("what", nargs="?", choices=["mutants"], help="kill and record mutants")
    parser.add_argument("names", nargs="*", help="only these mutants")
    arguments = parser.parse_args()
    if arguments.what == "mutants":
        sys.exit(_kill_mutants(arguments.names or list(MUTANTS), arguments.jobs))
    if arguments.trace is not None:
        sys.exit(_trace(arguments.trace, arguments.kind))
    sys.exit(_run(arguments))


def _kill(name: str) -> tuple[str, Failure | None]:
    return name, kill_within_bounds(name)


def _kill_mutants(names: list[str], jobs: int) -> int:
    """Kill these mutants and record the seeds; 1 when one survives."""
    seeds = {name: seed for name, seed in recorded().items() if name in MUTANTS}
    surviving = []
    with ProcessPoolExecutor(jobs, initializer=_begin) as pool:
        for name, failure in pool.map(_kill, names):
            if failure is None:
                surviving.append(name)
                seeds.pop(name, None)
                print(f"{name:45} SURVIVES {SEEDS_MAX} seeds", flush=True)
            else:
                seeds[name] = failure.seed
                print(
                    f"{name:45} seed {failure.seed:5}  {failure.reason.splitlines()[-1]}",
                    flush=True,
                )
    record(seeds)
    return 1 if surviving else 0


def _trace(seed: int, kind: str) -> int:
    if kind == GROUPS:
        reason = run_group(seed)
    elif kind == CLIENTS:
        trace, reason = run_clients(seed, Totals(), tracing=True)
        print("\n".join(trace))
    else:
        cluster, reason = run_seed(seed, tracing=True, kind=kind)
        print("\n".join(cluster.world.trace or []))
    print(f"\nseed {seed}: {reason or 'nothing was violated'}")
    return 1 if reason else 0


def _begin() -> None:
    """Seeds collect garbage often: half of their time would go into looking at all modules."""
    gc.collect()
    gc.freeze()


def _chunk(first: int, count: int, deadline: float, kind: str) -> tuple[Totals, Failure | None]:
    totals = Totals()
    failure = run_seeds(range(first, first + count), totals, deadline, kind=kind)
    return totals, failure


def _run(arguments: argparse.Namespace) -> int:
    start, seeds, minutes = arguments.start, arguments.seeds, arguments.minutes
    deadline = time.monotonic() + minutes * 60 if minutes else float("inf")
    totals, failures = Totals(), []
    firsts = range(start, start + seeds, CHUNK)
    shown = time.monotonic()
    with ProcessPoolExecutor(arguments.jobs, initializer=_begin) as pool:
        running = {
            pool.submit(_chunk, first, min(CHUNK, start + seeds - first), deadline, arguments.kind)
            for first in firsts
        }
        for future in as_completed(running):
            part, failure = future.result()
            totals.merge(part)
            if failure is not None:
                failures.append(failure)
                for other in running:
                    other.cancel()
                break
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{totals.seeds} seeds, {totals.events} events", file=sys.stderr)
    for failure in failures:
        print(story(failure))
    report(totals, start)
    return 1 if failures else 0


def report(totals: Totals, start: int) -> None:
    """Seeds per second of one process, and how often what happened."""
    rate = totals.seeds / totals.seconds if totals.seconds else 0.0
    print(
        f"{totals.seeds} seeds from {start}, {totals.events} events, "
        f"{rate:.1f} seeds/s of one process"
    )
    for what in sorted(totals.counts):
        print(f"  {what:48} {totals.counts[what]:9}  in {totals.reached[what]} seeds")
