"""Publishers in C, Go, Java and JavaScript through failovers, and what they were told, checked.

    python -m tests.chaos.foreign [--rounds 3] [--languages c,go] [--faults kill,freeze] [--seed S]
           [--mutant NAME]

scripts/foreign-clients makes the publishers, with the NATS client of each language. All of them
publish to three nodes over three NATS servers, while nodes are killed, frozen, cut off and
restarted, or a NATS server is killed. In the end tests/chaos/foreign/checker.py holds what they
were told against the log, and names what must not be. Exit code 1 if it was; the folder with the
logs is kept then. Each fault is a cluster of its own, with --rounds failures.

With --mutant all nodes lack that safety rule of the simulation, and the campaign must notice it:
denies_what_it_appended (--faults kill), acknowledges_before_the_commit (--faults unheard).
"""

from __future__ import annotations

import argparse
import secrets
import shutil
import sys
import tempfile
from pathlib import Path
from random import Random

from tests.chaos.foreign.programs import LANGUAGES, why_not
from tests.chaos.foreign.run import FAULTS, run
from tests.support.clocked_server import NO_MUTANT


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.foreign",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="failures of each kind")
    parser.add_argument(
        "--languages", default="", help="with commas; all that were made by default"
    )
    parser.add_argument("--faults", default="", help="with commas between them; all by default")
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--mutant", default=NO_MUTANT, help="a rule to go without")
    arguments = parser.parse_args()
    asked = arguments.languages.split(",") if arguments.languages else LANGUAGES
    faults = arguments.faults.split(",") if arguments.faults else [*FAULTS]
    if unknown := {*asked} - {*LANGUAGES} | {*faults} - {*FAULTS}:
        parser.error(
            f"no {', '.join(sorted(unknown))}; there are {', '.join((*LANGUAGES, *FAULTS))}"
        )
    for reason in filter(None, map(why_not, asked)):
        print(reason, flush=True)
    languages = [language for language in asked if not why_not(language)]
    if not languages:
        parser.error("there is no publisher in any of the languages")
    bad = 0
    for fault in faults:
        folder = Path(tempfile.mkdtemp(prefix="jetstream-foreign-"))
        print(f"{fault}, seed {arguments.seed}", flush=True)
        result = run(
            folder, languages, [fault] * arguments.rounds,
            mutant=arguments.mutant,
            dice=Random(f"{arguments.seed}/{fault}"),
            tell=lambda text: print(f"  {text}", flush=True),
        )  # fmt: skip
        print(result.lines(), flush=True)
        bad += bool(result.anomalies)
        if result.anomalies:
            print(f"kept: {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    print(f"{len(faults) * arguments.rounds} failures, {bad} of {len(faults)} runs with anomalies")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
