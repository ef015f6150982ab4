"""One stream's log: segments one after the other, appended to at the end.

Offsets: `log_start_offset <= flushed_offset <= log_end_offset`; the log holds the batches of
[log_start_offset, log_end_offset), and those below `flushed_offset` survive a power failure.
Epochs never fall from batch to batch, and append timestamps never go back.

Threads. The loop thread owns the log: append, seal, truncate, close. `flush` runs on the flusher
thread meanwhile; `read` and `pread` may run anywhere. Operations that move or remove files take the
mutex. `flush` holds it while it runs; an append never waits for it.

Failures. `health` says what they mean. The bytes of a failed append are cut off, so that later
appends succeed once there is space.

A segment is sealed when the next batch does not belong into it (`_is_full`). Not here: high
watermark and acknowledgements (replication), and when to flush, to seal without an append, or to
delete (their drivers).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from jetstream_protocol.batch import Batch, BatchHeader, EncodedBatch, decode_header, iterate
from jetstream_protocol.errors import (
    FencedEpochError,
    OffsetOutOfRangeError,
    StorageFullError,
)
from jetstream_protocol.logfiles.recorded import NO_EPOCH_LED, LedEpoch
from jetstream_protocol.logfiles.scan import Tail
from jetstream_protocol.types import MonotonicUs, WallUs
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.checkpointer import LogCheckpointer
from jetstream_server.log.compaction.log_compaction import LogCompaction
from jetstream_server.log.config import LogConfig
from jetstream_server.log.damage import LogDamage
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import check_incoming_keys, plain_batches
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.health import Health
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.producers import DUPLICATE_WINDOW_US, Producers, concerns
from jetstream_server.log.recovery import Recovered, recover
from jetstream_server.log.retention import Span
from jetstream_server.log.segment import LogSlice, Segment
from jetstream_server.log.slice_reader import SliceReader
from jetstream_server.log.storage import LogStorage
from jetstream_server.log.subject_index import Rows, SubjectIndex, rows_of
from jetstream_server.log.validator import check_incoming, count_fitting, last_gap

__all__ = ["CommitLog", "LogConfig", "LogSlice"]


class CommitLog:
    """See the module. Every method raises StorageError when the disk fails it."""

    __slots__ = (
        "_begun", "_config", "_disk", "_mutex", "_noting", "_reader", "_storage",
        "compaction", "damage", "damaged_files", "encryption", "epochs", "flushed_offset",
        "health", "incomplete_reason", "is_start_unknown", "lacks_beginning",
        "last_append_timestamp", "led_epoch", "log_end_offset", "log_start_offset", "producers",
        "records", "subjects",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, config: LogConfig, recovered: Recovered) -> None:
        self._disk = disk
        self._config = config
        self._mutex = disk.mutex()
        self._noting = disk.mutex()  # around `producers`, whose image the flusher thread takes
        offsets = recovered.offsets or OffsetsFile(disk, directory, recovered.recorded.boot_id)
        self.encryption = config.encryption_of(directory)
        interval = config.index_interval_bytes
        self._storage = LogStorage(disk, directory, interval, recovered, offsets, self.encryption)
        self.health = Health(directory, recovered.offline_reason, self._mutex)
        """Why the log is offline. Other parts report their reasons here too."""
        self.records = LogCheckpointer(self, self._storage, offsets, self.health, self._noting)
        save = self.records.save
        self.compaction = LogCompaction(
            disk, self._storage, self.health, self._mutex, save, self.encryption
        )
        self.damage = LogDamage(disk, self._storage, self._mutex, save)
        self.damaged_files = (*recovered.damaged_files, *self.damage.damaged_files)
        self._reader = SliceReader(disk, self)
        self.epochs: LeaderEpochCache = recovered.epochs
        self.producers: Producers = recovered.producers
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.tail.offset
        self.flushed_offset = recovered.flushed_offset
        self.last_append_timestamp = recovered.tail.timestamp
        self.led_epoch = self._begun = recovered.led_epoch
        """The last leader epoch that was noted here on disk (`note_epoch`)."""
        self.lacks_beginning = recovered.lacks_beginning
        """Whether records before the first segment, or all records, are missing. Records appended
        later cannot repair that. The log is offline until `reset` or `salvage`."""
        self.incomplete_reason = recovered.incomplete_reason
        """Why acknowledged records may be missing although everything in the log is valid; "" when
        none is missing. Cleared by `incompleteness_recorded`."""
        self.is_start_unknown = recovered.is_start_unknown
        """Nothing on record says where the log starts, so records may be missing in front."""
        self.subjects = SubjectIndex(self.log_start_offset) if config.index_subjects else None
        """The last offset of each subject; None: nobody has asked for it."""

    @classmethod
    def open(
        cls, disk: Disk, directory: str, config: LogConfig | None = None, *, clean: bool,
        boot_id: str = "", duplicate_window_us: int = DUPLICATE_WINDOW_US,
    ) -> CommitLog:  # fmt: skip
        """Recover the log in `directory`. A log that never existed is empty.

        clean: whether the server stopped cleanly. A log that its close left unchanged is then
        accepted without a scan. boot_id: of the machine's current boot, "" when unknown; whatever
        was written during this boot still exists, flushed or not. A damaged log is returned
        offline, readable up to the damage.
        """
        config = config or LogConfig()
        try:
            recovered = recover(
                disk, directory, config.index_interval_bytes, clean=clean, boot_id=boot_id,
                duplicate_window_us=duplicate_window_us, encryption=config.encryption_of(directory),
            )  # fmt: skip
        except OSError as error:
            raise storage_error(error, f"opening the log in {directory}") from error
        log = cls(disk, directory, config, recovered)
        if recovered.recorded.is_being_emptied:
            log._finish_reset(recovered.recorded.log_start_offset or 0)
        if not log.offline_reason:
            log.compaction.found_end(log.log_end_offset)
        if recovered.exists and not log.offline_reason:
            log.records.opened()
        return log

    def configure(self, config: LogConfig) -> None:
        """Change the settings from now on; existing segments stay as they are."""
        self._config = config

    @property
    def offline_reason(self) -> str:
        """Why nothing can be appended; "" while all is well."""
        return self.health.offline_reason

    @property
    def is_damaged(self) -> bool:
        """Whether damage is why the log is offline. What can be read is still valid."""
        return self.health.is_damaged

    @property
    def is_lost(self) -> bool:
        """Whether all records of this log, and with them their offsets, are gone."""
        bases = self._storage.segments.base_offsets
        return self.lacks_beginning and bases[:1] in ([], [self.log_end_offset])

    def incompleteness_recorded(self) -> None:
        """Note that the metadata knows that this log may lack records (register_node). Raises
        StorageError, StorageFullError."""
        if self.incomplete_reason:
            with self._mutex:
                self.incomplete_reason = ""
                self.is_start_unknown = False
                self.records.note_bounds(durable=True)

    @property
    def directory(self) -> str:
        return self._storage.directory

    @property
    def size_bytes(self) -> int:
        return self._storage.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._storage.segments)

    @property
    def tombstones_gone_below(self) -> int:
        """The offset below which compaction may have removed tombstones from this log, or from the
        log it was copied from; above it none is missing. Raises StorageError."""
        state = self.compaction.state
        return max(state.tombstones_gone_below, state.copied_under)

    @property
    def copied_under(self) -> int:
        """The leader's `tombstones_gone_below` when the copying of this log began. Raises
        StorageError."""
        return self.compaction.state.copied_under

    @property
    def committed_below(self) -> int:
        """The offset below which compaction has recorded all records as committed; 0: unknown."""
        return self.compaction.committed_below

    @property
    def compacted_below(self) -> int:
        """The offset below which compaction may have removed records of this log, and below which
        the later records are that it removed them for; of what was removed elsewhere before the log
        was copied, only the removed ones. Raises StorageError."""
        state = self.compaction.state
        return max(state.cleaned_to, state.committed_below)

    @property
    def lost_range(self) -> tuple[int, int] | None:
        """The first range of offsets, [start, end), that the disk has lost; None: none is lost."""
        return self.damage.first

    @property
    def flush_due(self) -> bool:
        """Whether a sealed segment waits for a flush. The flush spares recovery a scan."""
        return self._storage.has_sealed_unsynced

    # Appending.

    def append(
        self, batch: EncodedBatch, *, leader_epoch: int, timestamp_us: WallUs,
        now_us: MonotonicUs | None = None,
    ) -> int:  # fmt: skip
        """As the leader: stamp the batch, write it, and return its base offset.

        now_us: message ids age by it; without it they age by timestamps. Raises StorageFullError
        (nothing was appended; try later) and StorageError.
        """
        self.health.require_online()
        base_offset = self.log_end_offset
        timestamp = timestamp_us
        if timestamp < self.last_append_timestamp:
            timestamp = self.last_append_timestamp
        if leader_epoch != self.epochs.latest_epoch:
            self.start_epoch(leader_epoch)
        batch.stamp(base_offset, leader_epoch, timestamp)
        stored = batch
        if self.encryption is not None or self._config.must_encrypt:
            stored = self._config.stored_form(batch, self.encryption)
        segment = self._segment_for(stored.length, timestamp)
        self._write(segment, (stored.header, stored.body))
        next_offset = base_offset + batch.last_offset_delta + 1
        segment.wrote(base_offset, next_offset, stored.length, timestamp)
        self.last_append_timestamp = timestamp
        batch.is_as_stored = stored is batch
        if concerns(batch.header):
            with self._noting:
                self.producers.note(decode_header(batch.header), batch.body, now_us)
        # **safety** Only then: a flush that reaches so far saves what `producers` remembers.
        self.log_end_offset = next_offset
        if self.subjects is not None and self.subjects.reached == base_offset:
            self.subjects.note(Batch.of_checked(decode_header(batch.header), batch.plain_body))
        return base_offset

    def append_replica(
        self, data: bytes, *, leader_epoch: int | None = None, gaps_below: int = 0,
        now_us: MonotonicUs | None = None,
    ) -> None:  # fmt: skip
        """As a follower: append whole stamped batches, back to back.

        leader_epoch: the epoch under which the batches were fetched; none may be newer. gaps_below:
        the offset below which gaps of compaction may lie; there may be none above. now_us: given if
        the leader has just appended the last one. Raises CorruptBatchError when the bytes are not
        whole valid batches, DivergedError when the batches do not continue this log, and
        CannotDecryptError when this node could not read them: nothing is appended then. Raises
        StorageFullError, StorageError: batches written to segments before the failure stay.
        """
        self.health.require_online()
        tail = Tail(self.log_end_offset, self.epochs.latest_epoch)
        headers = check_incoming(data, tail, leader_epoch, gaps_below)
        decrypted = check_incoming_keys(self.encryption, headers, data, self._config.must_encrypt)
        if gaps_below:
            self.compaction.note_committed(last_gap(headers))
        start = 0
        while headers:
            segment = self._segment_for(headers[0].length, headers[0].append_timestamp)
            count, end = 1, start + headers[0].length
            if len(headers) > 1:
                count = count_fitting(headers, self._config.segment_bytes - segment.size)
                end = start + sum(header.length for header in headers[:count])
            self._write(segment, (memoryview(data)[start:end],))
            with self._noting:  # First, as in `append`.
                self.producers.note_all(headers, count, data, start, now_us, decrypted)
            self._wrote(segment, headers[:count])
            start, headers = end, headers[count:]

    def _wrote(self, segment: Segment, headers: list[BatchHeader]) -> None:
        for header in headers:
            if header.leader_epoch != self.epochs.latest_epoch:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            segment.wrote(
                header.base_offset, header.next_offset, header.length, header.append_timestamp
            )
        newest = headers[-1]
        self.last_append_timestamp = max(self.last_append_timestamp, newest.append_timestamp)
        self.log_end_offset = newest.next_offset

    def note_end(self) -> None:
        """Record the log end. Records may be acknowledged before they are flushed, and the next
        start in this boot of the machine must know that they existed."""
        self.records.note_end()

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leadership at the log end, before anything is appended or served under it.

        The epoch's first batch makes it durable. Raises FencedEpochError when the log
        knows a newer epoch.
        """
        latest = self.epochs.latest_epoch
        if leader_epoch == latest:
            return
        if leader_epoch < latest:
            raise FencedEpochError(f"leader epoch {leader_epoch}; the log is at {latest} already")
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def note_epoch(self, leader_epoch: int) -> None:
        """Have the next flush note durably that this leadership has begun at the log end. Until its
        first batch nothing else on disk says so (`led_epoch`)."""
        self._begun = LedEpoch(leader_epoch, self.log_end_offset)

    def seal(self) -> None:
        """Seal the last segment, unless it is empty, and begin a new one."""
        self.health.require_online()
        last = self._storage.segments.last
        if last is not None and last.size:
            self._begin_segment()

    def _segment_for(self, length: int, timestamp: WallUs) -> Segment:
        """The segment that takes the next batch; a new one when the last is full or too old."""
        self.compaction.settle()
        segment = self._storage.segments.last
        if segment is None:
            return self._begin_segment()
        if not segment.has_index:
            with self.health.reading():
                segment.load_index()  # If this failed after the write, its bytes would stay.
        if segment.end[0] and self._is_full(segment, length, timestamp):
            return self._begin_segment()
        return segment

    def _is_full(self, segment: Segment, length: int, timestamp_us: WallUs) -> bool:
        """Whether a batch of that length and time belongs into the next segment. May read an
        index."""
        config = self._config
        if segment.end[0] + length > config.segment_bytes:
            return True
        if config.segment_age_us is not None:
            due_us = self._due_us(segment)
            if due_us is not None and timestamp_us >= due_us:
                return True
        offsets = config.segment_offsets
        return offsets is not None and self.log_end_offset - segment.base_offset >= offsets

    def _due_us(self, segment: Segment) -> WallUs | None:
        """When the segment must be sealed because of its age; None: never. May read an index."""
        if self._config.segment_age_us is None:
            return None
        first = segment.first_timestamp()
        return None if first is None else WallUs(first + self._config.segment_age_us)

    def seal_due_us(self) -> WallUs | None:
        """When the last segment must be sealed by age even if nothing is appended; None: never,
        because it is empty or age does not matter. May read an index. For any thread."""
        last = self._storage.segments.last
        if last is None or not last.size:
            return None
        with self.health.reading():
            return self._due_us(last)

    def sealed_spans(self) -> Iterator[Span]:
        """The sealed segments, oldest first, for retention. Reads indexes. For any thread."""
        with self.health.reading():
            for segment in self._storage.segments.sealed:
                newest_us = segment.last_timestamp()
                yield Span(segment.base_offset, segment.next_offset, segment.size, newest_us)

    def sealed_beyond(self, offset: int) -> tuple[int, int] | None:
        """Bounds of the first sealed segment that ends after `offset`. Reads nothing."""
        segment = self._storage.segments.sealed_beyond(offset)
        return None if segment is None else (segment.base_offset, segment.next_offset)

    @property
    def sealed_end(self) -> int:
        """Where the sealed segments end. Reads nothing."""
        return self._storage.segments.sealed_end

    def _begin_segment(self) -> Segment:
        with self.health.changing("beginning a segment in"):
            self.records.begin()
            return self._storage.begin_segment(self.log_end_offset)

    def _write(self, segment: Segment, buffers: tuple[bytes | bytearray | memoryview, ...]) -> None:
        try:
            segment.write(buffers)
        except OSError as error:
            raise self.health.append_error(error, segment.undo_write) from error

    def forget_message_ids(self, now_us: MonotonicUs) -> None:
        """Forget message ids whose window has passed."""
        if self.producers.holds_message_ids:
            with self._noting:
                self.producers.expire(now_us)

    # Reading.

    def read(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        """Locate whole batches in one segment, from the batch that holds `offset` on.

        Covers only batches wholly below `limit_offset`, and at most `bytes_max` bytes; the first
        batch always fits. Returns None when the limit leaves nothing. Checks headers, not bodies:
        callers check the CRCs. Raises OffsetOutOfRangeError below the log start and beyond the log
        end, CorruptBatchError with file and position, RecordsDamagedError for a marked range.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not within [{self.log_start_offset}, {self.log_end_offset}]",
                self.log_start_offset, limit_offset,
            )  # fmt: skip
        if offset >= min(limit_offset, self.log_end_offset):
            return None
        if self.damage.ranges:
            limit_offset = self.damage.limit(offset, limit_offset)
        segments = self._storage.segments
        last = segments.last
        if last is not None and offset >= last.base_offset:
            tail = last.tail_from(offset, bytes_max, limit_offset)
            if tail is not None:
                return tail
        segment = segments.find(offset)
        if segment is None:
            raise self._reader.missing_error(offset, segments.base_offsets)
        try:
            cuts, (position, header) = len(segment.cuts), segment.locate(offset)
            if header.next_offset > limit_offset:
                return None
            slice_ = segment.slice_from(position, header, bytes_max, limit_offset, cuts)
        except OSError as error:
            raise self._reader.read_error(error, segment.path, segment.next_offset) from error
        segments.note_loaded(segment)
        return slice_

    def pread(self, slice_: LogSlice) -> bytes:
        """Read the bytes of a slice, as stored: `plain_batches` decrypts them.

        Raises OffsetOutOfRangeError when retention removed it meanwhile, UnavailableError when
        compaction or a truncation did (read it again), CorruptBatchError when the file ends early.
        """
        return self._reader.pread(slice_)

    def read_subjects(self, offset: int, bytes_max: int, limit_offset: int) -> Rows | None:
        """What the index of subjects needs of the next batches; None: there are none below
        `limit_offset`. For any thread. Raises the errors of `read` and `pread`, CorruptBatchError,
        and CannotDecryptError."""
        offset = max(offset, self.log_start_offset)
        found = self.read(offset, bytes_max, limit_offset)
        if found is None:
            return None
        rows, next_offset = [], offset
        for batch in iterate(plain_batches(self.encryption, self.pread(found))):
            rows += rows_of(batch)
            next_offset = batch.header.next_offset
        return Rows(offset, next_offset, rows)

    def offset_for_timestamp(self, timestamp_us: WallUs) -> tuple[int, int] | None:
        """Offset and leader epoch of the first record appended at that time or later, or None."""
        with self.health.reading():
            header = self._storage.segments.find_timestamp(timestamp_us)
        if header is None:
            return None
        offset = max(header.base_offset, self.log_start_offset)
        if offset >= self.log_end_offset:
            return None
        return offset, self.epochs.epoch_at(offset)

    # Flushing.

    def flush(self) -> int:
        """Sync everything appended before the call, and return the new flushed offset.

        Blocks: for the flusher thread. If it fails, the log goes offline and stays offline; but
        NoDescriptorError only means: call it again."""
        with self._mutex:
            return self._flush()

    def _flush(self) -> int:
        self.health.require_online()
        # Read the offset first. The last segment, which is read after it, then lies at or after
        # the segment of that offset. Segments sealed in between are on the storage's list.
        begun = self._begun  # First: what is noted lies at or below the target.
        target = self.log_end_offset
        last = self._storage.segments.last
        is_flushed = target == self.flushed_offset and self._storage.is_synced()
        if last is None or (is_flushed and begun == self.led_epoch):
            return self.flushed_offset
        if not is_flushed:
            with self.health.repeatable("flushing"):
                self._storage.sync(last, self.flushed_offset)
        self.led_epoch = self.records.note_flush(target, begun)
        self.flushed_offset = target
        with suppress(StorageFullError):  # The older checkpoint is valid; recovery only scans more.
            if last.base_offset > self._storage.checkpoint.recovery_point:
                self.records.save()
        return target

    # Removing. For the loop thread. Each may wait for a running flush, and is durable on return.

    def truncate(self, offset: int) -> int:
        """Drop every batch that reaches to `offset` or beyond; return the end of the last one left.

        For a follower whose log has diverged from its leader's.
        """
        with self._mutex:
            self.health.require_online()
            self._require_within(offset, self.log_start_offset)
            if offset < self.log_end_offset:
                self._truncate(offset)
            return self.log_end_offset

    def _truncate(self, offset: int) -> None:
        segment = self._storage.segments.holding(offset)
        with self.health.reading():
            position, end = segment.locate_end(offset)
        self.compaction.cutting()
        if end < self._begun.start_offset:
            self.led_epoch = self._begun = NO_EPOCH_LED  # What it held is not all here any more.
        self.records.cutting_to(end)  # First: otherwise the missing records would look lost.
        self.epochs.truncate_from_end(end)
        self.log_start_offset = min(self.log_start_offset, end)
        self.flushed_offset = min(self.flushed_offset, end)
        self.log_end_offset = end
        if self.subjects is not None:
            self.subjects.truncate(end, self.log_start_offset)
        with self._noting:
            self.producers.truncate(end)
        self.health.complete(lambda: self._cut(segment, position, end))

    def _cut(self, segment: Segment, position: int, end: int) -> None:
        with self.health.repeatable("truncating"):
            self._storage.cut(segment, position, end)
            # Not earlier: a log that is not cut after all has to know its committed gaps.
            self.compaction.cut_to(end)
        self.damage.cut_to(end)

    def reset(self, offset: int) -> None:
        """Drop everything, damaged or not, and begin anew at `offset`, as the leader demands. A
        failed log is healthy again afterwards."""
        with self._mutex:
            self.health.require_recoverable()
            self.records.emptying(offset)
            # Not earlier: if emptying fails, the log may be revived with the records that it has.
            with self._noting:
                self.producers.clear()
            self.epochs = LeaderEpochCache()
            self.led_epoch = self._begun = NO_EPOCH_LED
            self.log_start_offset = self.flushed_offset = self.log_end_offset = offset
            if self.subjects is not None:
                self.subjects.begin(offset)
            with self.health.must_succeed("resetting"):
                self._storage.restart_at(offset)
                # Not earlier: otherwise a copy interrupted by a kill would be taken for complete.
                self.compaction.forget()
                self.damage.forget()
                self._damage_is_gone()
            with suppress(StorageFullError):  # The older checkpoint promises nothing.
                self.records.save()

    def _finish_reset(self, offset: int) -> None:
        """Complete a reset during which the process died."""
        with suppress(StorageFullError):  # The log stays offline: what is left is not a log.
            self.reset(offset)

    def salvage(self, *, is_elected: bool = True) -> None:
        """Bring a failed or damaged log back online with the records that can be read.

        Drops the damaged part, or what failed operations have left, and everything after it.
        Records missing in front count as removed; **safety** unless it is elected, the log still
        says that it may lack them. Does nothing if the log is offline for another reason.

        Only for a replica that fetches the rest from another one, or when no replica holds more. If
        the log has failed, what was not flushed then is written again.
        """
        with self._mutex:
            if not (self.is_damaged or self.health.has_failed):
                return
            is_start_lost = self.lacks_beginning or self.is_start_unknown
            doubt = f"{self.directory}: lost beginning" if is_start_lost and not is_elected else ""
            if self._storage.has_retired:
                self.records.removing_in_front()
            with self.health.must_succeed("repairing"):
                self._storage.make_folder()
                self._storage.drop_damaged()
                if self.health.has_failed:
                    self._storage.write_again(self.flushed_offset)
            self.compaction.cut_to(self.log_end_offset)
            self.damage.cut_to(self.log_end_offset)
            bases = self._storage.segments.base_offsets
            self.log_start_offset = max(self.log_start_offset, *bases[:1], 0)
            if self.lacks_beginning:
                with self._noting:
                    self.producers.forget_before(self.log_start_offset)
            self.flushed_offset = max(self.flushed_offset, self.log_start_offset)
            if self.subjects is not None:
                self.subjects.begin(self.log_start_offset)
            self.is_start_unknown |= bool(doubt)
            self.records.save()
            self._damage_is_gone(doubt)

    def _damage_is_gone(self, doubt: str = "") -> None:
        self.lacks_beginning, self.is_start_unknown = False, bool(doubt)
        self.incomplete_reason = doubt
        self.records.note_all(durable=True)
        self.health.bring_online()

    @property
    def begins_below_start(self) -> bool:
        """Whether a sealed segment lies wholly below the log start."""
        sealed = self._storage.segments.sealed
        return bool(sealed) and sealed[0].next_offset <= self.log_start_offset

    def begin_advance(self, offset: int) -> None:
        """Hide records below `offset` from readers. Does not block: `finish_advance` removes the
        segments wholly below it.

        Segments that await their sync stay. Calling this again with the log start retires them.
        """
        self.health.require_online()
        self._require_within(offset, 0)
        self._start_at(max(offset, self.log_start_offset))

    def finish_advance(self) -> None:
        """Remove the segments that `begin_advance` retired. Blocks. Does nothing while offline.
        Raises StorageFullError when the checkpoint could not be written."""
        with self._mutex:
            if not self.offline_reason:
                self._remove_retired()

    def _start_at(self, offset: int) -> None:
        self.log_start_offset = offset
        self._storage.retire_before(offset)
        # Keep the epoch of every batch that is still there: truncation may make it the last one.
        self.epochs.truncate_from_start(self._storage.segments.base_offsets[0])

    def _remove_retired(self) -> None:
        if self.log_start_offset > self.flushed_offset:
            self._flush()  # Otherwise a crash could leave a log that ends before it starts.
        # **safety** First, and no more than that: the missing segments would be damage.
        start = self.log_start_offset
        self.records.removing_in_front()
        with self.health.changing("removing segments of"):
            self._storage.remove_retired(start)
        self.damage.begin_at()
        self.records.save()

    # The end.

    def close(self, *, clean: bool) -> None:
        """Stop using the log. clean: flush it, and leave a checkpoint that spares recovery.

        **safety** An offline log leaves no checkpoint: recovery checks it again. Raises
        StorageError when closing fails; the log is closed nevertheless.
        """
        with self._mutex:
            try:
                if clean and self.offline_reason:
                    with self.health.changing("closing"):
                        self._storage.unmark_clean()
                last = self._storage.segments.last
                if clean and not self.offline_reason and last is not None:
                    self._flush()
                    if self._storage.has_retired:
                        self._remove_retired()
                    with self.health.changing("closing"):
                        last.save_index()
                    self.records.note_bounds()
                    self.records.save(clean_size=last.size)
            finally:
                self.health.end("the log is closed")

    def delete(self) -> None:
        """Remove the log and its folder. The log cannot be used afterwards."""
        with self._mutex:
            self.health.end("the log is deleted")
            with self.health.changing("deleting"):
                self._storage.delete()

    # State and failures.

    def _require_within(self, offset: int, first: int) -> None:
        if not first <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside the log", self.log_start_offset, self.log_end_offset
            )
