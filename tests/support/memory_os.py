"""Stands in for `os` and `open` in modules that use them directly: files in memory that lose power.

`MemoryOs.installed` puts it into modules. Every call counts as an operation. One of them fails
(`fail_at`), or the process dies in the middle of it (`die_at`: `Killed`, after half of a write).
`lose_power` leaves what a disk may leave (tests/simulation/disk.py): after a failed fsync that are
not the bytes that are read, and trying again does not help.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.simulation.disk import Directory, File, Killed

_FIRST_DESCRIPTOR = 1 << 20
"""Real descriptors are smaller."""


class MemoryOs:
    """The functions of `os` that are used; paths begin with "/"."""

    O_RDONLY, O_WRONLY, O_APPEND, O_CLOEXEC = os.O_RDONLY, os.O_WRONLY, os.O_APPEND, os.O_CLOEXEC
    O_DIRECTORY = os.O_DIRECTORY

    def __init__(self) -> None:
        self.operations = 0
        self.fail_at: int | None = None
        self.die_at: int | None = None
        self.failed = ""
        """The operation that has failed last."""
        self.path = SimpleNamespace(
            join=os.path.join,
            dirname=os.path.dirname,
            exists=self._exists,
            getsize=self._getsize,
        )
        self._root = Directory()
        self._opened: dict[int, tuple[File | Directory, bool]] = {}
        self._descriptors = itertools.count(_FIRST_DESCRIPTOR)
        self._inodes: list[File] = []

    @contextmanager
    def installed(self, *modules: ModuleType) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for module in modules:
                patch.setattr(module, "os", self)
                patch.setattr(module, "open", self.open_file, raising=False)
            yield

    def make_durable(self, path: str) -> None:
        """Make a folder that no power failure takes."""
        self.makedirs(path, exist_ok=True)
        found = self._root
        for name in path.strip("/").split("/"):
            found.unsynced.clear()
            inner = found.names[name]
            assert isinstance(inner, Directory)
            found = inner

    # What becomes of it.

    def fault(self, *, fail_in: int | None = None, die_in: int | None = None) -> None:
        """Let the operation so many from now on fail, or be the last; None: none."""
        self.fail_at = None if fail_in is None else self.operations + fail_in
        self.die_at = None if die_in is None else self.operations + die_in
        self.failed = ""

    def draw_fault(self, random: Random, at: int) -> None:
        """Mostly let the operation so many from now on fail, or be the last."""
        choice = random.random()
        if choice < 0.45:
            self.fault(fail_in=at)
        elif choice < 0.9:
            self.fault(die_in=at)

    def kill(self) -> None:
        self._opened.clear()
        self.fault()

    def lose_power(self, random: Random) -> None:
        self.kill()
        self._root.lose_power(random)

    def files(self, directory: str) -> dict[str, bytes]:
        """Name and content of each file there."""
        found = self._find(directory)
        assert isinstance(found, Directory)
        return {name: bytes(e.data) for name, e in found.names.items() if isinstance(e, File)}

    def put(self, path: str, data: bytes | None) -> None:
        """Let another file with that content be there, synced; None: none is."""
        folder, name = self._parent(path)
        folder.names.pop(name, None)
        folder.unsynced.clear()
        if data is not None:
            file = folder.names[name] = File()
            file.write(0, data)
            file.sync()
            self._inodes.append(file)

    # os

    def _exists(self, path: str) -> bool:
        try:
            self.stat(path)
        except OSError:
            return False
        return True

    def stat(self, path: str) -> None:
        self._operate("stat")
        self._find(path)

    def _getsize(self, path: str) -> int:
        return len(self._file(path).data)

    def makedirs(self, path: str, exist_ok: bool) -> None:
        self._operate("makedirs")
        at = self._root
        for name in path.strip("/").split("/"):
            if name not in at.names:
                at.change()[name] = Directory()
            found = at.names[name]
            assert isinstance(found, Directory)
            at = found

    def open(self, path: str, flags: int, mode: int = 0) -> int:
        self._operate("open")
        descriptor = next(self._descriptors)
        self._opened[descriptor] = (self._find(path), bool(flags & os.O_APPEND))
        return descriptor

    def close(self, descriptor: int) -> None:
        del self._opened[descriptor]

    def write(self, descriptor: int, data: bytes) -> int:
        file, appends = self._opened[descriptor]
        assert isinstance(file, File)
        assert appends, "the position of a descriptor is not kept"
        return self._write(file, len(file.data), data)

    def pwrite(self, descriptor: int, data: bytes, position: int) -> int:
        file, appends = self._opened[descriptor]
        assert isinstance(file, File)
        return self._write(file, len(file.data) if appends else position, data)

    def fsync(self, descriptor: int) -> None:
        found, _ = self._opened[descriptor]
        try:
            self._operate("fsync" if isinstance(found, File) else "fsync of a folder")
        except OSError:
            if isinstance(found, File):
                found.fail_sync()
            raise
        if isinstance(found, File):
            found.sync()
        else:
            found.unsynced.clear()

    fdatasync = fsync

    def fstat(self, descriptor: int) -> SimpleNamespace:
        file, _ = self._opened[descriptor]
        assert isinstance(file, File)
        return SimpleNamespace(st_size=len(file.data), st_ino=self._inodes.index(file) + 1)

    def truncate(self, path: str, size: int) -> None:
        self._operate("truncate")
        self._file(path).truncate(size)

    def replace(self, source: str, target: str) -> None:
        self._operate("replace")
        folder, name = self._parent(source)
        target_folder, target_name = self._parent(target)
        assert folder is target_folder
        names = folder.change()
        names[target_name] = names.pop(name)

    rename = replace

    def remove(self, path: str) -> None:
        self._operate("remove")
        folder, name = self._parent(path)
        del folder.change()[name]

    unlink = remove

    def open_file(self, path: str, mode: str, **_: object) -> Any:
        """`open`, for reading or writing a whole file."""
        self._operate("open")
        if mode == "rb":
            return io.BytesIO(bytes(self._file(path).data))
        folder, name = self._parent(path)
        found = folder.names.get(name)
        if isinstance(found, File):
            found.truncate(0)
        else:
            found = folder.change()[name] = File()
            self._inodes.append(found)
        return _Writing(self, found)

    # Inside.

    def _write(self, file: File, position: int, data: bytes) -> int:
        try:
            self._operate("write")
        except BaseException:
            file.write(position, bytes(data[: len(data) // 2]))
            raise
        file.write(position, bytes(data))
        return len(data)

    def _operate(self, name: str) -> None:
        self.operations += 1
        if self.operations == self.die_at:
            raise Killed
        if self.operations == self.fail_at:
            self.failed = name
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def _find(self, path: str) -> File | Directory:
        found: File | Directory = self._root
        for name in path.strip("/").split("/"):
            if not isinstance(found, Directory) or name not in found.names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = found.names[name]
        return found

    def _file(self, path: str) -> File:
        found = self._find(path)
        assert isinstance(found, File)
        return found

    def _parent(self, path: str) -> tuple[Directory, str]:
        directory, _, name = path.rpartition("/")
        found = self._find(directory)
        assert isinstance(found, Directory)
        return found, name


class _Writing:
    """A file that is written from its beginning, without a buffer."""

    def __init__(self, memory: MemoryOs, file: File) -> None:
        self._memory = memory
        self._descriptor = next(memory._descriptors)
        memory._opened[self._descriptor] = (file, True)

    def __enter__(self) -> _Writing:
        return self

    def __exit__(self, *_: object) -> None:
        self._memory._opened.pop(self._descriptor, None)

    def writelines(self, parts: list[bytes]) -> None:
        self._memory.write(self._descriptor, b"".join(parts))

    def write(self, data: bytes) -> int:
        return self._memory.write(self._descriptor, data)

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def fileno(self) -> int:
        return self._descriptor
