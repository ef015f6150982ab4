"""jetstream-server with a disk that a test can watch, hold and break.

    python -m tests.integration.gated_server GATE ARGUMENTS…

GATE is a folder. Every fsync of a segment is a line in its file `fsyncs`; while its file `hold`
exists, which says how many fsyncs are let through, no further one ends; while `fail` exists each
fails as a broken disk does. Everything else is the real server, its real disk included.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import sys
import time
from pathlib import Path

from jetstream_server.log.disk import OsDisk
from jetstream_server.node import cli

POLL_SECONDS = 0.002


def gate(folder: Path) -> None:
    """Put the gate before every fsync of a segment of this process."""
    fsync = OsDisk.fsync
    ordinals = itertools.count(1)

    def gated(disk: OsDisk, path: str) -> None:
        if path.endswith(".log"):
            with (folder / "fsyncs").open("a") as counted:
                counted.write(f"{path}\n")
            ordinal = next(ordinals)
            while ordinal > let_through(folder):
                time.sleep(POLL_SECONDS)
            if (folder / "fail").exists():
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        fsync(disk, path)

    OsDisk.fsync = gated  # type: ignore[method-assign]


def let_through(folder: Path) -> float:
    """How many fsyncs may end."""
    try:
        return int((folder / "hold").read_text())
    except FileNotFoundError:
        return math.inf


if __name__ == "__main__":
    gate(Path(sys.argv.pop(1)))
    cli.main()
