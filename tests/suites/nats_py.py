"""The tests of nats-py for JetStream, as they are, with this server in JetStream's place.

    python -m tests.suites.nats_py FOLDER [-k EXPRESSION]

FOLDER holds nats-py's source package, or `nats` of its repository: `scripts/nats-py-suite` fetches
it. Ports 4222 and 8222 must be free. What fails must be in EXPECTED, with its reason, and what is
there must fail: a change either way is said, and the exit code is 1. Those in UNSTABLE may do both.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.suites.nats_py_expected import CLASSES, EXPECTED, UNSTABLE
from tests.suites.nats_py_utils import MONITORING, PORT
from tests.suites.outcomes import judged, outcomes
from tests.suites.pretending import Pretender

TEST_SECONDS: Final = 180


def run(source: Path, expression: str, *, is_verbose: bool) -> dict[str, str]:
    """What became of each test, by `Class.test`: "" if it has passed, or why not."""
    with tempfile.TemporaryDirectory(prefix="nats-py-") as name:
        folder = Path(name)
        shutil.copytree(source / "tests", folder / "tests")
        (folder / "tests" / "__init__.py").touch()
        if not (folder / "tests" / "utils.py").exists():
            shutil.copy(Path(__file__).with_name("nats_py_utils.py"), folder / "tests" / "utils.py")
        with Pretender(folder):
            said = subprocess.run(
                [
                    sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".",
                    "-p", "no:cacheprovider", "--timeout", f"{TEST_SECONDS}", "--tb", "short",
                    "--junitxml", "results.xml", "-k", expression or " or ".join(CLASSES),
                    "tests/test_js.py",
                ],
                cwd=folder, stdout=subprocess.PIPE, text=True, check=False,
            )  # fmt: skip
        results = folder / "results.xml"
        if not results.exists():
            raise RuntimeError(f"the suite did not run: {said.stdout[-2000:]}")
        if is_verbose:
            print(said.stdout)
        return outcomes(results)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.suites.nats_py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("-v", dest="is_verbose", action="store_true", help="what pytest says, too")
    parser.add_argument("-k", dest="expression", default="", help="as pytest takes it")
    options = parser.parse_args()
    for port in (PORT, MONITORING):
        with socket.socket() as taken:
            if taken.connect_ex(("127.0.0.1", port)) == 0:
                parser.error(f"somebody listens on port {port}, which these tests need")
    results = run(options.folder, options.expression, is_verbose=options.is_verbose)
    return judged("nats-py", results, EXPECTED, UNSTABLE)


if __name__ == "__main__":
    sys.exit(main())
