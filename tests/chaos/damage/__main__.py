"""Damage the files of one node of a real cluster, again and again, under publishers with acks.

    python -m tests.chaos.damage [--rounds 20] [--seed S] [--replicas 1|3] [--minutes M]

Each round takes one node, stopped, killed (alone or with all others) or running, and one of its
files or folders; then nothing acknowledged may be lost, and all has to be whole and equal again
within 60 s, and something said. checker.py names what must not happen. Exit code 1 if it did: then
the report says the seed, the round, the damage, where the nodes' logs and folders were kept, and
the command that repeats it. --first and --only choose among the rounds of a seed.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
from collections import Counter

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.damage.campaign import Campaign
from tests.chaos.damage.plan import STOPS
from tests.chaos.damage.targets import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.damage", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--replicas", type=int, choices=(1, 3), default=3)
    parser.add_argument("--minutes", type=float, default=24 * 60.0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--only", default="", help="kinds of files, with commas between them")
    arguments = parser.parse_args()
    kinds = tuple(arguments.only.split(",")) if arguments.only else KINDS
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"--only: no such kind: {', '.join(sorted(unknown))}; there are {KINDS}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Nodes are ended, too.
    console = Console(width=None if sys.stdout.isatty() else 160, soft_wrap=True)
    console.print(f"seed {arguments.seed}, {arguments.replicas} replicas")
    bar = Progress(
        BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"),
        console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    with bar:
        task = bar.add_task("", total=arguments.rounds)
        campaign = Campaign(arguments.seed, arguments.replicas, bar.console.out, kinds)
        healed: list[float] = []
        for report in campaign.rounds(arguments.first, arguments.rounds, arguments.minutes * 60):
            healed.append(report.healed_seconds)
            bad = sum(campaign.causes.values())
            bar.update(task, advance=1, description=f"{report.plan}; {bad} anomalies")
    _sum_up(console, campaign, healed)
    return 1 if campaign.causes else 0


def _sum_up(console: Console, campaign: Campaign, healed: list[float]) -> None:
    table = Table("file", *STOPS, "rounds", box=None)
    totals: Counter[str] = Counter()
    for kind in campaign.kinds:
        counts = [campaign.tally[kind, stop] for stop in STOPS]
        table.add_row(kind, *map(str, counts), str(sum(counts)))
        totals.update(dict(zip(STOPS, counts, strict=True)))
    rounds = sum(totals.values())
    table.add_row("all", *(str(totals[stop]) for stop in STOPS), str(rounds))
    console.print(table)
    if healed:
        middle = sorted(healed)[len(healed) // 2]
        console.print(f"whole again: median {middle:.1f} s, worst {max(healed):.1f} s")
    for cause, count in campaign.causes.most_common():
        console.print(f"{cause}: {count} of {rounds} rounds")
    if not campaign.causes:
        console.print(f"{rounds} rounds, no anomaly")


if __name__ == "__main__":
    sys.exit(main())
