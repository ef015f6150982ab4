"""The tests of nats.java for JetStream, as they are, with this server in JetStream's place.

    python -m tests.suites.nats_java FOLDER CLASSPATH [--peer] [TEST …]

FOLDER is nats.java's repository; CLASSPATH has its classes, those of its tests and what they need:
`scripts/nats-java-suite` makes both. A TEST is `Class` or `Class.test`; all of CLASSES by default.
What fails must be in EXPECTED, with its reason, and what is there must fail: a change either way is
said, and the exit code is 1. Those in UNSTABLE may do both. --peer runs them with NATS JetStream
itself, and prints what fails there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.suites.nats_java_expected import CLASSES, EXPECTED, UNSTABLE
from tests.suites.outcomes import judged, outcomes
from tests.suites.pretending import Pretender

_PACKAGE: Final = "io.nats.client.impl"
_DELIVERED: Final = ("deliver", *(f"deliver-{number}" for number in range(200)))
"""To which the tests have messages pushed; some have random names."""
_TEST_TIME: Final = "-Djunit.jupiter.execution.timeout.default=2m"


def run(source: Path, classpath: str, tests: Sequence[str], *, is_peer: bool) -> dict[str, str]:
    """What became of each test, by `Class.test`: "" if it has passed, or why not."""
    with tempfile.TemporaryDirectory(prefix="nats-java-") as name, ExitStack() as ending:
        folder = Path(name)
        program = shutil.which("nats-server") or ""
        waiting = []
        if not is_peer:
            ending.enter_context(Pretender(folder, _DELIVERED))
            program = str(folder / "nats-server")
            waiting = [f"-Dready={folder}"]
        chosen = [_selected(each) for each in tests or CLASSES]
        command = ["java", "-Xmx1g", _TEST_TIME, *waiting, "-cp", classpath, "Suite", "execute"]
        said = subprocess.run(
            [*command, "--disable-banner", "--details=none", f"--reports-dir={folder}", *chosen],
            cwd=source, env={**os.environ, "nats_server_path": program},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        report = folder / "TEST-junit-jupiter.xml"
        if not report.exists():
            raise RuntimeError(f"the suite did not run: {said.stdout[-2000:]}")
        return outcomes(report)


def _selected(test: str) -> str:
    name, _, method = test.partition(".")
    if method:
        return f"--select-method={_PACKAGE}.{name}#{method}"
    return f"--select-class={_PACKAGE}.{name}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.nats_java",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("classpath")
    parser.add_argument("--peer", dest="is_peer", action="store_true")
    parser.add_argument("tests", nargs="*", metavar="TEST")
    given = parser.parse_intermixed_args()
    found = run(given.folder, given.classpath, given.tests, is_peer=given.is_peer)
    if given.is_peer:
        return judged("nats.java", found, {}, {})
    return judged("nats.java", found, EXPECTED, UNSTABLE)


if __name__ == "__main__":
    sys.exit(main())
