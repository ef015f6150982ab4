"""A disk in memory whose operations fail, each before it has done anything, or half-way."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from random import Random

from jetstream_protocol.logfiles.names import OFFSETS_SUFFIX
from jetstream_server.log.disk import Buffer
from tests.simulation.disk import File, Killed, SimulatedDisk

_GROWING = ("create", "make_directory", "write_atomic", "grow")


class FailingDisk(SimulatedDisk):
    """fails_in: so many changes succeed before `fails_for` of them fail with EIO; None: all do.
    full: whatever needs space fails with ENOSPC. Reads fail, and processes die, as the disk of the
    simulation has it (`reads_fail`, `fuse`)."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_in: int | None = None
        self.fails_for = 1
        self.full = False
        self.torn = Random(0)
        """Says how much of an interrupted write took place."""

    def repair(self) -> None:
        super().repair()
        self.fails_in = None

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        if self.fuse is not None and self.fuse < 0:
            raise Killed  # It is dead already.
        data = b"".join(buffers)
        file = self._file(path)
        try:
            self._operate("grow" if position + len(data) > len(file.data) else "")
        except (Killed, OSError):
            # Neither a sector nor a page is torn. A write that fails is not complete.
            cuts = (0, len(data)) if path.endswith(OFFSETS_SUFFIX) else range(len(data))
            file.write(position, data[: self.torn.choice(cuts)])
            raise
        file.write(position, data)

    def read_file(self, path: str) -> bytes:
        if not self.reads_fail:
            return super().read_file(path)
        self.reads_fail -= 1
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._operate("write_atomic")
        parent, name = self._parent(path)
        file = File()
        file.write(0, data)
        if durable:
            self._sync(file)
        self._operate()
        parent.change()[name] = file
        self._found.pop(path, None)
        if durable:
            self._operate()
            parent.unsynced.clear()

    def fsync(self, path: str) -> None:
        self._sync(self._file(path))

    def _sync(self, file: File) -> None:
        try:
            self._operate()
        except OSError:
            file.fail_sync()
            raise
        file.sync()

    def _operate(self, name: str = "") -> None:
        super()._operate()
        if self.full and name in _GROWING:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self.fails_in is None:
            return
        self.fails_in -= 1
        if self.fails_in < 0:
            if self.fails_in <= -self.fails_for:
                self.fails_in = None
            raise OSError(errno.EIO, os.strerror(errno.EIO))
