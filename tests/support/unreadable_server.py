"""A whole server that cannot read some sectors of its disk: what a test names gives EIO.

    python -m tests.support.unreadable_server FOLDER ROUND --config … --node-id N …

`FOLDER/N` holds a line for each: how a path ends, and the first and the last page that cannot be
read. Written and renamed they may be: this is about what lies there. ROUND: the least seconds that
the scrub takes for a round, or "-" for as many as it takes in production.
"""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

PAGE = 4096
AS_EVER = "-"


def command(folder: Path, scrub_round: str = AS_EVER) -> tuple[str, ...]:
    """What to run in place of the server."""
    return sys.executable, "-m", "tests.support.unreadable_server", str(folder), scrub_round


def make_unreadable(folder: Path, node: int, file: Path, position: int, end: int) -> None:
    """From now on the pages of those bytes cannot be read, for as long as the file is this one."""
    folder.mkdir(exist_ok=True)
    inode = file.stat().st_ino
    new = folder / f"{node}.new"
    new.write_text(f"{inode} {position // PAGE} {(end - 1) // PAGE}\n")
    new.replace(folder / str(node))


class Sectors:
    def __init__(self, file: Path) -> None:
        self._file = file

    def readable(self, fd: int, position: int, length: int) -> int:
        """How many bytes from there on can be read. Raises OSError when the first cannot."""
        try:
            lines = self._file.read_text().splitlines()
        except FileNotFoundError:
            return length
        for line in lines:
            inode, first, last = map(int, line.split())
            bad, end = first * PAGE, (last + 1) * PAGE
            if position < end and bad < position + length and os.fstat(fd).st_ino == inode:
                if bad <= position:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
                return bad - position
        return length


def lose(sectors: Sectors) -> None:
    """Put the bad sectors under every read of this process."""
    pread, preadv, sendfile = os.pread, os.preadv, os.sendfile

    def bad_pread(fd: int, length: int, position: int) -> bytes:
        return pread(fd, sectors.readable(fd, position, length) if length else 0, position)

    def bad_preadv(fd: int, buffers: list[Any], position: int, *flags: int) -> int:
        length = sum(map(len, buffers))
        if sectors.readable(fd, position, length) < length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return preadv(fd, buffers, position, *flags)

    def bad_sendfile(out: int, fd: int, position: int, length: int) -> int:
        return sendfile(out, fd, position, sectors.readable(fd, position, length))

    os.pread, os.preadv, os.sendfile = bad_pread, bad_preadv, bad_sendfile  # type: ignore[assignment]


def main() -> None:
    folder, scrub_round = Path(sys.argv.pop(1)), sys.argv.pop(1)
    node = sys.argv[sys.argv.index("--node-id") + 1]
    lose(Sectors(folder / node))

    from jetstream_server.node.cli import main as serve
    from jetstream_server.replication.drivers import scrub

    if scrub_round != AS_EVER:
        setattr(scrub, "ROUND_SECONDS", float(scrub_round))  # noqa: B010
    serve()


if __name__ == "__main__":
    main()
