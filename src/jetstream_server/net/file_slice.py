"""A part of a file that a connection sends, and who reads it. A log's slices are such parts."""

from __future__ import annotations

from typing import Protocol


class FileSlice(Protocol):
    """Some bytes of a file. The file may be removed, replaced or truncated at any time."""

    @property
    def path(self) -> str: ...

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def source(self) -> object:
        """What the file is known by beside its path: another file may have taken its place."""

    @property
    def is_cut(self) -> bool:
        """Whether the file was truncated below the end of the slice, so that other bytes may be
        there. Call it *after* reading them, too: False then means that they are the slice."""

    def check_is_there(self) -> None:
        """Raise FileNotFoundError if the file is another one now, or was cut. Call it *after*
        opening the file."""


class ResidentFiles(Protocol):
    """Reads files with descriptors that it keeps open."""

    def read_resident(self, path: str, position: int, length: int) -> bytes | bytearray | None:
        """The bytes; None if reading them would have to wait for the disk. Raises OSError, also if
        the file ends early."""
