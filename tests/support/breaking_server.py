"""A whole server whose disk a test can break and mend while it runs.

    python -m tests.support.breaking_server FOLDER --config … --node-id N …

While the file `FOLDER/N` exists, the operations it names fail as on a broken disk, for files of
streams: one line each, an operation of `Disk` and how a path ends, as `fsync .log`. A number after
it limits how many fail. An election without a replica in sync waits less for those that are away.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jetstream_server.log.disk import OsDisk

OTHERS_WAIT_US = 3_000_000
OPERATIONS = (
    "create",
    "fsync",
    "fsync_directory",
    "list_directory",
    "make_directory",
    "pread",
    "remove",
    "truncate",
    "write",
    "write_atomic",
)


def command(folder: Path) -> tuple[str, ...]:
    """What to run in place of the server."""
    return sys.executable, "-m", "tests.support.breaking_server", str(folder)


def break_disk(folder: Path, node: int, *faults: str) -> None:
    """From now on these fail; none: nothing does."""
    folder.mkdir(exist_ok=True)
    file = folder / str(node)
    if faults:
        new = file.with_suffix(".new")
        new.write_text("\n".join(faults))
        new.replace(file)
    else:
        file.unlink(missing_ok=True)


class Faults:
    """What the file says, and how many of each have failed since it said so."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._text = ""
        self._failed: dict[str, int] = {}

    def strikes(self, operation: str, path: str) -> bool:
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            text = ""
        if text != self._text:
            self._text = text
            self._failed.clear()
        for line in text.splitlines():
            name, suffix, *limit = line.split()
            if name == operation and path.endswith(suffix) and "/streams/" in path:
                failed = self._failed[line] = self._failed.get(line, 0) + 1
                return not limit or failed <= int(limit[0])
        return False


def break_when_told(faults: Faults) -> None:
    """Put the faults before every operation of this process's disk."""

    def breakable(operation: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def broken(disk: OsDisk, path: str, *rest: Any, **options: Any) -> Any:
            if faults.strikes(operation, path):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return real(disk, path, *rest, **options)

        return broken

    for operation in OPERATIONS:
        setattr(OsDisk, operation, breakable(operation, getattr(OsDisk, operation)))


def main() -> None:
    folder = Path(sys.argv.pop(1))
    node = sys.argv[sys.argv.index("--node-id") + 1]
    break_when_told(Faults(folder / node))

    from jetstream_server.node.cli import main as serve
    from jetstream_server.replication.core import unclean_election

    setattr(unclean_election, "OTHERS_WAIT_US", OTHERS_WAIT_US)  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
