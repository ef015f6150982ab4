"""A real cluster and its clients under everything that may go wrong, for as long as one likes.

    python -m tests.chaos [--minutes 10] [--seed S] [--faults kill,cut,…] [--nodes 4]

Three streams are published to over NATS, and one in batches, on NATS or straight to its leader;
two are shared by a consumer group; readers read from leaders and from any replica, and a table
follows a compacted stream. Meanwhile processes are killed and frozen, links cut, clocks set, disks
fail, files are damaged and lost, streams and members come, move and go, as the seed says. Every few
minutes all of it comes to rest and is checked: tests/chaos/mixed/checker.py names what must not be.
Exit code 1 if it was; then the history, the logs and the data folders are kept. A cluster lasts
--each minutes; the next has the seed `S.1`, and so on, which --seed takes, too.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time
from random import Random

from examples.spark.__main__ import has_java
from tests.chaos.mixed.nemesis import FAULTS, impossible, possible
from tests.chaos.mixed.run import Verdict, run

REPLICAS = 3
SECURED = 0.3
"""The share of the runs."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--each", type=float, default=3.0, help="minutes until all is checked")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--faults", default="", help="with commas between them; all by default")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument(
        "--secured", action="store_true", help="every run, and not only when its seed says so"
    )
    parser.add_argument(
        "--spark", action="store_true", help="in the end of each run, read all by Spark, too"
    )
    parser.add_argument("--quiet", action="store_true", help="verdicts only")
    arguments = parser.parse_args()
    faults = tuple(arguments.faults.split(",")) if arguments.faults else possible()
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"--faults: no {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    for name, reason in impossible().items():
        if name in faults:
            parser.error(f"--faults: no {name}: {reason}")
        print(f"without {name}: {reason}", flush=True)
    if arguments.nodes < REPLICAS:
        parser.error(f"--nodes: at least {REPLICAS}")
    if arguments.spark and not has_java():
        parser.error("--spark: Spark needs Java and there is none: scripts/java installs it")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Processes are ended, too.
    deadline = time.monotonic() + arguments.minutes * 60
    verdicts: list[Verdict] = []
    while (left := deadline - time.monotonic()) > 0 or not verdicts:
        seed = arguments.seed if not verdicts else f"{arguments.seed}.{len(verdicts)}"
        seconds = max(1.0, min(left, arguments.each * 60))
        tell = (lambda text: None) if arguments.quiet else (lambda text: print(text, flush=True))
        secured = arguments.secured or Random(f"{seed}/secured").random() < SECURED
        verdict = run(
            seed,
            seconds,
            arguments.nodes,
            faults,
            tell,
            secured=secured,
            spark=arguments.spark,
        )
        verdicts.append(verdict)
        print(verdict.summary(), flush=True)
        if verdict.anomalies:
            again = f"--seed {seed} --each {arguments.each} --minutes {seconds / 60:.1f}"
            again += f" --nodes {arguments.nodes} --faults {','.join(faults)}"
            again += " --secured" * arguments.secured + " --spark" * arguments.spark
            print(f"  again: python -m tests.chaos {again}", flush=True)
    bad = sum(bool(each.anomalies) for each in verdicts)
    acked = sum(len(b.acked) for each in verdicts for b in each.history.books.values())
    steps = sum(each.steps for each in verdicts)
    print(f"{len(verdicts)} runs, {steps} steps, {acked} acknowledged, {bad} with anomalies")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
