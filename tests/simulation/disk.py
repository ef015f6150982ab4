"""A disk in memory that is as unkind as a real one (`jetstream_server.log.disk.Disk`).

What was written is readable at once and survives the death of the process. `lose_power` leaves
what was synced, and of the rest what a journalling file system may leave: of each folder's changes
a prefix; of each file's writes a prefix, the next one torn or replaced by zeros, and now and then
later writes without earlier ones.

Faults, each set from outside: `room` bytes until the disk is full, `fsync_fails` for the next
fsync (whose pages are then clean in memory and never written), `write_fails` for the next write,
`reads_fail` for so many reads, `failing_operation` for the next one of that name, `fuse` operations
until the process dies in the middle of one (`Killed`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from random import Random

from jetstream_protocol.logfiles.names import (
    CHECKPOINT_NAME,
    COMPACTION_NAME,
    LOG_SUFFIX,
    OFFSETS_SUFFIX,
)
from jetstream_server.log.disk import Buffer

SECTOR = 512
OPERATIONS = (
    "truncate", "remove", "rename", "fsync_directory", "create", "make_directory",
    "remove_directory", "write_atomic",
)  # fmt: skip
"""Those that may fail though they move no bytes of a log."""


class Killed(SystemExit):
    """The process died here. No Exception: nothing in the log can handle it, nor can a task."""


class File:
    """`data` is what is read. Durable: `durable`, or the first `synced` bytes of `data` while
    nothing below was changed since."""

    __slots__ = ("data", "durable", "synced", "writes")

    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = 0
        self.durable: bytes | None = None
        self.writes: list[tuple[int, bytes | None]] = []
        """(position, bytes) since the last sync; (size, None) for a truncation."""

    def write(self, position: int, data: bytes) -> None:
        if position < self.synced:
            self.part()
        _put(self.data, position, data)
        self.writes.append((position, data))

    def truncate(self, size: int) -> None:
        if size < self.synced:
            self.part()
        del self.data[size:]
        self.writes.append((size, None))

    def part(self) -> None:
        """From here on what is durable is no prefix of the data: keep it apart."""
        if self.durable is None:
            self.durable = bytes(self.data[: self.synced])

    def sync(self) -> None:
        if self.durable is not None:
            content = bytearray(self.durable)
            for position, data in self.writes:
                _replay(content, position, data)
            # After a failed fsync the two differ for good: only what is written again arrives.
            self.durable = None if content == self.data else bytes(content)
        self.synced = len(self.data)
        self.writes.clear()

    def fail_sync(self) -> None:
        """The kernel could not write the pages, says so once, and takes them for clean."""
        self.part()
        self.writes.clear()

    def cut(self, size: int) -> None:
        """The disk has lost what is after that."""
        del self.data[size:]
        self.synced = min(self.synced, size)
        self.durable = None
        self.writes.clear()

    def lose_power(self, random: Random) -> None:
        if not self.writes and self.durable is None:
            return
        content = bytearray(self.data[: self.synced] if self.durable is None else self.durable)
        writes = self.writes
        if writes:
            kept = random.randrange(len(writes) + 1)
            for position, data in writes[:kept]:
                _replay(content, position, data)
            if kept < len(writes):
                self._tear(content, *writes[kept], random)
            if random.random() < 0.03:
                for position, data in writes[kept + 1 :]:
                    if random.random() < 0.5:
                        _replay(content, position, data)
        self.data = content
        self.synced = len(content)
        self.durable = None
        self.writes = []

    @staticmethod
    def _tear(content: bytearray, position: int, data: bytes | None, random: Random) -> None:
        if not data:
            return
        choice = random.random()
        if choice < 0.4:
            _put(content, position, data[: random.randrange(len(data) + 1)])
        elif choice < 0.55:
            _put(content, position, bytes(len(data)))  # The size arrived, the content did not.
        elif choice < 0.65:
            torn = bytearray(data)
            torn[random.randrange(len(torn))] ^= 1 << random.randrange(8)
            _put(content, position, bytes(torn))


def _put(content: bytearray, position: int, data: bytes) -> None:
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _replay(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
    else:
        _put(content, position, data)


class Directory:
    """Names, and what they were before each change since the last sync."""

    __slots__ = ("names", "unsynced")

    def __init__(self) -> None:
        self.names: dict[str, File | Directory] = {}
        self.unsynced: list[dict[str, File | Directory]] = []

    def change(self) -> dict[str, File | Directory]:
        self.unsynced.append(dict(self.names))
        return self.names

    def lose_power(self, random: Random) -> None:
        versions = [*self.unsynced, self.names]
        self.names = versions[random.randrange(len(versions))]
        self.unsynced = []
        for entry in self.names.values():
            entry.lose_power(random)


class SimulatedDisk:
    """See the module. Paths begin with "/"."""

    def __init__(self) -> None:
        self._root = Directory()
        self._found: dict[str, File] = {}
        self._aside: dict[str, File] = {}
        self.room: int | None = None
        self.fsync_fails = False
        self.write_fails = False
        self.reads_fail = 0
        self.failing_operation = ""
        self.fuse: int | None = None
        self.fsyncs = 0
        self.has_failed = False
        """Whether it has ever lost what was synced, or an operation has failed but for want of
        room."""

    # What befalls it.

    def lose_power(self, random: Random) -> None:
        self._found.clear()
        self._root.lose_power(random)
        self.repair()

    def repair(self) -> None:
        """The process that saw the faults is gone."""
        self.fuse = None
        self.fsync_fails = self.write_fails = False
        self.reads_fail = 0
        self.failing_operation = ""
        self._aside.clear()

    def damage(self, random: Random, directory: str) -> str:
        """One file of a log rots or is lost, or its folder is; what, in one word; "": there is
        none. What lies beside the folder has been written back by then."""
        offsets = directory + OFFSETS_SUFFIX
        if not self.exists(directory) or not self.exists(offsets):
            return ""
        parent, name = self._parent(directory)
        parent.unsynced.clear()
        self._file(offsets).sync()
        self._found.clear()
        folder = self._directory(directory)
        names = sorted(name for name in folder.names if name != COMPACTION_NAME)
        segments = [name for name in names if name.endswith(".log")]
        self.has_failed = True
        if random.random() < 0.1:
            del parent.names[name]
            return "folder"
        if not segments:
            return ""
        folder.unsynced.clear()
        if random.random() < 0.3:
            # Mostly what lies in front, where a loss passes most easily for something else.
            among = segments[:1] if random.random() < 0.5 else names
            del folder.names[among[random.randrange(len(among))]]
            return "file"
        file = folder.names[segments[-1]]
        if not isinstance(file, File) or not file.data:
            return ""
        at = random.randrange(len(file.data))
        if random.random() < 0.3:
            file.cut(at)
            return "end"
        file.data[at] ^= 1 << random.randrange(8)
        return "bit"

    def lose_beginning(self, directory: str, *, kept: int, beside: bool) -> bool:
        """All segments of a log are lost but the last ones, `kept` of them; and if beside, whatever
        says where the log begins. False: there are no others."""
        offsets = directory + OFFSETS_SUFFIX
        if not self.exists(directory) or not self.exists(offsets):
            return False
        folder = self._directory(directory)
        lost = sorted(name for name in folder.names if name.endswith(LOG_SUFFIX))[:-kept]
        if not lost:
            return False
        self.has_failed = True
        parent, _ = self._parent(directory)
        parent.unsynced.clear()
        folder.unsynced.clear()
        self._file(offsets).sync()
        self._found.clear()
        for name in lost:
            del folder.names[name]
        if beside:
            folder.names.pop(CHECKPOINT_NAME, None)
            del parent.names[offsets.rpartition("/")[2]]
        return True

    def set_aside(self, directory: str) -> None:
        """A folder, and what lies beside it, is put away for good, if it is there."""
        if self.exists(directory):
            parent, name = self._parent(directory)
            for each in (name, name + OFFSETS_SUFFIX):
                parent.names.pop(each, None)
            parent.unsynced.clear()
            self._found.clear()

    def erase(self) -> None:
        """Another disk was put in."""
        self.has_failed = True
        self._root = Directory()
        self._found.clear()

    # The Disk.

    def mutex(self) -> AbstractContextManager[object]:
        return nullcontext()

    def file(self, path: str) -> File:
        """As an open descriptor: there although it may be removed."""
        return self._file(path)

    def keep_aside(self, path: str, data: bytes) -> None:
        """A file in no folder, for as long as the process lives."""
        file = File()
        file.data[:] = data
        self._aside[path] = file

    def remove_aside(self, path: str) -> None:
        self._aside.pop(path, None)

    def folder(self, path: str) -> Directory | None:
        """The folder itself, which keeps its identity; None: there is none."""
        return self._directory(path) if self.exists(path) else None

    def writable(self, directory: str) -> bool:
        return True

    def exists(self, path: str) -> bool:
        if path in self._found:
            return True
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path).names)

    def make_directory(self, path: str) -> None:
        self._operate("make_directory")
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent.change()[name] = Directory()

    def create(self, path: str) -> None:
        self._operate("create")
        if self.room is not None and self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        parent, name = self._parent(path)
        if name in parent.names:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent.change()[name] = File()

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        file = self._file(path)
        try:
            self._operate()
        except Killed:
            file.write(position, data[: len(data) // 2])
            raise
        if self.write_fails:
            self.write_fails = False
            self.has_failed = True
            self.fuse = self.room = None  # The process lives on and has room to note it.
            file.write(position, data[: len(data) // 2])
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        if self.room is not None:
            # What is there already is written over in place, as the offsets of a log are.
            there = max(min(len(file.data) - position, len(data)), 0)
            grows = len(data) - there
            if grows > self.room:
                file.write(position, data[: there + self.room])
                self.room = 0
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
            self.room -= grows
        file.write(position, data)

    def pread(self, path: str, position: int, length: int) -> bytes:
        file = self._file(path)
        if self.reads_fail > 0:
            self.reads_fail -= 1
            self.has_failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return bytes(file.data[position : position + length])

    def read_file(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._operate("write_atomic")
        if self.room is not None and len(data) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        parent, name = self._parent(path)
        file = File()
        file.write(0, data)
        if durable:
            self._fsync(path, file)
        self._operate()
        parent.change()[name] = file
        self._found.pop(path, None)
        if durable:
            self._operate()
            parent.unsynced.clear()

    def truncate(self, path: str, size: int) -> None:
        self._operate("truncate")
        self._file(path).truncate(size)

    def fsync(self, path: str) -> None:
        self._operate()
        self._fsync(path, self._file(path))

    def _fsync(self, path: str, file: File) -> None:
        self.fsyncs += 1
        if self.fsync_fails:
            self.fsync_fails = False
            self.has_failed = True
            self.fuse = self.room = None  # The process lives on and has room to note it.
            file.fail_sync()
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        file.sync()

    def fsync_directory(self, path: str) -> None:
        self._operate("fsync_directory")
        self._directory(path).unsynced.clear()

    def rename(self, source: str, target: str) -> None:
        self._operate("rename")
        parent, name = self._parent(source)
        _, target_name = self._parent(target)
        names = parent.change()
        names[target_name] = names.pop(name)
        self._found.clear()

    def remove(self, path: str) -> None:
        self._operate("remove")
        parent, name = self._parent(path)
        del parent.change()[name]
        self._found.pop(path, None)

    def remove_directory(self, path: str) -> None:
        self._operate("remove_directory")
        parent, name = self._parent(path)
        if self._directory(path).names:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        del parent.change()[name]

    # Inside.

    def _operate(self, name: str = "") -> None:
        if self.fuse is not None:
            self.fuse -= 1
            if self.fuse < 0:
                raise Killed
        if name and name == self.failing_operation:
            self.failing_operation = ""
            self.has_failed = True
            self.fuse = self.room = None  # The process lives on and has room to note it.
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def _find(self, path: str) -> File | Directory:
        entry: File | Directory = self._root
        for name in path.split("/"):
            if name:
                found = entry.names.get(name) if isinstance(entry, Directory) else None
                if found is None:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
                entry = found
        return entry

    def _file(self, path: str) -> File:
        file = self._found.get(path) or self._aside.get(path)
        if file is None:
            entry = self._find(path)
            if not isinstance(entry, File):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            file = self._found[path] = entry
        return file

    def _directory(self, path: str) -> Directory:
        entry = self._find(path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return entry

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name
