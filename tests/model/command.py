"""The command line of the model."""

from __future__ import annotations

import argparse
import sys

from tests.model.explore import Explored, explore
from tests.model.state import Bounds
from tests.model.world import World


def main() -> None:
    default = Bounds()
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    for name in (
        "records", "crashes", "partitions", "hand_overs", "unknown_outcomes", "late_messages",
        "lags", "stale", "min_insync_replicas",
    ):  # fmt: skip
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=getattr(default, name), help="%(default)s")
    parser.add_argument("--snapshots", action="store_true", help="metadata skips, too")
    parser.add_argument("--flush", choices=("none", "group"), default=default.flush)
    parser.add_argument("--states", type=int, default=20_000_000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    arguments = vars(parser.parse_args())
    states_max, minutes = arguments.pop("states"), arguments.pop("minutes")
    bounds = Bounds(**arguments)
    print(bounds, flush=True)
    found = explore(World(bounds), states_max, minutes * 60)
    print(summary(found))
    for line in found.story:
        print(f"  {line}")
    sys.exit(1 if found.violation else 0)


def summary(found: Explored) -> str:
    """One line, and the violation."""
    how = "all of them" if found.complete else "not all of them"
    text = (
        f"{found.states} states ({how}), {found.steps} steps, depth {found.depth}, "
        f"{found.seconds:.1f} s"
    )
    return f"{text}\n{found.violation}" if found.violation else text
