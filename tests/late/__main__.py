"""Run tests while every server that they start hears late of what is new in the metadata.

    python -m tests.late [--seed N] [--longest SECONDS] [ARGUMENTS OF PYTEST]

Each change that a node has applied, its own among them, and each new metadata leader is known to
the rest of that node 0.1 s to --longest later, in order. The leader, the other nodes and the
clients act meanwhile, so a node that answers what it cannot know yet is found. The seed is that of
the times, not of what there is to hear. Exit code: pytest's.

Beyond about 0.8 s nodes and clients stop waiting for a node that is behind, and tests fail that
rely on it.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import sys
from pathlib import Path

from tests.late.sitecustomize import VARIABLE


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.late", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--longest", type=float, default=0.8, metavar="SECONDS")
    options, arguments = parser.parse_known_args()
    print(f"late: seed {options.seed}", flush=True)
    folders = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(folders),
        VARIABLE: f"{options.seed} {options.longest}",
    }
    code = subprocess.call([sys.executable, "-m", "pytest", *arguments], env=environment)
    print(f"late: seed {options.seed}, exit code {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
