"""Opening a log: what is there, where it ends, and what became of the last append.

After a clean close the checkpoint says where the log ends, and nothing is read. Otherwise every
batch from the recovery point's segment on is checked, CRCs and continuity both, which also
rebuilds those segments' indexes and the epochs. Where that stops early:

* a torn tail (see jetstream_protocol.logfiles.scan) above the recovery point is cut off;
* corruption, or an end below the recovery point, leaves all bytes as they are and the log
  offline: readable up to the damage, and not to be appended to, because what follows in the file
  may be records that were acknowledged.

**safety** Missing or corrupt state never deletes data: an unreadable checkpoint or index only
makes recovery read more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jetstream_protocol.errors import CorruptBatchError, StorageError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import TEMPORARY_SUFFIX, base_offset_of
from jetstream_protocol.logfiles.scan import Tail, find_valid, find_valid_behind, walk
from jetstream_server.log.checkpoint import read_log_checkpoint
from jetstream_server.log.disk import Disk
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.index import Index
from jetstream_server.log.producers import DUPLICATE_WINDOW_US, Producers
from jetstream_server.log.producers_file import ProducersRecovery
from jetstream_server.log.segment import Segment


@dataclass(slots=True)
class Recovered:
    """A log as it was found. `segments[unsynced_from:]` may hold bytes that no fsync covered."""

    exists: bool = True
    segments: list[Segment] = field(default_factory=list)
    unsynced_from: int = 0
    tail: Tail = field(default_factory=lambda: Tail(0))
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    checkpoint: LogCheckpoint = field(default_factory=LogCheckpoint)
    producers: Producers = field(default_factory=Producers)
    offline_reason: str = ""

    @property
    def log_start_offset(self) -> int:
        if not self.segments:
            return self.tail.offset
        first = max(self.segments[0].base_offset, self.checkpoint.log_start_offset)
        return min(first, self.tail.offset)


def recover(
    disk: Disk,
    directory: str,
    interval_bytes: int,
    *,
    clean: bool,
    duplicate_window_us: int = DUPLICATE_WINDOW_US,
) -> Recovered:
    """The log in `directory`, repaired where that loses nothing. Raises OSError, StorageError."""
    if not disk.exists(directory):
        return Recovered(exists=False, producers=Producers(duplicate_window_us))
    if not disk.writable(directory):
        raise StorageError(f"{directory} is read-only: a log needs to write there")
    segments = _list_segments(disk, directory, interval_bytes)
    checkpoint = read_log_checkpoint(disk, directory)
    if not segments:
        return _without_segments(directory, checkpoint or LogCheckpoint())
    is_trusted = clean and checkpoint is not None and _agrees(checkpoint, segments[-1])
    checkpoint = checkpoint or LogCheckpoint()
    producers = ProducersRecovery(disk, directory, checkpoint, duplicate_window_us)
    if is_trusted:
        return _trusted(segments, checkpoint, producers)
    return _Scan(disk, directory, segments, checkpoint, producers).run(interval_bytes)


def _list_segments(disk: Disk, directory: str, interval_bytes: int) -> list[Segment]:
    names = disk.list_directory(directory)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(f"{directory}/{name}")  # An atomic write that never took place.
    bases = [base for name in names if (base := base_offset_of(name)) is not None]
    segments = [
        Segment(disk, directory, base, 0, base, interval_bytes=interval_bytes) for base in bases
    ]
    for segment, next_offset in zip(segments, [*bases[1:], *bases[-1:]], strict=True):
        segment.end = (disk.size(segment.path), next_offset)
    return segments


def _without_segments(directory: str, checkpoint: LogCheckpoint) -> Recovered:
    reason = ""
    if checkpoint.recovery_point > 0:
        reason = (
            f"{directory}: the segment files are missing; the log was flushed up to offset "
            f"{checkpoint.recovery_point}"
        )
    return Recovered(checkpoint=checkpoint, offline_reason=reason)


def _agrees(checkpoint: LogCheckpoint, last: Segment) -> bool:
    """Whether the last segment is as the clean close that wrote the checkpoint left it."""
    return last.size == checkpoint.clean_size and last.base_offset <= checkpoint.recovery_point


def _trusted(
    segments: list[Segment], checkpoint: LogCheckpoint, producers: ProducersRecovery
) -> Recovered:
    segments[-1].end = (checkpoint.clean_size, checkpoint.recovery_point)
    epochs = LeaderEpochCache(checkpoint.epochs)
    tail = Tail(checkpoint.recovery_point, epochs.latest_epoch, checkpoint.last_append_timestamp)
    return Recovered(
        segments=segments, unsynced_from=len(segments), tail=tail, epochs=epochs,
        checkpoint=checkpoint, producers=producers.finish(segments, tail.offset, tail, epochs),
    )  # fmt: skip


class _Scan:
    """One pass over the segments from the recovery point's on."""

    def __init__(
        self, disk: Disk, directory: str, segments: list[Segment], checkpoint: LogCheckpoint,
        producers: ProducersRecovery,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._directory = directory
        self._segments = segments
        self._checkpoint = checkpoint
        self._producers = producers
        point = checkpoint.recovery_point
        self._first = max((i for i, s in enumerate(segments) if s.base_offset <= point), default=0)
        self._start = start = segments[self._first].base_offset
        self._epochs = LeaderEpochCache(e for e in checkpoint.epochs if e[1] < start)
        self._tail = Tail(start, self._epochs.latest_epoch, checkpoint.last_append_timestamp)
        self._offline_reason = ""

    def run(self, interval_bytes: int) -> Recovered:
        segments = self._segments
        for slot in range(self._first, len(segments)):
            index = Index(interval_bytes)
            try:
                size = self._scan_segment(segments[slot], index)
            except CorruptBatchError as error:
                self._stop_at(slot, error, index)
                break
            self._accept(segments[slot], size, index)
            if slot < len(segments) - 1:
                # Its next offset came from scanning; so does its index, and memory is bounded.
                segments[slot].save_index()
                segments[slot].unload_index()
        point = self._checkpoint.recovery_point
        if not self._offline_reason and self._tail.offset < point:
            self._offline_reason = (
                f"{self._directory}: the log ends at offset {self._tail.offset} "
                f"but was flushed up to {point}: records are missing"
            )
        producers = self._producers.finish(segments, self._start, self._tail, self._epochs)
        return Recovered(
            segments=self._segments, unsynced_from=self._first, tail=self._tail,
            epochs=self._epochs, checkpoint=self._checkpoint, producers=producers,
            offline_reason=self._offline_reason,
        )  # fmt: skip

    def _scan_segment(self, segment: Segment, index: Index) -> int:
        """Check and index every batch; returns the bytes. CorruptBatchError at the first bad."""
        tail = self._tail
        if segment.base_offset != tail.offset:
            raise CorruptBatchError(
                f"segment begins at offset {segment.base_offset} where {tail.offset} is next"
            )
        for position, header in walk(segment.read, 0, segment.size, bodies=True):
            problem = tail.problem(header)
            if problem:
                raise CorruptBatchError(problem, position=position)
            if header.leader_epoch != tail.leader_epoch:
                self._epochs.assign(header.leader_epoch, header.base_offset)
            index.add(header.base_offset, position, header.append_timestamp)
            self._producers.note(segment, position, header)
            tail.advance(header)
        return segment.size

    def _accept(self, segment: Segment, size: int, index: Index) -> None:
        segment.end = (size, self._tail.offset)
        segment.adopt_index(index)

    def _stop_at(self, slot: int, error: CorruptBatchError, index: Index) -> None:
        """Cut a torn tail off; leave corruption alone and say where it is."""
        bad, later = self._segments[slot], self._segments[slot + 1 :]
        valid = self._find_valid_behind(bad, error.position, later)
        if not valid and self._tail.offset >= self._checkpoint.recovery_point:
            self._cut(bad, error.position, later)
        else:
            evidence = f"a valid batch follows in {valid}" if valid else "it had been flushed"
            self._offline_reason = (
                f"{bad.path} at byte {error.position}: {error.reason}; {evidence}, so this is "
                "corruption, not a torn tail"
            )
        if self._begins_in_place(bad, error.position):
            self._accept(bad, error.position, index)
            del self._segments[slot + 1 :]
        else:
            del self._segments[slot:]

    def _begins_in_place(self, bad: Segment, position: int) -> bool:
        """Whether the segment itself continues the log, and only some of its batches do not."""
        return position > 0 or bad.base_offset == self._tail.offset

    def _find_valid_behind(self, bad: Segment, position: int, later: Sequence[Segment]) -> str:
        """Where a valid batch is, in words; "" when there is none."""
        tail = self._tail
        found = find_valid_behind(bad.read, position, bad.size, tail)
        if found is not None:
            return f"{bad.path} at byte {found}"
        for segment in later:
            found = find_valid(segment.read, 0, segment.size, tail)
            if found is not None:
                return f"{segment.path} at byte {found}"
        return ""

    def _cut(self, bad: Segment, position: int, later: Sequence[Segment]) -> None:
        """Remove what holds no valid batch, newest first, so that no gap appears meanwhile."""
        for segment in reversed(later):
            segment.remove()
        if self._begins_in_place(bad, position):
            bad.remove_index()
            self._disk.truncate(bad.path, position)
            self._disk.fsync(bad.path)
        else:
            bad.remove()
        self._disk.fsync_directory(self._directory)
