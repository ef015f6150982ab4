"""A stream in the lake of three real nodes, whose store fails as the nodes do.

    python -m tests.chaos.lake [--minutes 10] [--each 10] [--seed S] [--store moto|versitygw|folder]
           [--faults gone,step,…]

Publishers with acks write all the time; old records leave the disks for the store. One fault after
the other: the store is gone, hangs, is slow, answers 503, is full, cuts its answers, fails after it
has written, or takes the credentials no more; the leader is killed at a step of an upload, killed,
frozen or cut off; clocks are set; a disk is lost. After each all is as it was within 90 s, and
disks hold no more than they may. Now and then, and in the end, nothing acknowledged is lost, no
offset is given twice, all copies and the table are equal, and in the end the store has nothing that
no table needs. checker.py names the failures. Exit code 1 after one; the folder with data and
logs is kept.
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.lake.run import run
from tests.chaos.lake.stores import KINDS, why_not


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.lake",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--each", type=float, default=10.0, help="minutes of a cluster")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--store", choices=list(KINDS), default="moto")
    parser.add_argument("--faults", default="", help="with commas between them; all by default")
    arguments = parser.parse_args()
    if reason := why_not(arguments.store):
        parser.error(reason)
    deadline = time.monotonic() + arguments.minutes * 60
    faults = arguments.faults.split(",") if arguments.faults else []
    number = 0
    while (left := deadline - time.monotonic()) > 0:
        number += 1
        seed = f"{arguments.seed}.{number}"
        folder = Path(tempfile.mkdtemp(prefix="jetstream-lake-"))
        print(f"{arguments.store}, seed {seed}", flush=True)
        verdict = run(
            arguments.store, seed, min(left, arguments.each * 60), folder, faults,
            lambda text: print(f"  {text}", flush=True),
        )  # fmt: skip
        print(verdict.lines(), flush=True)
        if verdict.anomalies:
            print(f"kept: {folder}", flush=True)
            return 1
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
