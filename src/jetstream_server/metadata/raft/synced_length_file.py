"""The file `synced` beside a metadata journal: opened once, its slots written in turn.

jetstream_protocol.logfiles.synced_length defines format and meaning. A slot is overwritten in
place, so that a sync costs one flush and changes no file system metadata.
"""

from __future__ import annotations

import os
from functools import partial

from jetstream_protocol.logfiles.synced_length import (
    FILE_BYTES,
    SYNCED_NAME,
    SyncedLength,
    damage,
    decode,
)
from jetstream_server.metadata.raft.files import is_there, read_file, replace_file
from jetstream_server.metadata.raft.kept_descriptors import opened
from jetstream_server.metadata.raft.reserve import in_room


class SyncedFile:
    """Call `read` for the slots of an earlier run, `open`, then `write` after each sync."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, SYNCED_NAME)
        self._folder = directory
        self.damage = ""
        """What was wrong with the file."""
        self._last = SyncedLength(0, 0, 0, 0, clean=False)
        self._content: bytes | bytearray = b""
        self._descriptor = -1

    def read(self) -> SyncedLength | None:
        """The content of the file; None when it is missing or damaged."""
        if not is_there(self.path):
            return None
        data = read_file(self.path)
        self._content, self.damage = data, damage(data)
        found = decode(data)
        if found is not None:
            self._last = found
        return found

    @property
    def generation(self) -> int:
        """The newest generation that the file has described; 0: none."""
        return self._last.generation

    def open(self) -> None:
        """Open the file, if it is not open. **safety** It is written anew, and the names in the
        folder are synced: an earlier run may have failed to sync a slot or a name, or died before
        it did. One that is missing or damaged gets the newest slot alone."""
        if self._descriptor >= 0:
            return
        content = self._content
        if self.damage or not content:
            content = bytearray(FILE_BYTES)
            slot = self._last.encode()
            content[self._last.offset : self._last.offset + len(slot)] = slot
        replace_file(self.path, [content])
        self._descriptor = opened(lambda: os.open(self.path, os.O_WRONLY | os.O_CLOEXEC))

    def write(self, generation: int, identity: int, length: int, *, clean: bool = False) -> None:
        """Record how many bytes of that journal file are synced. Durable on return."""
        wanted = (generation, identity, length, clean)
        last = self._last
        if wanted == (last.generation, last.identity, last.length, last.clean):
            return
        self._last = SyncedLength(last.sequence + 1, generation, identity, length, clean)
        slot, at = self._last.encode(), self._last.offset
        in_room(self._folder, FILE_BYTES, partial(os.pwrite, self._descriptor, slot, at))
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
