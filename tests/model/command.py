"""The command line of the model."""

from __future__ import annotations

import argparse
import sys

from tests.model.explore import Explored, explore
from tests.model.world import Bounds


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.model")
    parser.add_argument("--records", type=int, default=2)
    parser.add_argument("--crashes", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--hand-overs", type=int, default=0)
    parser.add_argument("--unknown-outcomes", type=int, default=0)
    parser.add_argument("--late-messages", type=int, default=1)
    parser.add_argument("--lags", type=int, default=1)
    parser.add_argument("--stale", type=int, default=1)
    parser.add_argument("--snapshots", action="store_true", help="metadata skips, too")
    parser.add_argument("--min-insync-replicas", type=int, default=2)
    parser.add_argument("--flush", choices=("none", "group"), default="none")
    parser.add_argument("--states", type=int, default=20_000_000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long")
    arguments = parser.parse_args()
    bounds = Bounds(
        records=arguments.records,
        crashes=arguments.crashes,
        partitions=arguments.partitions,
        hand_overs=arguments.hand_overs,
        unknown_outcomes=arguments.unknown_outcomes,
        late_messages=arguments.late_messages,
        lags=arguments.lags,
        stale=arguments.stale,
        snapshots=arguments.snapshots,
        min_insync_replicas=arguments.min_insync_replicas,
        flush=arguments.flush,
    )
    found = explore(bounds, arguments.states, arguments.minutes * 60)
    print(f"{bounds}\n{summary(found)}")
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
