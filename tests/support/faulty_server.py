"""A whole server whose wall clock and disk a test can disturb while it runs.

    python -m tests.support.faulty_server FOLDER --config … --node-id N …

`FOLDER/clocks` and `FOLDER/disks` are what `clocked_server` and `breaking_server` read. Snapshots
of the metadata come every few dozen entries.
"""

from __future__ import annotations

import mmap
import sys
from functools import partial
from pathlib import Path

from tests.support.breaking_server import Faults, break_when_told
from tests.support.clocked_server import CLOCK, shift
from tests.support.snapshotting_server import ENTRIES


def command(folder: Path) -> tuple[str, ...]:
    """What to run in place of the server; `clocks_file` must be there by then."""
    return sys.executable, "-m", "tests.support.faulty_server", str(folder)


def clocks_file(folder: Path) -> Path:
    return folder / "clocks"


def disks_folder(folder: Path) -> Path:
    return folder / "disks"


def main() -> None:
    folder = Path(sys.argv.pop(1))
    node = int(sys.argv[sys.argv.index("--node-id") + 1])
    with clocks_file(folder).open("rb") as file:
        clocks = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    shift(lambda: int(CLOCK.unpack_from(clocks, CLOCK.size * node)[0]))
    break_when_told(Faults(disks_folder(folder) / str(node)))

    from jetstream_server.node import build
    from jetstream_server.node.cli import main as serve

    setattr(build, "MemberConfig", partial(build.MemberConfig, compact_after_entries=ENTRIES))  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
