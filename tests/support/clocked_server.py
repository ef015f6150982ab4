"""A whole server whose wall clock a test can set, back and forth, while it runs.

    python -m tests.support.clocked_server CLOCKS MUTANT --config … --node-id N …

CLOCKS is a file of 64-bit integers: by how many microseconds the clock of node N is off. Monotonic
clocks are left as they are, as when an administrator or NTP sets the time. MUTANT is "-", or the
name of a safety rule of the simulation's (tests/simulation/mutants) that the server goes without.
"""

from __future__ import annotations

import mmap
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

CLOCK = struct.Struct("<q")
NO_MUTANT = "-"


def command(clocks: Path, mutant: str = NO_MUTANT) -> tuple[str, ...]:
    """What to run in place of the server; `clocks` must be there by then."""
    return sys.executable, "-m", "tests.support.clocked_server", str(clocks), mutant


def set_clock(clocks: Path, node: int, microseconds: int) -> None:
    """By how much the node's clock is off from now on. The file is made with the first of them."""
    with clocks.open("r+b" if clocks.exists() else "w+b") as file:
        file.seek(CLOCK.size * node)
        file.write(CLOCK.pack(microseconds))


def shift(microseconds: Callable[[], int]) -> None:
    """Have the process's wall clock be off by as much as `microseconds` says at the time."""
    time_ns = time.time_ns
    time.time_ns = lambda: time_ns() + microseconds() * 1000
    time.time = lambda: time.time_ns() / 1e9


def main() -> None:
    path, mutant = sys.argv.pop(1), sys.argv.pop(1)
    node = int(sys.argv[sys.argv.index("--node-id") + 1])
    with open(path, "rb") as file:
        clocks = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    shift(lambda: int(CLOCK.unpack_from(clocks, CLOCK.size * node)[0]))

    from jetstream_server.node.cli import main as serve

    if mutant == NO_MUTANT:
        serve()
    else:
        from tests.simulation.mutants import installed

        with installed(mutant):
            serve()


if __name__ == "__main__":
    main()
