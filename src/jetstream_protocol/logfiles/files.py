"""Finds and reads log files offline, with plain file operations.

A path may be one segment, the folder of one stream, or a whole data folder; `log_folders` finds out
which by the content.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from jetstream_protocol.logfiles.names import (
    CHECKPOINT_NAME,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    base_offset_of,
    index_name,
)
from jetstream_protocol.logfiles.scan import Read

IDENTITY_NAME = "meta.json"
STREAMS_NAME = "streams"


@dataclass(frozen=True, slots=True)
class SegmentFile:
    path: Path
    base_offset: int
    size: int

    @property
    def index_path(self) -> Path:
        return self.path.with_name(index_name(self.base_offset))

    @contextmanager
    def reading(self) -> Iterator[Read]:
        """A `Read` on the open file."""
        with self.path.open("rb", buffering=0) as file:

            def read(position: int, length: int) -> bytes:
                file.seek(position)
                data = file.read(length)
                while 0 < len(data) < length:
                    more = file.read(length - len(data))
                    if not more:
                        break
                    data += more
                return data

            yield read


def segment_file(path: Path) -> SegmentFile | None:
    """The segment at `path`; None if the name is not that of a segment."""
    base_offset = base_offset_of(path.name, LOG_SUFFIX)
    if base_offset is None:
        return None
    return SegmentFile(path, base_offset, path.stat().st_size)


def segment_files(folder: Path) -> list[SegmentFile]:
    """The segments of a stream's folder, in order."""
    found = map(segment_file, sorted(folder.iterdir()))
    return [segment for segment in found if segment is not None]


def is_data_folder(path: Path) -> bool:
    return (path / STREAMS_NAME).is_dir() or (path / IDENTITY_NAME).exists()


def is_log_folder(path: Path) -> bool:
    names = [entry.name for entry in path.iterdir()]
    return CHECKPOINT_NAME in names or any(
        base_offset_of(name, suffix) is not None
        for name in names
        for suffix in (LOG_SUFFIX, INDEX_SUFFIX)
    )


def stream_folders(data_folder: Path) -> list[Path]:
    """The folders of streams in a data folder, in the order of their ids."""
    streams = data_folder / STREAMS_NAME
    folders = [p for p in streams.iterdir() if p.is_dir()] if streams.is_dir() else []
    return sorted(folders, key=lambda folder: (len(folder.name), folder.name))
