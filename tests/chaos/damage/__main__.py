"""Damage the files of one node of a real cluster, again and again, under publishers with acks.

    python -m tests.chaos.damage [--rounds 20] [--seed S] [--replicas 1|3] [--minutes M] [--jobs N]

Each round takes one node, stopped, killed (alone or with all others) or running, and one of its
files or folders; then nothing acknowledged may be lost, all copies must be whole and equal again
within 60 s, and the damage must be reported. checker.py names the failures. Exit code 1 after a
failure. The report then has the seed, the round, the damage, the place of the nodes' logs and
folders, and the command that repeats it. --first and --only choose among the rounds of a seed.
--jobs: number of clusters at once; the rounds are the same.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.damage.jobs import Done, Settings, rounds
from tests.chaos.damage.plan import STOPS
from tests.chaos.damage.targets import KINDS

TOLD_ROUNDS = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.damage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=3)
    parser.add_argument("--minutes", type=float, default=24 * 60.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--only", default="", help="kinds of files, with commas between them")
    parser.add_argument("--jobs", type=int, default=1, help="clusters at once")
    arguments = parser.parse_args()
    kinds = tuple(arguments.only.split(",")) if arguments.only else KINDS
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: no such kind: {', '.join(sorted(unknown))}; there are {KINDS}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Nodes are ended, too.
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=True)
    console.print(f"seed {arguments.seed}, {arguments.replicas} replicas")
    settings = Settings(
        arguments.seed, arguments.replicas, kinds, time.monotonic() + arguments.minutes * 60
    )
    bar = Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    found: list[Done] = []
    with bar:
        task = bar.add_task("", total=arguments.rounds)
        for done in rounds(settings, arguments.first, arguments.rounds, arguments.jobs):
            found.append(done)
            for report in done.told:
                bar.console.out(report)
            bad = sum(bool(each.causes) for each in found)
            bar.update(task, advance=1, description=f"{done.plan}; {bad} with anomalies")
            if not console.is_terminal and len(found) % TOLD_ROUNDS == 0:
                console.print(f"{len(found)} of {arguments.rounds} rounds, {bad} with anomalies")
    return _sum_up(console, kinds, found)


def _sum_up(console: Console, kinds: tuple[str, ...], found: list[Done]) -> int:
    """Print what came of it; the exit code."""
    failures = [each.failure for each in found if each.failure]
    done = [each for each in found if not each.failure]
    tally = Counter((each.kind, each.stop) for each in done)
    causes = Counter(cause for each in done for cause in each.causes)
    table = Table("file", *STOPS, "rounds", box=None)
    for kind in (*kinds, "all"):
        counts = [sum(n for (k, s), n in tally.items() if s == stop and kind in (k, "all"))
                  for stop in STOPS]  # fmt: skip
        table.add_row(kind, *map(str, counts), str(sum(counts)))
    console.print(table)
    if done:
        healed, taken = (sorted(each) for each in zip(
            *((each.healed_seconds, each.seconds) for each in done), strict=True))  # fmt: skip
        middle = len(done) // 2
        console.print(f"whole again: median {healed[middle]:.1f} s, worst {healed[-1]:.1f} s")
        console.print(f"a round: median {taken[middle]:.1f} s, worst {taken[-1]:.1f} s")
    for failure in failures:
        console.out(f"not carried out: {failure}")
    for cause, count in causes.most_common():
        console.print(f"{cause}: {count} of {len(done)} rounds")
    if not causes:
        console.print(f"{len(done)} rounds, no anomaly")
    return 1 if causes or failures else 0


if __name__ == "__main__":
    sys.exit(main())
