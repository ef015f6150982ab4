"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Sequence


def read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def replace_file(path: str, parts: Sequence[bytes]) -> None:
    """Write a file whole or not at all: temporary file, fsync, rename, fsync of the directory."""
    temporary = path + ".tmp"
    with open(temporary, "wb") as file:
        file.writelines(parts)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_path(os.path.dirname(path))


def sync_path(path: str) -> None:
    """Make a file, or the names in a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
