"""A store of objects in a folder: `file:///…`. Each object is written once, and never changed."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError


class FolderStore:
    """See the module. Methods block, and raise OSError."""

    def __init__(self, url: str) -> None:
        """Raises InvalidRequestError for anything but the URL of an absolute path."""
        parts = urlsplit(url)
        if parts.scheme != "file" or parts.netloc or not parts.path.startswith("/"):
            raise InvalidRequestError("the lake is a folder so far: file:///path")
        self.root = Path(unquote(parts.path))

    def put(self, name: str, data: bytes) -> None:
        """Store a new object; durable on return. Raises FileExistsError for a name that is in use.

        **safety** A reader never sees a part of it: it gets its name once it is whole.
        """
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.unfinished")
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(unfinished, path)
        finally:
            unfinished.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def get(self, name: str, position: int = 0, length: int = -1) -> bytes:
        """An object, or a part of it. Raises CorruptBatchError for one that ends early."""
        path = self.root / name
        with open(path, "rb") as file:
            file.seek(position)
            data = file.read(length)
        if 0 <= length != len(data):
            raise CorruptBatchError("the object ends early", str(path), position + len(data))
        return data
