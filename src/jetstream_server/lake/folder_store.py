"""A store of objects in a folder: `file:///…`. Each object is written once, and never changed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_server.lake.stores import (
    WHOLE_BYTES_MAX,
    Listed,
    StoreAwayError,
    StoreError,
    StoreExistsError,
    StoreFullError,
    StoreMissingError,
    StoreRefusedError,
    too_long_error,
)

_UNFINISHED = ".unfinished"


class FolderStore:
    """See the module. Methods block, and raise StoreError."""

    def __init__(self, url: str) -> None:
        """Raises InvalidRequestError for anything but the URL of an absolute path."""
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
            raise InvalidRequestError("a folder is named as file:///path")
        self.root = Path(unquote(parts.path))
        self.url = url.rstrip("/")

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; durable on return. Raises StoreExistsError for a name that is in use.

        **safety** A reader never sees a part of it: it gets its name once it is whole.
        """
        with self._in_words(name):
            self._put(name, data)

    def _put(self, name: str, data: bytes) -> None:
        path = self.root / name
        self._make_folder(path.parent)
        # Another node may put an object of this name at this moment.
        unfinished = path.with_name(f".{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        _flush_folder(path.parent)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        """An object, or a part of it. Raises CorruptBatchError for one that ends early."""
        path = self.root / name
        with self._in_words(name), open(path, "rb") as file:
            file.seek(position)
            data = file.read(length if length >= 0 else WHOLE_BYTES_MAX + 1)
        if length < 0 and len(data) > WHOLE_BYTES_MAX:
            raise too_long_error(name)
        if 0 <= length != len(data):
            raise CorruptBatchError("the object ends early", str(path), position + len(data))
        return data

    def list(self, prefix: str) -> Iterator[Listed]:
        """The objects whose names begin with `prefix`, which ends at a slash. What a put that was
        interrupted left is an object, too."""
        with self._in_words(prefix):
            yield from self._list(prefix)

    def _list(self, prefix: str) -> Iterator[Listed]:
        if not self.root.is_dir():
            raise FileNotFoundError(self.root)
        for folder, _, names in os.walk(self.root / prefix, onerror=_raise):
            for each in names:
                path = os.path.join(folder, each)
                try:
                    found = os.stat(path)
                except FileNotFoundError:
                    continue  # A put has ended meanwhile.
                name = os.path.relpath(path, self.root)
                yield Listed(name, found.st_size)

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the folders in a folder, whose name ends at a slash."""
        try:
            yield from (each.name for each in (self.root / prefix).iterdir() if each.is_dir())
        except FileNotFoundError:
            return

    def delete(self, *names: str) -> None:
        """Delete objects, those that are there, and folders that are empty then."""
        for name in names:
            with self._in_words(name):
                self._delete(name)

    def _delete(self, name: str) -> None:
        path = self.root / name
        path.unlink(missing_ok=True)
        # A put may have made one of them just now. It fails, and is tried again.
        for folder in list(path.parents)[: name.count("/")]:
            try:
                folder.rmdir()
            except OSError:
                return

    def _make_folder(self, path: Path) -> None:
        """Make a folder and those above it, durably: an object in a folder that is lost is lost.

        **safety** Never the store itself: if it is not mounted, its objects would lie elsewhere.
        """
        missing = []
        while not path.is_dir():
            if path == self.root:
                raise FileNotFoundError(path)
            missing.append(path)
            path = path.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            _flush_folder(each.parent)

    @contextmanager
    def _in_words(self, name: str) -> Iterator[None]:
        """What people are shown (`lake status`), in place of a number."""
        try:
            yield
        except StoreError:
            raise
        except OSError as error:
            text = f"{self.root / name}: {os.strerror(error.errno or 0)}"
            if not self.root.is_dir():
                raise StoreAwayError(f"the folder of the lake is not there: {self.root}") from error
            if isinstance(error, FileNotFoundError):
                raise StoreMissingError(f"the lake's folder has no {name}") from error
            if isinstance(error, FileExistsError):
                raise StoreExistsError(f"{name} exists already in the lake's folder") from error
            if isinstance(error, PermissionError):
                raise StoreRefusedError(text) from error
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFullError(f"the disk of the lake's folder is full: {text}") from error
            raise StoreAwayError(text) from error


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _flush_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
