"""Programs that read, process and publish, each a process, under fire.

    python -m tests.chaos.consumers [--minutes 10] [--seed S] [--faults interrupt,twin,…]

Two cursors, two consumer groups over a keyed group that grows, a processing in two processes and
two publishers are interrupted, killed, frozen and doubled, while the cluster is disturbed. In the
end everything must be read to the end, and tests/chaos/consumers/checker.py names what must not be.
Exit code 1 if it was; then journals, logs and data folders are kept. A cluster lasts --each
minutes; the next has the seed `S.1`, and so on, which --seed takes, too.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import sys
import time

from tests.chaos.consumers.faults import FAULTS, possible
from tests.chaos.consumers.run import Verdict, run

NODES = 3


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.consumers", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--each", type=float, default=5.0, help="minutes until all is checked")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--faults", default="", help="with commas between them; all by default")
    parser.add_argument("--quiet", action="store_true", help="verdicts only")
    arguments = parser.parse_args()
    faults = tuple(arguments.faults.split(",")) if arguments.faults else possible()
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"--faults: no {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))  # Processes are ended, too.
    deadline = time.monotonic() + arguments.minutes * 60
    verdicts: list[Verdict] = []
    while (left := deadline - time.monotonic()) > 0 or not verdicts:
        seed = arguments.seed if not verdicts else f"{arguments.seed}.{len(verdicts)}"
        seconds = max(1.0, min(left, arguments.each * 60))
        tell = (lambda text: None) if arguments.quiet else (lambda text: print(text, flush=True))
        verdict = run(seed, seconds, NODES, faults, tell)
        verdicts.append(verdict)
        print(verdict.summary(), flush=True)
        if verdict.anomalies:
            again = f"--seed {seed} --each {arguments.each} --minutes {seconds / 60:.1f}"
            again += f" --faults {','.join(faults)}" * (faults != possible())
            print(f"  again: python -m tests.chaos.consumers {again}", flush=True)
    bad = sum(bool(each.anomalies) for each in verdicts)
    print(
        f"{len(verdicts)} runs, {sum(each.steps for each in verdicts)} steps, {bad} with anomalies"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
