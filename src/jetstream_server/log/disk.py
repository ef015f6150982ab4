"""Every file operation the log needs, and the real disk.

`Disk` is the whole contract: a simulated disk that implements it runs the real log code. Paths
are plain strings joined with "/". Operations raise OSError and nothing else; the log translates
it at its own boundary (disk_errors.py).

What the log relies on (a simulated disk must be no kinder):

* bytes written are readable at once, but survive a power failure only after `fsync` of the file,
  and a new, renamed or removed name only after `fsync_directory` of its folder;
* a failed `write` may leave any part of the bytes written;
* a failed `fsync` may have lost them, and trying again proves nothing;
* an operation for which no descriptor was left (`lacks_descriptors`) has done nothing; but a
  durable `write_atomic` may have replaced the file, and not synced its name.

`OsDisk` keeps at most `descriptors_max` files open, whatever the number of logs. A descriptor in
use is pinned: if it were closed during an fsync, its number could be reused, and the fsync would
report on another file. Closing a descriptor with unsynced bytes is safe on Linux: the next open of
the file reports a write-back error that was not reported yet.

Connections may take the descriptors that are meant for files. Then files that were not used for
longest are closed, and spare descriptors are given up, until the file can be opened. They are taken
back later.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from jetstream_server.disk_errors import lacks_descriptors

_Result = TypeVar("_Result")

Buffer = bytes | bytearray | memoryview

DESCRIPTORS_MIN = 512
"""Half of the usual soft limit of 1,024; the other half is for sockets."""
SPARE_DESCRIPTORS = 16
"""Held back for files. More than one, as a connection may be faster and take what was given up."""


class Disk(Protocol):
    """File operations. All raise OSError."""

    def mutex(self) -> AbstractContextManager[object]:
        """A new lock between the loop and the flusher thread, which its holder may take again;
        without threads, a null context."""

    def writable(self, directory: str) -> bool: ...

    def exists(self, path: str) -> bool:
        """Whether the file exists; an error if that cannot be found out. If another process has
        replaced a file that is open here, the new file is used from then on."""

    def size(self, path: str) -> int: ...

    def list_directory(self, path: str) -> list[str]:
        """The names in the folder, sorted."""

    def make_directory(self, path: str) -> None:
        """Make one folder; its parent must exist."""

    def create(self, path: str) -> None:
        """Make an empty file. Raises FileExistsError when there is one."""

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        """Write all the buffers, back to back, from `position` on."""

    def pread(self, path: str, position: int, length: int) -> bytes:
        """Read `length` bytes from `position` on; fewer only where the file ends. The `filename` of
        an OSError is the path."""

    def read_file(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Replace the whole file, or leave it unchanged. durable: it is synced on return."""

    def truncate(self, path: str, size: int) -> None: ...

    def fsync(self, path: str) -> None: ...

    def fsync_directory(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def remove_directory(self, path: str) -> None:
        """Remove an empty folder."""


class _Open:
    """An open file. It is closed once it has left the cache and its last user has released it."""

    __slots__ = ("dropped", "fd", "pins")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.pins = 1
        self.dropped = False


class OsDisk:
    """The real disk. Safe to use from several threads."""

    def __init__(self, descriptors_max: int = DESCRIPTORS_MIN, *, spare: int = 0) -> None:
        """spare: how many descriptors to hold back, besides those of open files."""
        self._descriptors_max = descriptors_max
        self._lock = threading.Lock()
        self._replaced = 0  # renames and removals so far
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._spare_max = spare
        self._spare: list[int] = []
        self._take_spare_back()

    def mutex(self) -> AbstractContextManager[object]:
        return threading.RLock()

    def writable(self, directory: str) -> bool:
        return os.access(directory, os.W_OK | os.X_OK)

    def exists(self, path: str) -> bool:
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            self._forget(path)
            return False
        with self._lock:
            opened = self._open.get(path)
            held = None if opened is None else os.fstat(opened.fd)
        if held is not None and (held.st_dev, held.st_ino) != (found.st_dev, found.st_ino):
            self._forget(path)
        return True

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list_directory(self, path: str) -> list[str]:
        return sorted(self._opening(lambda: os.listdir(path)))

    def make_directory(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def create(self, path: str) -> None:
        os.close(self._descriptor(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        self._forget(path)  # Another process may have removed an earlier file of that name.

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        opened = self._acquire(path)
        try:
            wanted = sum(map(len, buffers))
            written = os.pwritev(opened.fd, buffers, position)
            if written != wanted:
                # A write is cut short only by a signal or an almost full disk. Writing the rest
                # shows which.
                rest = memoryview(b"".join(buffers))
                while written < wanted:
                    written += os.pwrite(opened.fd, rest[written:], position + written)
        finally:
            self._release(opened)

    def pread(self, path: str, position: int, length: int) -> bytes:
        opened = self._acquire(path)
        try:
            data = os.pread(opened.fd, length, position)
            while 0 < len(data) < length:
                more = os.pread(opened.fd, length - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        except OSError as error:
            error.filename = path
            raise
        finally:
            self._release(opened)

    def read_file(self, path: str) -> bytes:
        with open(path, "rb", buffering=0, opener=self._descriptor) as file:
            return file.read()

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        temporary = path + ".tmp"
        try:
            with open(temporary, "wb", buffering=0, opener=self._descriptor) as file:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if durable:
                    os.fsync(file.fileno())
        except OSError:
            if os.path.exists(temporary):
                os.unlink(temporary)  # On a full disk it would waste space.
            raise
        self.rename(temporary, path)
        if durable:
            self.fsync_directory(os.path.dirname(path))

    def truncate(self, path: str, size: int) -> None:
        opened = self._acquire(path)
        try:
            os.ftruncate(opened.fd, size)
        finally:
            self._release(opened)

    def fsync(self, path: str) -> None:
        opened = self._acquire(path)
        try:
            os.fdatasync(opened.fd)  # It writes the file's length too, but not its times.
        finally:
            self._release(opened)

    def fsync_directory(self, path: str) -> None:
        fd = self._descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)
        with self._lock:
            self._replaced += 1
        self._forget(source)
        self._forget(target)

    def remove(self, path: str) -> None:
        os.unlink(path)
        with self._lock:
            self._replaced += 1
        self._forget(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    # What only a real disk has.

    def read_resident(self, path: str, position: int, length: int) -> bytearray | None:
        """Read those bytes; None unless all of them are in the page cache."""
        data = bytearray(length)
        opened = self._acquire(path)
        try:
            found = os.preadv(opened.fd, [data], position, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise
            return None
        finally:
            self._release(opened)
        return data if found == length else None

    def close(self) -> None:
        """Close every descriptor that is not in use. The others are closed when they are
        released."""
        with self._lock:
            entries = list(self._open.values())
            self._open.clear()
            self._spare_max = 0
        while self._give_up_spare():
            pass
        for opened in entries:
            self._drop(opened)

    # The cache of descriptors.

    @property
    def open_count(self) -> int:
        """How many files are open now."""
        return len(self._open)

    def _acquire(self, path: str) -> _Open:
        with self._lock:
            opened = self._open.get(path)
            if opened is not None:
                self._open.move_to_end(path)
                opened.pins += 1
                return opened
            replaced = self._replaced
        fresh = _Open(self._open_file(path))
        evicted: list[_Open] = []
        with self._lock:
            if self._replaced != replaced:
                # **safety** This path may have been renamed or removed. The descriptor is then the
                # old file's: it serves this caller, but must not serve the next one.
                fresh.dropped = True
                return fresh
            opened = self._open.setdefault(path, fresh)
            if opened is not fresh:  # Another thread has opened it meanwhile.
                opened.pins += 1
            while len(self._open) > self._descriptors_max:
                evicted.append(self._open.popitem(last=False)[1])
        if opened is not fresh:
            os.close(fresh.fd)
        for entry in evicted:
            self._drop(entry)
        return opened

    def _descriptor(self, path: str, flags: int) -> int:
        return self._opening(lambda: os.open(path, flags | os.O_CLOEXEC, 0o600))

    def _opening(self, open_: Callable[[], _Result]) -> _Result:
        """Call `open_`, which needs a descriptor. If none is left, half of the open files are
        closed, then spare descriptors are given up one by one."""
        try:
            opened = open_()
        except OSError as error:
            if not lacks_descriptors(error):
                raise
        else:
            if len(self._spare) < self._spare_max:
                self._take_spare_back()
            return opened
        self._close_half()
        while True:
            try:
                return open_()
            except OSError as error:
                if not lacks_descriptors(error) or not self._give_up_spare():
                    raise

    def _give_up_spare(self) -> bool:
        """Close a spare descriptor; False: there is none."""
        with self._lock:
            fd = self._spare.pop() if self._spare else None
        if fd is not None:
            os.close(fd)
        return fd is not None

    def _take_spare_back(self) -> None:
        """Open the spare descriptors that are missing, as far as possible now."""
        with self._lock:
            try:
                while len(self._spare) < self._spare_max:
                    self._spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                pass  # The next open tries again.

    def _close_half(self) -> None:
        """Close the descriptors that have not been used for longest."""
        with self._lock:
            closing = [self._open.popitem(last=False)[1] for _ in range((len(self._open) + 1) // 2)]
        for opened in closing:
            self._drop(opened)

    def _open_file(self, path: str) -> int:
        try:
            return self._descriptor(path, os.O_RDWR)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            return self._descriptor(path, os.O_RDONLY)

    def _release(self, opened: _Open) -> None:
        with self._lock:
            opened.pins -= 1
            closing = opened.dropped and not opened.pins
        if closing:
            os.close(opened.fd)

    def _forget(self, path: str) -> None:
        with self._lock:
            opened = self._open.pop(path, None)
        if opened is not None:
            self._drop(opened)

    def _drop(self, opened: _Open) -> None:
        with self._lock:
            opened.dropped = True
            closing = not opened.pins
        if closing:
            os.close(opened.fd)
