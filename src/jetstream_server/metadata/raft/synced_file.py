"""The file `synced` beside a metadata journal: opened once, its slots written in turn.

Format and meaning: jetstream_protocol.logfiles.synced_length. A slot is overwritten in place, so
that a sync costs one flush and no change of file system metadata.
"""

from __future__ import annotations

import os

from jetstream_protocol.logfiles.synced_length import (
    FILE_BYTES,
    SYNCED_NAME,
    SyncedLength,
    damage,
    decode,
)
from jetstream_server.metadata.raft.files import read_file, replace_file


class SyncedFile:
    """`read` what an earlier run left, then `open`, then `write` after each sync of the journal."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, SYNCED_NAME)
        self.damage = ""
        """What was wrong with the file."""
        self._last = SyncedLength(0, 0, 0, 0, clean=False)
        self._descriptor = -1

    def read(self) -> SyncedLength | None:
        """The content of the file; None when it is missing or damaged."""
        if not os.path.exists(self.path):
            return None
        data = read_file(self.path)
        self.damage = damage(data)
        found = decode(data)
        if found is not None:
            self._last = found
        return found

    def open(self) -> None:
        """Make the file unless it is complete; with a slot for no journal yet."""
        if self.damage or not os.path.exists(self.path):
            content = bytearray(FILE_BYTES)
            slot = self._last.encode()
            content[self._last.offset : self._last.offset + len(slot)] = slot
            replace_file(self.path, [bytes(content)])
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, generation: int, identity: int, length: int, *, clean: bool = False) -> None:
        """Record how many bytes of that journal file are synced. Durable on return."""
        said = (generation, identity, length, clean)
        last = self._last
        if said == (last.generation, last.identity, last.length, last.clean):
            return
        self._last = SyncedLength(last.sequence + 1, generation, identity, length, clean)
        os.pwrite(self._descriptor, self._last.encode(), self._last.offset)
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
