"""Shows what log files hold, batch by batch, even around damage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jetstream_protocol.batch import HEADER_BYTES, Batch, BatchHeader
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import read_prefix
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.files import (
    SegmentFile,
    is_data_folder,
    is_log_folder,
    segment_file,
    segment_files,
    stream_folders,
)
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.scan import Bad, walk_past_damage


@dataclass(frozen=True, slots=True)
class DumpedBatch:
    """A batch and its place. Its columns lie within the body, but are not checked further.

    batch: None if it is encrypted; key_id: the key that it is encrypted with.
    """

    file: str
    position: int
    header: BatchHeader
    batch: Batch | None
    key_id: str = ""


def dump(path: str | Path) -> Iterator[DumpedBatch | Finding]:
    """Every valid batch of a segment, a stream's folder or a data folder, in file order.

    For damage, a Finding stands for the bytes up to the next valid batch; for what cannot be read,
    for the rest of the segment. Raises FileNotFoundError, and ValueError when `path` is none of
    these.
    """
    path = Path(path)
    if path.is_file():
        segment = segment_file(path)
        if segment is None:
            raise ValueError(f"{path} is not a segment: segments are named <20 digits>.log")
        yield from _dump_segment(segment)
        return
    if is_data_folder(path):
        folders = stream_folders(path)
    elif is_log_folder(path) or not any(path.iterdir()):
        folders = [path]
    else:
        raise ValueError(f"{path} is neither a data folder nor the folder of a stream")
    for folder in folders:
        for segment in segment_files(folder):
            yield from _dump_segment(segment)


def _dump_segment(segment: SegmentFile) -> Iterator[DumpedBatch | Finding]:
    file = str(segment.path)
    position = 0
    try:
        with segment.reading() as read:
            for found in walk_past_damage(read, segment.size, segment.base_offset):
                if isinstance(found, Bad):
                    kind = Kind.TORN_TAIL if found.resumes_at is None else Kind.CORRUPT_BATCH
                    yield Finding(file, found.position, kind, found.reason)
                    position = found.resumes_at or found.position
                    continue
                position, header = found
                yield _dumped(file, position, header, read(position, header.length))
                position += header.length
    except OSError as error:
        yield Finding(file, position, Kind.UNREADABLE, str(error))


def _dumped(file: str, position: int, header: BatchHeader, data: bytes) -> DumpedBatch | Finding:
    try:
        if header.flags & Flags.ENCRYPTED:
            key_id = read_prefix(data, HEADER_BYTES).key_id
            return DumpedBatch(file, position, header, None, key_id)
        return DumpedBatch(file, position, header, Batch.decode(data))
    except CorruptBatchError as error:
        return Finding(file, position, Kind.BAD_COLUMNS, error.reason)
