"""One stream's log: segments one after the other, appended to at the end.

Offsets: `log_start_offset <= flushed_offset <= log_end_offset`; the log holds the batches of
[log_start_offset, log_end_offset), and those below `flushed_offset` survive a power failure.
Epochs never fall from batch to batch, and append timestamps never go back.

Threads. The loop thread owns the log: append, roll, truncate, close. `flush` runs on the flusher
thread meanwhile; `read` and `pread` may run anywhere. Whatever moves or removes files takes the
mutex, which `flush` holds for its whole run; an append never waits for it.

Failure policy (design 5). A full disk fails the append and nothing else: what it left behind is
cut off, and later appends succeed once there is room. Any other I/O error, above all a failed
fsync, takes this log offline: `offline_reason` says why, appends and flushes raise StorageError,
reads go on. A failed fsync is never tried again, since the kernel may have dropped the pages it
could not write, and a second fsync would call that success.

Deliberately not here: high watermark and acknowledgements (replication), and when to flush, roll
by time or delete (their schedulers).
"""

from __future__ import annotations

from dataclasses import dataclass

from jetstream_protocol.batch import BatchHeader, EncodedBatch, decode_header
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    FencedEpochError,
    OffsetOutOfRangeError,
    StorageError,
    StorageFullError,
)
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import INDEX_SUFFIX, LOG_SUFFIX, base_offset_of
from jetstream_protocol.logfiles.scan import Tail, check_body
from jetstream_server.log.checkpoint import write_log_checkpoint
from jetstream_server.log.disk import Disk, is_full, storage_error
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.recovery import Recovered, recover
from jetstream_server.log.segment import LogSlice, Segment
from jetstream_server.log.segments import Segments

__all__ = ["CommitLog", "LogConfig", "LogSlice"]


@dataclass(frozen=True, slots=True)
class LogConfig:
    """When segments roll, and how dense their indexes are."""

    segment_bytes: int = 256 * 1024 * 1024
    segment_age_us: int | None = None
    index_interval_bytes: int = 4096


class CommitLog:
    """See the module. Every method raises StorageError when the disk fails it."""

    __slots__ = (
        "_checkpoint", "_config", "_created", "_damaged", "_directory", "_disk", "_mutex",
        "_segments", "_unsynced_directories", "_unsynced_segments",
        "epochs", "flushed_offset", "last_append_timestamp", "log_end_offset",
        "log_start_offset", "offline_reason",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, config: LogConfig, recovered: Recovered) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._mutex = disk.mutex()
        self._created = recovered.exists
        self._segments = Segments(recovered.segments)
        self._checkpoint = recovered.checkpoint
        self._damaged = bool(recovered.offline_reason)
        # Filled by the loop thread only after what is to be synced was done, emptied by the
        # flusher only after it chose the offset to reach: so nothing below that is missed.
        self._unsynced_segments = recovered.segments[recovered.unsynced_from : -1]
        self._unsynced_directories = _unsynced_directories(directory, recovered)
        self.epochs: LeaderEpochCache = recovered.epochs
        self.log_start_offset = recovered.log_start_offset
        self.log_end_offset = recovered.tail.offset
        flushed = min(recovered.checkpoint.recovery_point, recovered.tail.offset)
        self.flushed_offset = max(flushed, recovered.log_start_offset)
        self.last_append_timestamp = recovered.tail.timestamp
        self.offline_reason = recovered.offline_reason
        """Why nothing can be appended; "" while all is well."""

    @classmethod
    def open(
        cls, disk: Disk, directory: str, config: LogConfig | None = None, *, clean: bool
    ) -> CommitLog:
        """Recover the log in `directory`; one that does not exist is empty.

        clean: the server stopped cleanly, so a log that looks as its close left it is believed.
        After corruption the log is returned offline, readable up to the damage.
        """
        config = config or LogConfig()
        try:
            recovered = recover(disk, directory, config.index_interval_bytes, clean=clean)
        except OSError as error:
            raise storage_error(error, f"opening the log in {directory}") from error
        return cls(disk, directory, config, recovered)

    @property
    def directory(self) -> str:
        return self._directory

    @property
    def size_bytes(self) -> int:
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def flush_due(self) -> bool:
        """A sealed segment awaits its flush: ask for one whatever the flush policy, so that
        recovery need not scan it."""
        return bool(self._unsynced_segments)

    # Appending.

    def append(self, batch: EncodedBatch, *, leader_epoch: int, timestamp_us: int) -> int:
        """As the leader: stamp the batch, write it, return its base offset.

        Raises StorageFullError (nothing was appended; try later), StorageError.
        """
        self._require_online()
        base_offset = self.log_end_offset
        timestamp = max(timestamp_us, self.last_append_timestamp)
        self.start_epoch(leader_epoch)
        batch.stamp(base_offset, leader_epoch, timestamp)
        segment = self._segment_for(batch.length, timestamp)
        self._write(segment, (batch.header, batch.body))
        next_offset = base_offset + batch.last_offset_delta + 1
        segment.wrote(base_offset, next_offset, batch.length, timestamp)
        self.last_append_timestamp = timestamp
        self.log_end_offset = next_offset
        return base_offset

    def append_replica(self, data: bytes, *, leader_epoch: int | None = None) -> None:
        """As a follower: append whole stamped batches, back to back, or none of them.

        leader_epoch: the epoch they were asked for under; none may be newer. Raises
        CorruptBatchError when the bytes are not whole valid batches, DivergedError when they do
        not continue this log; StorageFullError, StorageError.
        """
        self._require_online()
        headers = self._check_replica(data, leader_epoch)
        start = 0
        while headers:
            segment = self._segment_for(headers[0].length, headers[0].append_timestamp)
            fitting = self._count_fitting(segment, headers)
            end = start + sum(header.length for header in headers[:fitting])
            self._write(segment, (memoryview(data)[start:end],))
            for header in headers[:fitting]:
                if header.leader_epoch != self.epochs.latest_epoch:
                    self.epochs.assign(header.leader_epoch, header.base_offset)
                segment.wrote(
                    header.base_offset, header.next_offset, header.length, header.append_timestamp
                )
            last = headers[fitting - 1]
            self.last_append_timestamp = max(self.last_append_timestamp, last.append_timestamp)
            self.log_end_offset = last.next_offset
            start = end
            headers = headers[fitting:]

    def start_epoch(self, leader_epoch: int) -> None:
        """Begin a leadership at the log end; before anything is appended or served under it.

        The epoch's first batch makes it durable (design 7). Raises FencedEpochError when the log
        knows a newer epoch.
        """
        latest = self.epochs.latest_epoch
        if leader_epoch == latest:
            return
        if leader_epoch < latest:
            raise FencedEpochError(f"leader epoch {leader_epoch}; the log is at {latest} already")
        self.epochs.assign(leader_epoch, self.log_end_offset)

    def roll(self) -> None:
        """Seal the last segment, unless it is empty, and begin a new one."""
        self._require_online()
        last = self._segments.last
        if last is not None and last.size:
            self._begin_segment()

    def _check_replica(self, data: bytes, leader_epoch: int | None) -> list[BatchHeader]:
        tail = Tail(self.log_end_offset, self.epochs.latest_epoch)
        headers: list[BatchHeader] = []
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            check_body(data, position, header, position)
            problem = tail.problem(header)
            if not problem and leader_epoch is not None and header.leader_epoch > leader_epoch:
                problem = f"leader epoch {header.leader_epoch}, asked for under {leader_epoch}"
            if problem:
                raise DivergedError(problem, tail.leader_epoch, tail.offset)
            tail.advance(header)
            headers.append(header)
            position += header.length
        return headers

    def _count_fitting(self, segment: Segment, headers: list[BatchHeader]) -> int:
        """How many of the batches go into the segment: always one."""
        room = self._config.segment_bytes - segment.size - headers[0].length
        count = 1
        for header in headers[1:]:
            room -= header.length
            if room < 0:
                break
            count += 1
        return count

    def _segment_for(self, length: int, timestamp: int) -> Segment:
        """The segment that takes the next batch; a new one when the last is full or too old."""
        segment = self._segments.last
        if segment is None:
            return self._begin_segment()
        if not segment.size:
            return segment
        if segment.size + length > self._config.segment_bytes or self._is_old(segment, timestamp):
            return self._begin_segment()
        return segment

    def _is_old(self, segment: Segment, timestamp: int) -> bool:
        age = self._config.segment_age_us
        if age is None:
            return False
        first = segment.first_timestamp()
        return first is not None and timestamp - first >= age

    def _begin_segment(self) -> Segment:
        sealed = self._segments.last
        try:
            if not self._created:
                self._disk.make_directory(self._directory)
                self._created = True
                self._unsynced_directories.append(_parent(self._directory))
            segment = Segment.create(
                self._disk, self._directory, self.log_end_offset, self._config.index_interval_bytes
            )
            self._unsynced_directories.append(self._directory)
            if sealed is not None:
                sealed.save_index()
        except OSError as error:
            raise self._failure(error, f"beginning a segment in {self._directory}") from error
        if sealed is not None:
            self._unsynced_segments.append(sealed)
        self._segments.append(segment)
        return segment

    def _write(self, segment: Segment, buffers: tuple[bytes | bytearray | memoryview, ...]) -> None:
        try:
            segment.write(buffers)
        except OSError as error:
            failure = self._failure(error, f"appending to {segment.path}")
            try:
                segment.undo_write()
            except OSError as undo_error:
                raise self._take_offline(
                    undo_error, f"cutting off a failed append to {segment.path}"
                ) from undo_error
            raise failure from error

    # Reading.

    def read(self, offset: int, bytes_max: int, limit_offset: int) -> LogSlice | None:
        """Where the whole batches from the one that holds `offset` on are, in one segment.

        Only batches wholly below `limit_offset`, and not more than `bytes_max` bytes, except that
        the first always fits. None when the limit leaves nothing. Raises OffsetOutOfRangeError
        below the log start and beyond the log end, CorruptBatchError with file and position.
        """
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is not within [{self.log_start_offset}, {self.log_end_offset}]",
                self.log_start_offset, limit_offset,
            )  # fmt: skip
        if offset >= min(limit_offset, self.log_end_offset):
            return None
        segment = self._segments.holding(offset)
        try:
            position, header = segment.locate(offset)
            if header.next_offset > limit_offset:
                return None
            slice_ = segment.slice_from(position, header, bytes_max, limit_offset)
        except OSError as error:
            raise storage_error(error, f"reading {segment.path}") from error
        self._segments.note_loaded(segment)
        return slice_

    def pread(self, slice_: LogSlice) -> bytes:
        """The bytes of a slice.

        Raises OffsetOutOfRangeError when retention removed it meanwhile, CorruptBatchError when
        the file is shorter than it was.
        """
        try:
            data = self._disk.pread(slice_.path, slice_.position, slice_.length)
        except FileNotFoundError as error:
            raise OffsetOutOfRangeError(
                f"offset {slice_.base_offset} was removed while it was read",
                self.log_start_offset, self.log_end_offset,
            ) from error  # fmt: skip
        except OSError as error:
            raise storage_error(error, f"reading {slice_.path}") from error
        if len(data) != slice_.length:
            raise CorruptBatchError("the file ends early", slice_.path, slice_.position + len(data))
        return data

    def offset_for_timestamp(self, timestamp_us: int) -> tuple[int, int] | None:
        """Offset and leader epoch of the first record appended at that time or later."""
        try:
            header = self._segments.find_timestamp(timestamp_us)
        except OSError as error:
            raise storage_error(error, f"reading {self._directory}") from error
        if header is None:
            return None
        offset = max(header.base_offset, self.log_start_offset)
        if offset >= self.log_end_offset:
            return None
        return offset, self.epochs.epoch_at(offset)

    # Flushing.

    def flush(self) -> int:
        """Sync everything appended before the call; returns the new flushed offset.

        Blocks: for the flusher thread. When it fails the log goes offline and stays there.
        """
        with self._mutex:
            return self._flush()

    def _flush(self) -> int:
        self._require_online()
        # In this order: the last segment read here is at or behind the target's, and segments
        # sealed before it are in the list. See __init__.
        target = self.log_end_offset
        last = self._segments.last
        is_synced = not self._unsynced_segments and not self._unsynced_directories
        if last is None or (target == self.flushed_offset and is_synced):
            return self.flushed_offset
        try:
            while self._unsynced_segments:
                self._disk.fsync(self._unsynced_segments.pop(0).path)
            self._disk.fsync(last.path)
            self._sync_directories()
        except OSError as error:
            raise self._take_offline(error, f"flushing {self._directory}") from error
        self.flushed_offset = target
        if last.base_offset > self._checkpoint.recovery_point:
            try:
                self._save(self._checkpoint_now())
            except StorageFullError:
                pass  # The older one stays, and only makes recovery scan more.
        return target

    def _sync_directories(self) -> None:
        while self._unsynced_directories:
            self._disk.fsync_directory(self._unsynced_directories.pop(0))

    # Removing.

    def truncate(self, offset: int) -> int:
        """Drop every batch that reaches to `offset` or beyond; returns the new log end.

        For a follower whose log departs from its leader's. Durable on return.
        """
        with self._mutex:
            self._require_online()
            if not self.log_start_offset <= offset <= self.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"cannot truncate to {offset}: outside the log",
                    self.log_start_offset, self.log_end_offset,
                )  # fmt: skip
            if offset < self.log_end_offset:
                self._truncate(offset)
            return self.log_end_offset

    def _truncate(self, offset: int) -> None:
        segment = self._segments.holding(offset)
        try:
            position, header = segment.locate(offset)
            end = header.base_offset
            if self._checkpoint.recovery_point > end:
                # First, or bytes missing below the recovery point would look like a loss.
                self._save(self._checkpoint.cut_to(end))
            self.epochs.truncate_from_end(end)
            self.log_start_offset = min(self.log_start_offset, end)
            self.flushed_offset = min(self.flushed_offset, end)
            self.log_end_offset = end
            self._drop_segments(segment.base_offset)
            segment.truncate(position, end)
            self._disk.fsync(segment.path)
        except OSError as error:
            raise self._take_offline(error, f"truncating {self._directory}") from error

    def _drop_segments(self, offset: int) -> None:
        """Remove the segments that begin behind `offset`, newest first: no crash leaves a gap."""
        dropped = self._segments.drop_behind(offset)
        self._unsynced_segments = [s for s in self._unsynced_segments if s not in dropped]
        for segment in reversed(dropped):
            segment.remove()
        if dropped:
            self._disk.fsync_directory(self._directory)

    def reset(self, offset: int) -> None:
        """Drop everything and begin anew at `offset`: the leader's log starts beyond our end."""
        with self._mutex:
            self._require_online()
            if self._created:
                self._save(LogCheckpoint())
            self.epochs = LeaderEpochCache()
            self.log_start_offset = self.flushed_offset = self.log_end_offset = offset
            try:
                self._drop_segments(-1)
                self._begin_segment()
                self._sync_directories()
            except OSError as error:
                raise self._take_offline(error, f"resetting {self._directory}") from error
            self._save(self._checkpoint_now())

    def discard_damage(self) -> None:
        """After corruption: drop the damaged batch and all behind it, and go online again.

        Only for a replica that can fetch those records from another one. Does nothing for a log
        that is offline for another reason.
        """
        with self._mutex:
            if not self._damaged:
                return
            try:
                self._remove_damaged_segments()
                last = self._segments.last
                if last is not None:
                    last.truncate(*last.end)
                    self._disk.fsync(last.path)
                self._disk.fsync_directory(self._directory)
            except OSError as error:
                raise self._take_offline(error, f"repairing {self._directory}") from error
            self._save(self._checkpoint_now())
            self._damaged = False
            self.offline_reason = ""

    def _remove_damaged_segments(self) -> None:
        kept = self._segments.base_offsets
        for name in reversed(self._disk.list_directory(self._directory)):
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
                base_offset = base_offset_of(name, suffix)
                if base_offset is not None and base_offset not in kept:
                    self._disk.remove(f"{self._directory}/{name}")

    def advance_log_start(self, offset: int) -> None:
        """Records below `offset` are gone for readers; segments wholly below it are removed."""
        with self._mutex:
            self._require_online()
            if offset > self.log_end_offset:
                raise OffsetOutOfRangeError(
                    f"cannot start the log at {offset}: beyond its end",
                    self.log_start_offset, self.log_end_offset,
                )  # fmt: skip
            if offset <= self.log_start_offset:
                return
            if offset > self.flushed_offset:
                self._flush()  # Else a crash could leave a log that ends before it starts.
            self.log_start_offset = offset
            self._delete_before(offset)
            self._save(self._checkpoint_now())

    def delete_segments_before(self, offset: int) -> int:
        """Retention: remove sealed segments wholly below `offset`; returns the new log start."""
        bases = [base for base in self._segments.base_offsets if base <= offset]
        if len(bases) > 1:
            self.advance_log_start(bases[-1])
        return self.log_start_offset

    def _delete_before(self, offset: int) -> None:
        """Remove whole segments, oldest first; the last one always stays."""
        dropped = self._segments.drop_before(offset)
        # Of every batch that is still there: one may become the last again by truncation.
        self.epochs.truncate_from_start(self._segments.base_offsets[0])
        self._unsynced_segments = [s for s in self._unsynced_segments if s not in dropped]
        try:
            for segment in dropped:
                segment.remove()
        except OSError as error:
            raise self._failure(error, f"removing segments of {self._directory}") from error

    # The end.

    def close(self, *, clean: bool) -> None:
        """Stop using the log. clean: flush it, and leave a checkpoint that spares recovery.

        Raises StorageError when that fails; the log is closed nevertheless.
        """
        with self._mutex:
            try:
                last = self._segments.last
                if clean and not self.offline_reason and last is not None:
                    self._flush()
                    self._close_cleanly(last)
            finally:
                self.offline_reason = self.offline_reason or "the log is closed"

    def _close_cleanly(self, last: Segment) -> None:
        try:
            last.save_index()
        except OSError as error:
            raise storage_error(error, f"closing {self._directory}") from error
        self._save(self._checkpoint_now(clean_size=last.size))

    def delete(self) -> None:
        """Remove the log and its folder. Nothing can be done with it afterwards."""
        with self._mutex:
            self.offline_reason = "the log is deleted"
            self._segments = Segments([])
            if not self._created:
                return
            try:
                for name in reversed(self._disk.list_directory(self._directory)):
                    self._disk.remove(f"{self._directory}/{name}")
                self._disk.remove_directory(self._directory)
            except OSError as error:
                raise storage_error(error, f"deleting {self._directory}") from error

    # State and failures.

    def _checkpoint_now(self, clean_size: int = -1) -> LogCheckpoint:
        flushed = self.flushed_offset
        return LogCheckpoint(
            log_start_offset=self.log_start_offset,
            recovery_point=flushed,
            last_append_timestamp=self.last_append_timestamp,
            epochs=tuple(entry for entry in self.epochs.entries if entry[1] < flushed),
            clean_size=clean_size,
        )

    def _save(self, checkpoint: LogCheckpoint) -> None:
        """Write the checkpoint, if it says anything new."""
        if checkpoint == self._checkpoint:
            return
        try:
            write_log_checkpoint(self._disk, self._directory, checkpoint)
        except OSError as error:
            raise self._failure(error, f"writing the checkpoint of {self._directory}") from error
        self._checkpoint = checkpoint

    def _require_online(self) -> None:
        if self.offline_reason:
            raise StorageError(f"{self._directory} is offline: {self.offline_reason}")

    def _failure(self, error: OSError, doing: str) -> StorageError:
        """What to raise: a full disk passes, anything else takes the log offline."""
        if is_full(error):
            return storage_error(error, doing)
        return self._take_offline(error, doing)

    def _take_offline(self, error: OSError, doing: str) -> StorageError:
        """Not a StorageFullError, even where space was short: waiting does not bring it back."""
        failure = StorageError(storage_error(error, doing).message)
        self.offline_reason = failure.message
        return failure


def _parent(directory: str) -> str:
    return directory.rpartition("/")[0]


def _unsynced_directories(directory: str, recovered: Recovered) -> list[str]:
    """The folders whose new names may not have been synced when the last run ended."""
    if recovered.unsynced_from == len(recovered.segments):
        return []
    if recovered.checkpoint.recovery_point > 0:
        return [directory]  # Its own name was synced by the flush that got this far.
    return [directory, _parent(directory)]
