"""Bytes that flip in a segment that was flushed long ago, as a disk's do."""

from __future__ import annotations

import os
from pathlib import Path

from jetstream_protocol.batch import HEADER_BYTES, BatchHeader
from jetstream_protocol.logfiles.scan import walk


def batches_of(segment: Path) -> list[tuple[int, BatchHeader]]:
    """Position and header of each."""
    data = segment.read_bytes()
    return list(walk(lambda at, length: data[at : at + length], 0, len(data), bodies=False))


def rot(segment: Path, *, at: float = 0.5, in_header: bool = False) -> BatchHeader:
    """Flip a byte of the batch that lies at that part of the segment; returns what it was."""
    batches = batches_of(segment)
    position, header = batches[int(len(batches) * at)]
    flip(segment, position + (20 if in_header else HEADER_BYTES + 4))
    return header


def flip(file: Path, position: int) -> None:
    """On the disk, and out of the page cache: it will be read from there."""
    fd = os.open(file, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, position)[0]
        os.pwrite(fd, bytes([byte ^ 0x55]), position)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
