"""Examines offline what the checkpoint and the offsets file record of a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import offsets_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.files import STREAMS_NAME, SegmentFile
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.names import CHECKPOINT_NAME, OFFSETS_SUFFIX, segment_name
from jetstream_protocol.logfiles.offsets_file import Offsets
from jetstream_protocol.logfiles.recorded import Recorded

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def read_recorded(folder: Path) -> Recorded:
    """What the next start on this machine will read; a file that cannot be read counts as
    absent."""
    checkpoint = offsets = None
    try:
        data = (folder / CHECKPOINT_NAME).read_bytes()
        checkpoint = LogCheckpoint.from_bytes(data, folder.name)
    except (OSError, CorruptBatchError):
        pass
    try:
        offsets = _decode(_offsets_path(folder), folder.name)
    except OSError:
        pass
    return Recorded(checkpoint, offsets, _this_boot())


def verify_recorded(
    folder: Path, recorded: Recorded, segments: Sequence[SegmentFile]
) -> Iterator[Finding]:
    """Report segments missing in front of the others, between them, or altogether."""
    yield from _verify_offsets(folder)
    if recorded.is_being_emptied:
        message = "the log was being emptied, to be copied anew; the next start completes that"
        yield Finding(str(_offsets_path(folder)), 0, Kind.LEFTOVER_FILE, message)
        return
    start = recorded.log_start_offset
    if not segments:
        if recorded.end_offset:
            yield _missing(folder, f"the log reached to offset {recorded.end_offset}")
    elif start is not None and segments[0].base_offset > start:
        first = segments[0].base_offset
        yield _missing(folder, f"the segments with the offsets [{start}, {first}) are missing")
    else:
        sizes = {segment.base_offset: segment.size for segment in segments}
        hole = recorded.first_loss(sizes, segments[0].base_offset)
        if hole is not None:
            yield _missing(folder / segment_name(hole[0]), hole[1])


def verify_lost_folders(data_folder: Path) -> Iterator[Finding]:
    """Report streams of which only the offsets file is left."""
    streams = data_folder / STREAMS_NAME
    for path in sorted(streams.glob(f"*{OFFSETS_SUFFIX}")) if streams.is_dir() else []:
        folder = streams / path.name.removesuffix(OFFSETS_SUFFIX)
        if not folder.exists() and not _is_being_set_aside(data_folder, folder.name):
            end_offset = read_recorded(folder).end_offset
            if end_offset:
                message = f"the folder is missing; the log reached to offset {end_offset}"
                yield _missing(folder, message)


def _is_being_set_aside(data_folder: Path, name: str) -> bool:
    """Whether the stream's folder is in quarantine without its offsets file: the move of the two
    has not ended. With one of its own, what is there is another copy."""
    asides = [path for path in data_folder.glob(f"quarantine/{name}.*") if path.is_dir()]
    return any(not _offsets_path(path).exists() for path in asides)


def _verify_offsets(folder: Path) -> Iterator[Finding]:
    path = _offsets_path(folder)
    try:
        data = path.read_bytes()
        found = offsets_file.decode(data, folder.name.encode())
    except FileNotFoundError:
        return
    except OSError as error:
        yield Finding(str(path), 0, Kind.UNREADABLE, str(error))
        return
    slots = ((offsets_file.BOUNDS_AT, found.bounds), (offsets_file.END_AT, found.end))
    for at, slot in slots:
        if slot is None and any(data[at : at + offsets_file.END_AT]):
            yield Finding(str(path), at, Kind.BAD_OFFSETS, "fails its CRC; it is written anew")


def _missing(path: Path, message: str) -> Finding:
    return Finding(str(path), 0, Kind.MISSING_RECORDS, message)


def _decode(path: Path, owner: str) -> Offsets:
    return offsets_file.decode(path.read_bytes(), owner.encode())


def _offsets_path(folder: Path) -> Path:
    return folder.with_name(folder.name + OFFSETS_SUFFIX)


def _this_boot() -> str:
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
