"""Examines log files offline: `verify` finds everything that recovery would find, and more.

Recovery reads from the recovery point on and stops at the first damage. This reads everything,
continues after damage, and compares the batches with the indexes and the checkpoint. It also
checks the columns of every batch. It changes nothing. No server may have the files open: in a
running server's last segment, the batch being appended looks torn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from jetstream_protocol.batch import HEADER_BYTES, Batch, BatchHeader
from jetstream_protocol.columns import Flags
from jetstream_protocol.encrypted_body import read_prefix
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import checkpoint_file, index_file
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.files import (
    STREAMS_NAME,
    SegmentFile,
    is_data_folder,
    is_log_folder,
    segment_file,
    segment_files,
    stream_folders,
)
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.names import (
    CHECKPOINT_NAME,
    COMPACTION_NAME,
    DAMAGE_NAME,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCERS_NAME,
    TEMPORARY_SUFFIX,
    base_offset_of,
)
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_protocol.logfiles.scan import (
    Bad,
    Read,
    Tail,
    find_valid,
    is_cut_short,
    walk_past_damage,
)
from jetstream_protocol.logfiles.verify_metadata import verify_beside_streams
from jetstream_protocol.logfiles.verify_recorded import (
    read_recorded,
    verify_lost_folders,
    verify_recorded,
)

_STATE_NAMES = (CHECKPOINT_NAME, PRODUCERS_NAME, COMPACTION_NAME, DAMAGE_NAME)


def verify(path: str | Path) -> Iterator[Finding]:
    """Everything wrong with a segment, a stream's folder or a data folder; nothing: it is sound.

    Raises FileNotFoundError, and ValueError when `path` is none of these.
    """
    path = Path(path)
    if path.is_file():
        segment = segment_file(path)
        if segment is None:
            raise ValueError(f"{path} is not a segment: segments are named <20 digits>{LOG_SUFFIX}")
        yield from _LogVerifier().segment(segment, is_last=True)
    elif is_data_folder(path):
        yield from _verify_data_folder(path)
    elif is_log_folder(path):
        yield from _verify_log_folder(path)
    elif any(path.iterdir()):
        raise ValueError(f"{path} is neither a data folder nor the folder of a stream")


def _verify_data_folder(path: Path) -> Iterator[Finding]:
    yield from verify_beside_streams(path)
    for folder in stream_folders(path):
        if folder.name.isascii() and folder.name.isdigit():
            yield from _verify_log_folder(folder)
        else:
            message = f"not the folder of a stream: {STREAMS_NAME}/ holds stream ids"
            yield Finding(str(folder), 0, Kind.UNKNOWN_FILE, message)
    yield from verify_lost_folders(path)


def _verify_log_folder(folder: Path) -> Iterator[Finding]:
    yield from _verify_names(folder)
    recorded = read_recorded(folder)
    verifier = _LogVerifier(recorded)
    segments = segment_files(folder)
    yield from verify_recorded(folder, recorded, segments)
    last_offset = max((s.base_offset for s in segments if _holds_batch(s)), default=-1)
    for segment in segments:
        yield from verifier.segment(segment, is_last=segment.base_offset >= last_offset)
        if segment is not segments[-1] and not segment.index_path.exists():
            message = "the index of a sealed segment is missing; it will be rebuilt"
            yield Finding(str(segment.index_path), 0, Kind.MISSING_INDEX, message)
    if (folder / CHECKPOINT_NAME).exists():
        yield from verifier.checkpoint(folder / CHECKPOINT_NAME)
    yield from verifier.end(folder)
    checkpoint = recorded.checkpoint or LogCheckpoint()
    for name, is_expected, consequence in (
        (PRODUCERS_NAME, checkpoint.producers, "it will be rebuilt from the batches"),
        (COMPACTION_NAME, checkpoint.compaction, "nothing will count as compacted"),
        (DAMAGE_NAME, False, "all of the log will be inspected"),
    ):
        if is_expected or (folder / name).exists():
            yield from _verify_state(folder / name, consequence)


def _holds_batch(segment: SegmentFile) -> bool:
    """Whether there is a valid batch; perhaps there is one in a file that cannot be read."""
    try:
        with segment.reading() as read:
            return find_valid(read, 0, segment.size, Tail(0)) is not None
    except OSError:
        return True


def _verify_names(folder: Path) -> Iterator[Finding]:
    for entry in sorted(folder.iterdir()):
        name = entry.name
        if name.endswith(TEMPORARY_SUFFIX):
            message = "an atomic write that never took place; it will be removed"
            yield Finding(str(entry), 0, Kind.LEFTOVER_FILE, message)
        elif (index_of := base_offset_of(name, INDEX_SUFFIX)) is not None:
            if not entry.with_suffix(LOG_SUFFIX).exists():
                message = f"the index of a segment that is not there, at offset {index_of}"
                yield Finding(str(entry), 0, Kind.BAD_INDEX, message)
        elif base_offset_of(name, LOG_SUFFIX) is None and name not in _STATE_NAMES:
            yield Finding(str(entry), 0, Kind.UNKNOWN_FILE, "not a file of a log; nothing reads it")


def _verify_state(path: Path, consequence: str) -> Iterator[Finding]:
    """Check that the file is there and can be read. How the log is opened decides whether it is
    still trusted."""
    try:
        checkpoint_file.decode(path.read_bytes(), path.name, path.parent.name)
    except CorruptBatchError as error:
        message = f"{error.reason}; {consequence}"
        yield Finding(str(path), error.position, Kind.BAD_CHECKPOINT, message)
    except FileNotFoundError:
        message = f"the checkpoint says that there is such a file; {consequence}"
        yield Finding(str(path), 0, Kind.BAD_CHECKPOINT, message)
    except OSError as error:
        yield Finding(str(path), 0, Kind.UNREADABLE, str(error))


class _LogVerifier:
    """Goes through the segments of one log in order, and remembers where the last batch ended."""

    def __init__(self, recorded: Recorded | None = None) -> None:
        self._recorded = recorded or Recorded()
        self._tail: Tail | None = None
        self._first_offset = 0
        self._epochs: list[tuple[int, int]] = []
        self._is_whole = True

    def segment(self, segment: SegmentFile, *, is_last: bool) -> Iterator[Finding]:
        """Examine a segment. is_last: no other segment holds a later batch, so its end may be
        torn."""
        file = str(segment.path)
        if self._tail is None:
            self._tail = Tail(segment.base_offset)
            self._first_offset = segment.base_offset
        if self._tail.offset < 0:  # The segment before could not be read.
            self._tail.offset = segment.base_offset
        if segment.base_offset != self._tail.offset:
            message = f"segment begins at {segment.base_offset} where {self._tail.offset} is next"
            if is_last and not _holds_batch(segment):
                yield Finding(file, 0, Kind.TORN_TAIL, f"{message}; it will be removed")
                return
            yield Finding(file, 0, Kind.OFFSET_GAP, message)
            self._is_whole = False
            self._tail.offset = segment.base_offset
        try:
            entries = _IndexEntries(segment)
            yield from entries.findings(is_last)
            with segment.reading() as read:
                yield from self._batches(read, segment, entries, is_last)
        except OSError as error:
            yield Finding(file, 0, Kind.UNREADABLE, str(error))
            self._is_whole = False
            self._tail.offset = -1

    def _batches(
        self, read: Read, segment: SegmentFile, entries: _IndexEntries, is_last: bool
    ) -> Iterator[Finding]:
        assert self._tail is not None
        file = str(segment.path)
        for found in walk_past_damage(read, segment.size, segment.base_offset):
            if isinstance(found, Bad):
                yield self._damage(file, read, segment.size, found, is_last)
                self._is_whole = False
                entries.skip(segment.size if found.resumes_at is None else found.resumes_at)
                if found.resumes_at is not None:
                    self._tail.offset = -1  # The log may continue at any offset.
            else:
                yield from self._batch(file, read, *found)
                yield from entries.check(*found)
        yield from entries.rest()

    def _batch(
        self, file: str, read: Read, position: int, header: BatchHeader
    ) -> Iterator[Finding]:
        tail = self._tail
        assert tail is not None
        if header.base_offset != tail.offset and tail.offset >= 0 and not tail.is_gap(header):
            message = f"batch at offset {header.base_offset} where {tail.offset} is next"
            yield Finding(file, position, Kind.OFFSET_GAP, message)
        if header.leader_epoch < tail.leader_epoch:
            message = f"leader epoch {header.leader_epoch} after epoch {tail.leader_epoch}"
            yield Finding(file, position, Kind.EPOCH_REGRESSION, message)
        if header.append_timestamp < tail.timestamp:
            message = f"append timestamp {header.append_timestamp} after {tail.timestamp}"
            yield Finding(file, position, Kind.TIMESTAMP_REGRESSION, message)
        if header.leader_epoch > tail.leader_epoch:
            self._epochs.append((header.leader_epoch, header.base_offset))
        tail.advance(header)
        data = read(position, header.length)
        try:
            if header.flags & Flags.ENCRYPTED:
                read_prefix(data, HEADER_BYTES)  # The rest cannot be checked without the key.
            else:
                Batch.decode(data).check_columns()
        except CorruptBatchError as error:
            yield Finding(file, position, Kind.BAD_COLUMNS, error.reason)

    def checkpoint(self, path: Path) -> Iterator[Finding]:
        """Compare the checkpoint with the batches that were seen."""
        file = str(path)
        try:
            checkpoint = LogCheckpoint.from_bytes(path.read_bytes(), path.parent.name)
        except CorruptBatchError as error:
            message = f"{error.reason}; it will be rebuilt from the batches"
            yield Finding(file, error.position, Kind.BAD_CHECKPOINT, message)
            return
        except OSError as error:
            yield Finding(file, 0, Kind.UNREADABLE, str(error))
            return
        end = self._tail.offset if self._tail is not None else 0
        if not self._is_whole or checkpoint.recovery_point > end:
            return  # The checkpoint may be right about the missing batches.
        known = [e for e in checkpoint.epochs if e[1] > self._first_offset]
        found = [e for e in self._epochs if self._first_offset < e[1] < checkpoint.recovery_point]
        if known != found:
            message = f"leader epochs {known} where the batches have {found}"
            yield Finding(file, 0, Kind.BAD_CHECKPOINT, message)

    def end(self, folder: Path) -> Iterator[Finding]:
        """Compare the end of the batches with what is recorded."""
        if self._tail is None or not -1 < self._tail.offset < self._recorded.end_offset:
            return
        yield Finding(
            str(folder), 0, Kind.MISSING_RECORDS,
            f"the log reached to offset {self._recorded.end_offset}, and ends at "
            f"{self._tail.offset}",
        )  # fmt: skip

    def _damage(self, file: str, read: Read, size: int, bad: Bad, is_last: bool) -> Finding:
        if bad.resumes_at is not None:
            message = f"{bad.reason}; a valid batch follows at byte {bad.resumes_at}"
            return Finding(file, bad.position, Kind.CORRUPT_BATCH, message)
        if not is_last:
            message = f"{bad.reason}; batches follow in the next segment"
            return Finding(file, bad.position, Kind.CORRUPT_BATCH, message)
        recorded = self._recorded
        if self._tail is not None and self._tail.offset < recorded.end_offset:
            message = f"{bad.reason}; the log reached to offset {recorded.end_offset}"
            return Finding(file, bad.position, Kind.CORRUPT_BATCH, message)
        if recorded.is_same_boot and not is_cut_short(read, bad.position, size):
            message = f"{bad.reason}; this boot of the machine has lost nothing that was written"
            return Finding(file, bad.position, Kind.CORRUPT_BATCH, message)
        message = f"{bad.reason}; {size - bad.position} bytes will be cut off"
        return Finding(file, bad.position, Kind.TORN_TAIL, message)


class _IndexEntries:
    """The entries of a segment's index, checked when the scan passes their positions."""

    def __init__(self, segment: SegmentFile) -> None:
        self._segment = segment
        self._file = str(segment.index_path)
        self._entries: list[tuple[int, int, int]] = []
        self._next = 0

    def findings(self, is_last: bool) -> Iterator[Finding]:
        """Read the index. The last segment may have grown since its index was written."""
        if not self._segment.index_path.exists():
            return
        try:
            data = self._segment.index_path.read_bytes()
        except OSError as error:
            yield Finding(self._file, 0, Kind.BAD_INDEX, f"{error}; it will be rebuilt")
            return
        length = self._segment.size
        if is_last:
            length = min(index_file.log_length_of(data), length)
        try:
            flat = index_file.decode(data, self._segment.base_offset, length)
        except CorruptBatchError as error:
            message = f"{error.reason}; it will be rebuilt"
            yield Finding(self._file, error.position, Kind.BAD_INDEX, message)
            return
        self._entries = list(zip(flat[::3], flat[1::3], flat[2::3], strict=True))

    def check(self, position: int, header: BatchHeader) -> Iterator[Finding]:
        """Check the entries up to the batch at `position`, and report those that do not fit."""
        while self._next < len(self._entries) and self._entries[self._next][1] <= position:
            entry = self._entries[self._next]
            if entry != (header.base_offset, position, header.append_timestamp):
                yield self._wrong(entry)
            self._next += 1

    def skip(self, position: int) -> None:
        """Pass over unchecked entries before `position`: the batches there are damaged."""
        while self._next < len(self._entries) and self._entries[self._next][1] < position:
            self._next += 1

    def rest(self) -> Iterator[Finding]:
        """Report the entries after the last batch."""
        while self._next < len(self._entries):
            yield self._wrong(self._entries[self._next])
            self._next += 1

    def _wrong(self, entry: tuple[int, int, int]) -> Finding:
        at = index_file.HEADER_BYTES + self._next * index_file.ENTRY_BYTES
        message = f"no batch of offset {entry[0]} and timestamp {entry[2]} is at byte {entry[1]}"
        return Finding(self._file, at, Kind.BAD_INDEX, message)
