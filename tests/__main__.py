"""The long searches for faults. The test suite runs a short one of each.

python -m tests                 lists them
python -m tests NAME [OPTION…]  runs one; --help says what it takes
"""

from __future__ import annotations

import runpy
import sys
from typing import Final

SEARCHES: Final = {
    "simulation": ("tests.simulation", "the whole cluster in one thread, by seeds; its mutants"),
    "model": ("tests.model", "every order of steps of a small cluster"),
    "log": (
        "tests.property.log_failures",
        "a log's files under failing disks, kills, power failures",
    ),
    "fuzz": ("tests.fuzz", "strangers and garbage on every port of a real server"),
    "chaos": ("tests.chaos", "a real cluster and its clients under every fault, as a seed says"),
    "programs": ("tests.chaos.consumers", "programs that read, process and publish, under fire"),
    "partitions": ("tests.chaos.partitions", "three real nodes on a network that is cut"),
    "packets": ("tests.chaos.packets", "three real nodes, and packets lost between them"),
    "metadata": ("tests.chaos.metadata_group", "a real metadata group, killed in every way"),
    "damage": ("tests.chaos.damage", "a real node's files damaged, under publishers with acks"),
    "lake": ("tests.chaos.lake", "a stream in the lake, while its store and the nodes fail"),
    "foreign": ("tests.chaos.foreign", "publishers in C, Go, Java, JavaScript through failovers"),
    "spark": ("tests.spark.interruptions", "writes that Spark interrupts and repeats"),
    "halts": ("tests.halts", "pytest, while random processes of it stand still for a moment"),
    "late": ("tests.late", "pytest, while its servers hear late of what is new in the metadata"),
    "cycles": ("tests.cycles", "create a stream and publish at once, over and over"),
    "bounds": ("tests.chaos.bounds", "measures what one node bears"),
    "gaps": ("tests.chaos.gaps", "measures how long publishers wait for a new leader"),
    "redeliveries": ("tests.chaos.redeliveries", "measures how long readers wait for a new leader"),
    "lasting": ("tests.lasting", "measures what a client keeps that runs for months"),
}
"""By the name on the command line: the module, and what it is about."""


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        for name, (_, about) in SEARCHES.items():
            print(f"  {name:<13}{about}")
        return 0
    if arguments[0] not in SEARCHES:
        print(
            f"no search is called {arguments[0]!r}: `python -m tests` lists them", file=sys.stderr
        )
        return 2
    module, _ = SEARCHES[arguments[0]]
    sys.argv = [f"python -m tests {arguments[0]}", *arguments[1:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
