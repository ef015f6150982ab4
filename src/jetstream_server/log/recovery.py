"""Opens a log: finds what it holds, where it ends, and whether the last append was torn.

After a clean close the checkpoint says where the log ends, and nothing is read. Otherwise every
batch from the recovery point's segment on is checked (CRCs and continuity). The check also rebuilds
the epochs and the indexes of those segments. If it stops early:

* a torn tail (see jetstream_protocol.logfiles.scan) after everything on record is cut off;
* anything else leaves all bytes unchanged and the log offline: readable up to the damage, without
  appends, because acknowledged records may follow in the file.

**safety** The record (recorded.py) is compared with the files. Anything missing, in front, between
two segments, at the end or altogether, is damage; it is never taken for retention or for an empty
log. During the boot of the machine that wrote the log, nothing written is lost: an end below the
recorded log end is damage, and an append is torn only if the file's end cuts it short. If that
cannot be known, because the record is missing, a cut makes the log *incomplete*: readable, but not
trusted until its node has reported it (restart_trust.py).

**safety** Missing or corrupt state never deletes data: without a checkpoint or index recovery only
reads more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from jetstream_protocol.errors import CorruptBatchError, StorageError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import TEMPORARY_SUFFIX, base_offset_of
from jetstream_protocol.logfiles.offsets_file import Bounds, Mark
from jetstream_protocol.logfiles.recorded import NO_EPOCH_LED, LedEpoch, Recorded
from jetstream_protocol.logfiles.scan import (
    Tail,
    find_valid,
    find_valid_after,
    is_cut_short,
    walk,
)
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import Encryption
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.index import Index
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.producers import DUPLICATE_WINDOW_US, Producers
from jetstream_server.log.producers_file import ProducersRecovery
from jetstream_server.log.recovered_state import RecoveredState
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import DamagedFile


@dataclass(slots=True)
class Recovered:
    """A log as it was found. No fsync may have covered the bytes of `segments[unsynced_from:]`, or
    where they were cut.

    offline_reason: what is damaged; "" when nothing is. lacks_beginning: records before the first
    segment, or all records, are missing: only another replica can repair the log.
    incomplete_reason: why records that were cut off may have been acknowledged; "" when none can
    have been. is_start_unknown: the log may lack records in front as well. is_in_doubt: what was
    written and not flushed may be in memory only, whatever an fsync says now. compaction: None if
    it could not be read. has_lost_compaction: it was rebuilt. damaged_files: state files that are
    not trusted.
    """

    exists: bool = True
    segments: list[Segment] = field(default_factory=list)
    unsynced_from: int = 0
    tail: Tail = field(default_factory=lambda: Tail(0))
    epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    checkpoint: LogCheckpoint = field(default_factory=LogCheckpoint)
    producers: Producers = field(default_factory=Producers)
    recorded: Recorded = field(default_factory=Recorded)
    offsets: OffsetsFile | None = None
    offline_reason: str = ""
    lacks_beginning: bool = False
    incomplete_reason: str = ""
    is_start_unknown: bool = False
    is_in_doubt: bool = False
    compaction: CompactionState | None = None
    has_lost_compaction: bool = False
    damaged_files: list[DamagedFile] = field(default_factory=list)

    @property
    def has_compaction(self) -> bool:
        """Whether the file `compaction` exists, or existed."""
        return self.checkpoint.compaction or self.compaction != CompactionState()

    @property
    def log_start_offset(self) -> int:
        if not self.segments:
            return self.tail.offset
        recorded = self.recorded.log_start_offset
        first = self.segments[0].base_offset
        if recorded is None:
            recorded = max(first, self.checkpoint.log_start_offset)
        return min(recorded if self.lacks_beginning else max(first, recorded), self.tail.offset)

    @property
    def led_epoch(self) -> LedEpoch:
        """The noted leader epoch; **safety** none, if what the log held then is not all there."""
        led = self.recorded.led_epoch
        return led if led.start_offset <= self.tail.offset else NO_EPOCH_LED

    @property
    def flushed_offset(self) -> int:
        flushed = min(self.recorded.flushed_offset, self.tail.offset)
        return max(flushed, self.log_start_offset)


def recover(
    disk: Disk,
    directory: str,
    interval_bytes: int,
    *,
    clean: bool,
    boot_id: str = "",
    duplicate_window_us: int = DUPLICATE_WINDOW_US,
    encryption: Encryption | None = None,
) -> Recovered:
    """Open the log in `directory`; repair it where that loses nothing. Raises OSError,
    StorageError.

    boot_id: of the machine's current boot; "" when unknown: unflushed records may be lost then.
    """
    exists = disk.exists(directory)
    if exists and not disk.writable(directory):
        raise StorageError(f"{directory} is read-only: a log needs to write there")
    names = disk.list_directory(directory) if exists else []
    state = RecoveredState(disk, directory, names)
    recorded = state.record(boot_id)
    segments = _list_segments(disk, directory, names, interval_bytes)
    offsets = OffsetsFile(disk, directory, boot_id)
    found = Recovered(
        exists=exists, segments=segments, recorded=recorded, offsets=offsets,
        checkpoint=recorded.checkpoint or LogCheckpoint(),
        producers=Producers(duplicate_window_us), damaged_files=state.damaged,
    )  # fmt: skip
    _recover(disk, directory, found, interval_bytes, state, encryption, clean=clean)
    found.compaction = state.compaction(recorded.checkpoint, found.segments)
    found.has_lost_compaction = state.has_lost_compaction
    state.remove_refused()
    return found


def _recover(
    disk: Disk, directory: str, found: Recovered, interval_bytes: int, state: RecoveredState,
    encryption: Encryption | None, *, clean: bool,
) -> None:  # fmt: skip
    """Fill in what the segments hold."""
    segments, recorded = found.segments, found.recorded
    offsets = found.offsets
    assert offsets is not None
    loss = _loss_at_beginning(directory, found)
    if not segments:
        found.offline_reason, found.lacks_beginning = loss, bool(loss)
        return
    sizes = {segment.base_offset: segment.size for segment in segments}
    losses = (recorded.first_loss(sizes, segments[0].base_offset), _first_cut_short(found))
    hole = min((loss for loss in losses if loss is not None), default=None)
    if hole is not None:
        del segments[max(sum(s.base_offset <= hole[0] for s in segments), 1) :]
    is_trusted = clean and not loss and hole is None and _agrees(recorded, segments[-1])
    window_us = found.producers.window_us
    producers = ProducersRecovery(disk, directory, found.checkpoint, window_us, encryption)
    state.producers_damaged(producers.damage)
    if is_trusted:
        _trust(found, producers)
    else:
        # **safety** An fsync of a killed process may have failed without being noted.
        found.is_in_doubt = not recorded.boot_id or recorded.may_be_same_boot
        _Scan(disk, directory, found, producers, offsets).run(interval_bytes)
        if recorded.may_be_cut and segments and not found.offline_reason:
            # **safety** Otherwise a power failure could bring back what was cut off, before records
            # in later segments, or removed segments after new records. Cut again: if an fsync has
            # failed, another one may do nothing.
            disk.truncate(segments[-1].path, segments[-1].size)
            disk.fsync(segments[-1].path)
            disk.fsync_directory(directory)
    if hole is not None:
        found.offline_reason = f"{directory}: {hole[1]}"
    if loss:
        found.offline_reason, found.lacks_beginning = loss, True
    if not found.offline_reason and not found.incomplete_reason:
        found.incomplete_reason = _incomplete_reason(directory, found)
    found.is_start_unknown = _is_start_unknown(found)
    if not found.incomplete_reason:
        offsets.adopt(recorded.offsets, is_in_doubt=found.is_in_doubt)


def _incomplete_reason(directory: str, found: Recovered) -> str:
    if found.recorded.mark & Mark.INCOMPLETE:
        return f"{directory}: an earlier run found that it may lack acknowledged records"
    if found.recorded.is_nothing and found.segments and found.segments[0].base_offset:
        return f"{directory}: nothing says where the log starts, and it does not begin at 0"
    return ""


def _is_start_unknown(found: Recovered) -> bool:
    """Whether an earlier run may have had this doubt and recorded the first segment as the start.
    **safety** A log that is also damaged after its first segment raises the same doubt."""
    recorded, begins_late = found.recorded, found.segments and found.segments[0].base_offset
    is_in_doubt = recorded.is_nothing or recorded.mark & Mark.INCOMPLETE
    reason = found.offline_reason or found.incomplete_reason
    return bool(reason and begins_late and is_in_doubt and not found.lacks_beginning)


def _first_cut_short(found: Recovered) -> tuple[int, str] | None:
    """The first sealed segment whose batches end too early, of those that were being rewritten, so
    that their length is not on record: base offset and problem. **safety** Readers would get what
    is left, and the next segment, without a word. (They notice everything else.)"""
    listed = (found.recorded.checkpoint and found.recorded.checkpoint.segments) or ()
    ends = {base: next_offset for base, next_offset, size in listed if size < 0}
    start = found.recorded.log_start_offset or 0
    for segment in found.segments[:-1]:
        base_offset, next_offset = segment.base_offset, ends.get(segment.base_offset, 0)
        if next_offset <= start:
            continue
        try:
            end = segment.last_offset_end()
        except (CorruptBatchError, OSError):
            continue
        if end < next_offset:
            return base_offset, (
                f"the segment with the offsets [{base_offset}, {next_offset}) ends at offset {end}"
            )
    return None


def _loss_at_beginning(directory: str, found: Recovered) -> str:
    """What is missing before the first segment, or that everything is; "" when nothing is."""
    recorded, segments = found.recorded, found.segments
    start = recorded.log_start_offset
    if recorded.is_being_emptied:
        return f"{directory}: the log was being emptied, to be copied anew, but that did not end"
    if segments:
        first = segments[0].base_offset
        if start is None or first <= start:
            return ""
        return f"{directory}: the segments with the offsets [{start}, {first}) are missing"
    if recorded.end_offset == 0:
        return ""
    what = "the segment files are" if found.exists else "the folder is"
    return f"{directory}: {what} missing; the log reached to offset {recorded.end_offset}"


def _list_segments(
    disk: Disk, directory: str, names: Sequence[str], interval_bytes: int
) -> list[Segment]:
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(
                f"{directory}/{name}"
            )  # The leftover of an atomic write that did not happen.
    bases = [base for name in names if (base := base_offset_of(name)) is not None]
    segments = [
        Segment(disk, directory, base, 0, base, interval_bytes=interval_bytes) for base in bases
    ]
    for segment, next_offset in zip(segments, [*bases[1:], *bases[-1:]], strict=True):
        segment.end = (disk.size(segment.path), next_offset)
    return segments


def _agrees(recorded: Recorded, last: Segment) -> bool:
    """Whether the last segment is as the clean close left it."""
    checkpoint = recorded.checkpoint
    return (
        checkpoint is not None
        and last.size == checkpoint.clean_size
        and last.base_offset <= checkpoint.recovery_point
        and recorded.end_offset <= checkpoint.recovery_point
    )


def _trust(found: Recovered, producers: ProducersRecovery) -> None:
    checkpoint, segments = found.checkpoint, found.segments
    segments[-1].end = (checkpoint.clean_size, checkpoint.recovery_point)
    epochs = LeaderEpochCache(checkpoint.epochs)
    tail = Tail(checkpoint.recovery_point, epochs.latest_epoch, checkpoint.last_append_timestamp)
    found.unsynced_from, found.tail, found.epochs = len(segments), tail, epochs
    found.producers = producers.finish(segments, tail.offset, tail, epochs)


class _Scan:
    """One pass over the segments from the recovery point's segment on."""

    def __init__(
        self, disk: Disk, directory: str, found: Recovered, producers: ProducersRecovery,
        offsets: OffsetsFile,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._directory = directory
        self._found = found
        self._segments = segments = found.segments
        self._producers = producers
        self._offsets = offsets
        point = found.checkpoint.recovery_point
        first = max((i for i, s in enumerate(segments) if s.base_offset <= point), default=0)
        self._first = min(first, self._first_unlisted())
        self._start = start = segments[self._first].base_offset
        self._epochs = LeaderEpochCache(e for e in found.checkpoint.epochs if e[1] < start)
        timestamp = found.checkpoint.last_append_timestamp
        self._tail = Tail(start, self._epochs.latest_epoch, timestamp)

    def _first_unlisted(self) -> int:
        """The first segment whose length the checkpoint does not record although it may lie below
        the recovery point. It was the last segment when the checkpoint was written."""
        known = self._found.checkpoint.segments
        if known is None:
            return len(self._segments)
        listed = {base for base, _, _ in known}
        start = self._found.recorded.log_start_offset or 0
        return next(
            (
                slot
                for slot, segment in enumerate(self._segments)
                if segment.base_offset not in listed and segment.next_offset > start
            ),
            len(self._segments),
        )

    def run(self, interval_bytes: int) -> None:
        """Scan the segments and fill in what was found."""
        segments, found = self._segments, self._found
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
        recorded = found.recorded
        if not found.offline_reason and self._tail.offset < recorded.end_offset:
            flushed = recorded.flushed_offset
            reached = (
                f"was flushed up to {flushed}" if self._tail.offset < flushed
                else f"reached to {recorded.end_offset} in this boot of the machine"
            )  # fmt: skip
            found.offline_reason = (
                f"{self._directory}: the log ends at offset {self._tail.offset} but {reached}: "
                "records are missing"
            )
        found.tail, found.epochs = self._tail, self._epochs
        found.producers = self._producers.finish(segments, self._start, self._tail, self._epochs)
        flushed = recorded.flushed_offset
        # **safety** Not only what reaches beyond it: a failed append may have been cut off after a
        # segment that ends there, and the process killed before it synced that.
        found.unsynced_from = next(
            (i for i, s in enumerate(segments) if s.next_offset >= flushed),
            len(segments),
        )

    def _scan_segment(self, segment: Segment, index: Index) -> int:
        """Check and index every batch, and return the number of bytes. Raises CorruptBatchError at
        the first bad batch."""
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
        """Cut off a torn tail, or leave corruption unchanged and report where it is."""
        bad, later = self._segments[slot], self._segments[slot + 1 :]
        evidence = self._evidence_of_damage(bad, error.position, later)
        if evidence:
            self._found.offline_reason = (
                f"{bad.path} at byte {error.position}: {error.reason}; {evidence}, so this is "
                "corruption, not a torn tail"
            )
        else:
            self._note_cut(bad, error.position)
            self._cut(bad, error.position, later)
        if self._begins_in_place(bad, error.position):
            self._accept(bad, error.position, index)
            del self._segments[slot + 1 :]
        else:
            del self._segments[slot:]

    def _evidence_of_damage(self, bad: Segment, position: int, later: Sequence[Segment]) -> str:
        """Why this cannot be a torn append; "" when it can be one."""
        recorded = self._found.recorded
        valid = self._find_valid_after(bad, position, later)
        if valid:
            return f"a valid batch follows in {valid}"
        if self._tail.offset < recorded.flushed_offset:
            return "it had been flushed"
        if self._tail.offset < recorded.end_offset:
            return "the log went on there in this boot of the machine"
        is_torn = is_cut_short(bad.read, position, bad.size) and not any(s.size for s in later)
        if recorded.is_same_boot and not is_torn:
            return "this boot of the machine has lost nothing that was written"
        return ""

    def _note_cut(self, bad: Segment, position: int) -> None:
        """Record the cut before it is made. **safety** After the cut another start would find
        nothing wrong."""
        recorded = self._found.recorded
        if recorded.may_be_same_boot and not recorded.is_same_boot:
            self._found.incomplete_reason = (
                f"{bad.path} was cut off at byte {position}, and it is not known whether "
                "acknowledged records were lost"
            )
            start, flushed = recorded.log_start_offset, recorded.flushed_offset
            start = self._segments[0].base_offset if start is None else start
            self._offsets.create()
            self._offsets.write_bounds(
                Bounds(start, max(start, flushed), Mark.INCOMPLETE), durable=True
            )

    def _begins_in_place(self, bad: Segment, position: int) -> bool:
        """Whether the segment itself continues the log and only some of its batches do not."""
        return position > 0 or bad.base_offset == self._tail.offset

    def _find_valid_after(self, bad: Segment, position: int, later: Sequence[Segment]) -> str:
        """A description of the place of a valid batch after the bad one; "" when there is none."""
        tail = self._tail
        found = find_valid_after(bad.read, position, bad.size, tail)
        if found is not None:
            return f"{bad.path} at byte {found}"
        for segment in later:
            found = find_valid(segment.read, 0, segment.size, tail)
            if found is not None:
                return f"{segment.path} at byte {found}"
        return ""

    def _cut(self, bad: Segment, position: int, later: Sequence[Segment]) -> None:
        """Remove segments without a valid batch, newest first, so that no gap ever appears."""
        for segment in reversed(later):
            segment.remove()
        if self._begins_in_place(bad, position):
            bad.remove_index()
            self._disk.truncate(bad.path, position)
            self._disk.fsync(bad.path)
        else:
            bad.remove()
        self._disk.fsync_directory(self._directory)
