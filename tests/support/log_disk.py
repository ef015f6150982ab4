"""Disks for tests of the log: one in memory that can lose power, and one that fails on demand.

`MemoryDisk` keeps what was written apart from what was synced. `killed()` is what the next process
finds after this one died: everything written. `power_failed(choose)` is what a machine finds after
losing power: synced bytes and names for sure; of the rest whatever `choose` picks, within what a
journalling file system can leave: some prefix of a folder's changes, some prefix of a file's new
bytes, the last page of which may be zeros.

`MemoryDisk.crash_after` ends the process in the middle of an operation: `Killed` is raised, after
half of a write took place. It is no Exception, so nothing in the log can handle it.
"""

from __future__ import annotations

import copy
import errno
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from jetstream_server.log.disk import Buffer, Disk

PAGE = 4096
Choose = Callable[[int], int]
"""`choose(n)` picks one of 0 … n-1."""


class Killed(BaseException):
    """The process died here."""


class _File:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""

    def after_power_failure(self, choose: Choose) -> _File:
        found = _File()
        data, synced = bytes(self.data), self.synced
        if data.startswith(synced):
            kept = len(synced) + choose(len(data) - len(synced) + 1)
            content = bytearray(data[:kept])
            page = max(kept // PAGE * PAGE, len(synced))
            if kept > page and choose(2):
                content[page:] = bytes(kept - page)
        else:
            content = bytearray(data if choose(2) else synced)
        found.data = content
        found.synced = bytes(content)
        return found


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.unsynced: list[dict[str, _File | _Directory]] = []
        """The entries as they were before each change since the last sync."""

    def change(self) -> dict[str, _File | _Directory]:
        self.unsynced.append(dict(self.entries))
        return self.entries

    def after_power_failure(self, choose: Choose) -> _Directory:
        found = _Directory()
        versions = [*self.unsynced, self.entries]
        for name, entry in versions[choose(len(versions))].items():
            found.entries[name] = entry.after_power_failure(choose)
        return found


class MemoryDisk:
    """A Disk in memory; paths start with "/"."""

    def __init__(self) -> None:
        self._root = _Directory()
        self.operations = 0
        """Changes made so far."""
        self.crash_after: int | None = None
        """Die in the middle of the change that makes `operations` exceed this."""

    # What becomes of it.

    def killed(self) -> MemoryDisk:
        found = MemoryDisk()
        found._root = copy.deepcopy(self._root)
        return found

    def power_failed(self, choose: Choose) -> MemoryDisk:
        found = MemoryDisk()
        found._root = self._root.after_power_failure(choose)
        return found

    # The Disk.

    def mutex(self) -> AbstractContextManager[object]:
        return nullcontext()

    def writable(self, directory: str) -> bool:
        return True

    def exists(self, path: str) -> bool:
        try:
            self._find(path)
        except FileNotFoundError:
            return False
        return True

    def size(self, path: str) -> int:
        return len(self._file(path).data)

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._directory(path).entries)

    def make_directory(self, path: str) -> None:
        self._alive()
        parent, name = self._parent(path)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent.change()[name] = _Directory()

    def create(self, path: str) -> None:
        self._alive()
        parent, name = self._parent(path)
        if name in parent.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        parent.change()[name] = _File()

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        try:
            self._alive()
        except Killed:
            self._put(path, position, data[: len(data) // 2])
            raise
        self._put(path, position, data)

    def _put(self, path: str, position: int, data: bytes) -> None:
        content = self._file(path).data
        if position > len(content):
            content.extend(bytes(position - len(content)))
        content[position : position + len(data)] = data

    def pread(self, path: str, position: int, length: int) -> bytes:
        return bytes(self._file(path).data[position : position + length])

    def read_file(self, path: str) -> bytes:
        return bytes(self._file(path).data)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        if self.exists(temporary):
            self.remove(temporary)
        self.create(temporary)
        self.write(temporary, 0, [data])
        if durable:
            self.fsync(temporary)
        self.rename(temporary, path)
        if durable:
            self.fsync_directory(path.rpartition("/")[0])

    def truncate(self, path: str, size: int) -> None:
        self._alive()
        del self._file(path).data[size:]

    def fsync(self, path: str) -> None:
        self._alive()
        file = self._file(path)
        file.synced = bytes(file.data)

    def fsync_directory(self, path: str) -> None:
        self._alive()
        self._directory(path).unsynced.clear()

    def rename(self, source: str, target: str) -> None:
        self._alive()
        parent, name = self._parent(source)
        target_parent, target_name = self._parent(target)
        assert parent is target_parent, "the log renames within a folder"
        entries = parent.change()
        entries[target_name] = entries.pop(name)

    def remove(self, path: str) -> None:
        self._alive()
        parent, name = self._parent(path)
        self._file(path)
        del parent.change()[name]

    def remove_directory(self, path: str) -> None:
        self._alive()
        parent, name = self._parent(path)
        if self._directory(path).entries:
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        del parent.change()[name]

    # Tests look at and spoil files with these.

    def files(self, directory: str) -> dict[str, bytes]:
        """Name and content of every file in a folder."""
        return {
            name: bytes(entry.data)
            for name, entry in sorted(self._directory(directory).entries.items())
            if isinstance(entry, _File)
        }

    def put(self, path: str, data: bytes) -> None:
        """Make `path` hold `data`, synced."""
        if not self.exists(path):
            parent, name = self._parent(path)
            parent.entries[name] = _File()
        file = self._file(path)
        file.data = bytearray(data)
        file.synced = data

    def _alive(self) -> None:
        self.operations += 1
        if self.crash_after is not None and self.operations > self.crash_after:
            raise Killed

    def _find(self, path: str) -> _File | _Directory:
        entry: _File | _Directory = self._root
        for name in path.strip("/").split("/"):
            if not name:
                continue
            if not isinstance(entry, _Directory) or name not in entry.entries:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            entry = entry.entries[name]
        return entry

    def _file(self, path: str) -> _File:
        entry = self._find(path)
        if not isinstance(entry, _File):
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        return entry

    def _directory(self, path: str) -> _Directory:
        entry = self._find(path)
        if not isinstance(entry, _Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return entry

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory, _, name = path.rpartition("/")
        return self._directory(directory), name


class FaultyDisk:
    """Passes everything on to another disk, unless a fault was set for it.

    `fail("fsync", ".log", errno.EIO)` makes every fsync of such a path fail; `heal()` ends that.
    `write_room` is how many more bytes of data fit before the disk is full.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._faults: list[tuple[str, str, int]] = []
        self.write_room: int | None = None
        self.read_only = False
        self.calls: list[tuple[str, str]] = []
        """(operation, path) of every call, in order."""

    def fail(self, operation: str, path_ends: str, error: int) -> None:
        self._faults.append((operation, path_ends, error))

    def heal(self) -> None:
        self._faults.clear()
        self.write_room = None

    def count(self, operation: str, path_ends: str = "") -> int:
        """How often an operation was called on such paths."""
        return sum(op == operation and path.endswith(path_ends) for op, path in self.calls)

    def _check(self, operation: str, path: str) -> None:
        self.calls.append((operation, path))
        for failing, path_ends, error in self._faults:
            if failing == operation and path.endswith(path_ends):
                raise OSError(error, os.strerror(error), path)

    def mutex(self) -> AbstractContextManager[object]:
        return self._disk.mutex()

    def writable(self, directory: str) -> bool:
        return not self.read_only and self._disk.writable(directory)

    def exists(self, path: str) -> bool:
        self._check("exists", path)
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        self._check("size", path)
        return self._disk.size(path)

    def list_directory(self, path: str) -> list[str]:
        self._check("list_directory", path)
        return self._disk.list_directory(path)

    def make_directory(self, path: str) -> None:
        self._check("make_directory", path)
        self._disk.make_directory(path)

    def create(self, path: str) -> None:
        self._check("create", path)
        self._disk.create(path)

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        self._check("write", path)
        data = b"".join(buffers)
        if self.write_room is not None and len(data) > self.write_room:
            self._disk.write(path, position, [data[: self.write_room]])
            self.write_room = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._disk.write(path, position, buffers)
        if self.write_room is not None:
            self.write_room -= len(data)

    def pread(self, path: str, position: int, length: int) -> bytes:
        self._check("pread", path)
        return self._disk.pread(path, position, length)

    def read_file(self, path: str) -> bytes:
        self._check("read_file", path)
        return self._disk.read_file(path)

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        self._check("write_atomic", path)
        if self.write_room is not None and len(data) > self.write_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._disk.write_atomic(path, data, durable=durable)

    def truncate(self, path: str, size: int) -> None:
        self._check("truncate", path)
        self._disk.truncate(path, size)

    def fsync(self, path: str) -> None:
        self._check("fsync", path)
        self._disk.fsync(path)

    def fsync_directory(self, path: str) -> None:
        self._check("fsync_directory", path)
        self._disk.fsync_directory(path)

    def rename(self, source: str, target: str) -> None:
        self._check("rename", source)
        self._disk.rename(source, target)

    def remove(self, path: str) -> None:
        self._check("remove", path)
        self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        self._check("remove_directory", path)
        self._disk.remove_directory(path)
