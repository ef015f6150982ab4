"""Run tests while random processes of theirs stand still for a moment, as on a starved machine.

    python -m tests.halts [OPTION…] [ARGUMENTS OF PYTEST]

One process at a time is stopped, pytest's own among them, for 0.05 s to --longest, most for less
than half a second; then it goes on. What a test has stopped itself stays as it is. The seed is that
of times and choices, not of what there is to choose from. Exit code: pytest's. If it is not 0, each
halt is printed.

--only nats-server stops nothing else. With --late-ends NATS servers notice late that a process has
ended (tests/late_ends.py).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import secrets
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from random import Random

SHORTEST_SECONDS = 0.05
BETWEEN_SHARE = 0.3
"""How long all go on, as a part of the longest halt, at most."""
LOOK_SECONDS = 0.02
PR_SET_CHILD_SUBREAPER = 36
STOPPED, ENDED = "Tt", "ZX"
"""States of a process in /proc."""


def status(pid: int) -> dict[str, str]:
    """What /proc says of a process; {} when it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {}


def descendants(only: str) -> list[int]:
    """Of this process; those that run or sleep. only: the name that they have; "": any."""
    parents, awake = {}, set()
    for pid in [int(entry) for entry in os.listdir("/proc") if entry.isdecimal()]:
        if said := status(pid):
            parents[pid] = int(said["PPid"])
            if only in ("", said["Name"]) and said["State"][0] not in STOPPED + ENDED:
                awake.add(pid)
    found, next_ones = [], {os.getpid()}
    while next_ones := {pid for pid, parent in parents.items() if parent in next_ones}:
        found += sorted(next_ones & awake)
    return found


class Halter:
    def __init__(
        self, pytest: subprocess.Popen[bytes], random: Random, longest: float, only: str
    ) -> None:
        self._pytest = pytest
        self._random = random
        self._longest = longest
        self._only = only
        self.halts: list[str] = []

    def run(self) -> int:
        """Until pytest ends. Returns its exit code."""
        while self._wait(self._random.uniform(0, BETWEEN_SHARE * self._longest)):
            if candidates := descendants(self._only):
                spread = self._longest / SHORTEST_SECONDS
                seconds = SHORTEST_SECONDS * spread ** self._random.random()
                with suppress(OSError):  # It has ended.
                    self._halt(self._random.choice(candidates), seconds)
        code = self._pytest.wait()
        return code if code >= 0 else 128 - code

    def _halt(self, pid: int, seconds: float) -> None:
        process = os.pidfd_open(pid)  # Its number may be another's by the time it goes on.
        try:
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()[:150]
            if status(pid).get("State", "Z")[0] in STOPPED + ENDED:
                return
            self.halts.append(f"{datetime.now():%H:%M:%S.%f} {seconds:.2f} s {pid} {name}")
            signal.pidfd_send_signal(process, signal.SIGSTOP)
            stands = False
            try:
                while not stands and self._wait(LOOK_SECONDS):
                    stands = status(pid).get("State", "Z")[0] in STOPPED + ENDED
                self._wait(seconds)
            finally:
                # Once it stands, a stop that is pending is a test's own.
                pending = int(status(pid).get("ShdPnd", "0"), 16)
                if not (stands and pending >> (signal.SIGSTOP - 1) & 1):
                    signal.pidfd_send_signal(process, signal.SIGCONT)
        finally:
            os.close(process)

    def _wait(self, seconds: float) -> bool:
        """Returns whether pytest runs. Orphans among the descendants are this process's."""
        deadline = time.monotonic() + seconds
        while True:
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self._pytest.pid:
                    return False
                os.waitpid(ended.si_pid, 0)
            if (left := deadline - time.monotonic()) <= 0:
                return True
            time.sleep(min(left, LOOK_SECONDS))


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.halts", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--longest", type=float, default=3.0, metavar="SECONDS")
    parser.add_argument("--only", default="", metavar="NAME", help="of the processes to stop")
    parser.add_argument("--late-ends", action="store_true")
    options, arguments = parser.parse_known_args()
    print(f"halts: seed {options.seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # What is stopped goes on before.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    # A test may start a pytest, which inherits it.
    plugins = {"PYTEST_PLUGINS": "tests.late_ends"} if options.late_ends else {}
    command = [sys.executable, "-m", "pytest", *arguments]
    pytest = subprocess.Popen(command, env=os.environ | plugins)
    halter = Halter(pytest, Random(options.seed), options.longest, options.only)
    code = halter.run()
    if code:
        print(*halter.halts, sep="\n")
    print(f"halts: {len(halter.halts)}, seed {options.seed}, exit code {code}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
