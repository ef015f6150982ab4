"""Records what a log holds: writes the checkpoint, and the offsets file beside it.

Each of the two can show that the other, or a segment, was lost
(jetstream_protocol.logfiles.recorded). **safety** Before a log becomes shorter, or its segments
change, this is recorded durably, in the offsets file at least: that one is written in place and
needs no free space.

Threads. `note_end` is called by the thread that owns the log; everything else needs the log's
mutex. Methods raise StorageError, StorageFullError.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Protocol

from jetstream_protocol.errors import StorageFullError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.offsets_file import Bounds, Mark
from jetstream_protocol.logfiles.recorded import LedEpoch
from jetstream_protocol.types import WallUs
from jetstream_server.disk_errors import changed_nothing, storage_error
from jetstream_server.log.epochs import LeaderEpochCache
from jetstream_server.log.health import Health
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.producers import Producers
from jetstream_server.log.storage import LogStorage


class Recordable(Protocol):
    """The state of a log that is recorded."""

    epochs: LeaderEpochCache
    producers: Producers
    log_start_offset: int
    flushed_offset: int
    log_end_offset: int
    last_append_timestamp: WallUs
    incomplete_reason: str
    is_start_unknown: bool
    led_epoch: LedEpoch


class LogCheckpointer:
    """See the module. noting: the lock around the log's `producers`."""

    __slots__ = ("_health", "_log", "_may_be_marked", "_noting", "_offsets", "_storage")

    def __init__(
        self,
        log: Recordable,
        storage: LogStorage,
        offsets: OffsetsFile,
        health: Health,
        noting: AbstractContextManager[object],
    ) -> None:
        self._log = log
        self._storage = storage
        self._offsets = offsets
        self._health = health
        self._noting = noting
        self._may_be_marked = False
        """Whether a power failure could bring back the mark of a reset that has ended."""

    # The checkpoint.

    def save(self, clean_size: int = -1) -> None:
        """Write a checkpoint of the log as it is. clean_size: bytes in its last segment after a
        clean close; -1: the log is not being closed."""
        log, flushed = self._log, self._log.flushed_offset
        if log.is_start_unknown:
            # **safety** The checkpoint would record the first segment that is left as the start.
            return
        self._save(
            LogCheckpoint(
                log_start_offset=log.log_start_offset,
                recovery_point=flushed,
                last_append_timestamp=log.last_append_timestamp,
                epochs=tuple(entry for entry in log.epochs.entries if entry[1] < flushed),
                clean_size=clean_size,
                producers=bool(log.producers) or self._storage.checkpoint.producers,
                compaction=self._storage.has_compaction,
                segments=self._storage.sealed_below(flushed),
            )
        )

    def _save(self, checkpoint: LogCheckpoint) -> None:
        log = self._log
        with self._noting:
            image = log.producers.image()
        # The image may include batches appended after the recovery point was chosen: drop them.
        producers = Producers(0, *image)
        producers.truncate(checkpoint.recovery_point)
        leader_epoch = log.epochs.epoch_at(checkpoint.recovery_point - 1)
        with self._health.changing("writing the checkpoint of"):
            self._storage.save(checkpoint, producers, leader_epoch)

    # The offsets file.

    def note_end(self) -> None:
        """Record the log end, flushed or not. Costs one system call.

        If the disk refuses, the log fails; the next append reports it.
        """
        try:
            self._offsets.write_end(self._log.log_end_offset)
        except OSError as error:
            if not changed_nothing(error):
                directory = self._storage.directory
                self._health.fail(storage_error(error, f"noting the end of {directory}").message)

    def note_bounds(self, *, durable: bool = False) -> None:
        """Record where the log starts and how far it is flushed."""
        with self._health.changing("noting the offsets of"):
            self._offsets.write_bounds(self._bounds, durable=durable)
        if durable:
            self._may_be_marked = False

    def note_flush(self, flushed_offset: int, begun: LedEpoch) -> LedEpoch:
        """Record that the log was flushed so far, before anything counts on it. **safety** Durably,
        if the mark of a reset could come back: the next start would empty the log again. A leader
        epoch that was not noted before is noted durably. Returns the one that is noted now: an
        older one, if the disk is full."""
        log, epoch = self._log, _noted(begun)
        bounds = replace(self._bounds, flushed_offset=flushed_offset, leader_epoch=epoch)
        if self._may_be_marked:
            with self._health.repeatable("noting the offsets of"):
                self._offsets.write_bounds(bounds, durable=True)
            self._may_be_marked = False
            return begun
        try:
            with self._health.changing("noting the offsets of"):
                self._offsets.write_bounds(bounds, durable=begun != log.led_epoch)
        except StorageFullError:
            return log.led_epoch  # The older record is valid, and says less.
        return begun

    def note_all(self, *, durable: bool = False) -> None:
        """Record everything, after the log was opened or begun anew."""
        with self._health.changing("noting the offsets of"):
            self._offsets.create()
            self._offsets.write_end(self._log.log_end_offset)
        self.note_bounds(durable=durable)

    def opened(self) -> None:
        """Record the state that recovery found when the log was opened."""
        try:
            self.note_all()
        except StorageFullError:
            pass  # The older record stays valid; it only says less.
        if self._storage.checkpoint.log_start_offset < self._log.log_start_offset:
            with suppress(StorageFullError):
                self.save()  # A reset that was interrupted has taken the one that recorded it.
        # An earlier run may have died while it removed the mark, if nothing was flushed since.
        self._may_be_marked = self._log.flushed_offset == self._log.log_start_offset

    def begin(self) -> None:
        """Create the offsets file, with the machine's boot id, before the first segment is made.
        Raises OSError."""
        if self._offsets.end_offset is None:
            self._storage.make_folder()
            self._offsets.write_end(self._log.log_end_offset)

    @property
    def _bounds(self) -> Bounds:
        log = self._log
        epoch = _noted(log.led_epoch)
        return Bounds(log.log_start_offset, log.flushed_offset, self._mark, epoch)

    @property
    def _mark(self) -> Mark:
        log = self._log
        is_in_doubt = log.incomplete_reason or log.is_start_unknown
        return Mark.INCOMPLETE if is_in_doubt else Mark.NONE

    # Before the log becomes shorter. Durable on return.

    def removing_in_front(self) -> None:
        """Record the log start durably. Call it before files below the log start are removed."""
        self.note_bounds(durable=True)
        try:
            self.save()
        except StorageFullError:
            pass  # Removing frees the space that this needs.

    def cutting_to(self, end_offset: int) -> None:
        """Record that the log ends at `end_offset`. Call it before the log is cut there."""
        if self._storage.recovery_point > end_offset:
            self._save(self._storage.checkpoint.cut_to(end_offset))
        start = min(self._log.log_start_offset, end_offset)
        flushed = min(self._log.flushed_offset, end_offset)
        epoch = _noted(self._log.led_epoch)
        with self._health.changing("noting the end of"):
            self._offsets.write_end(end_offset, is_cut=True)
            self._offsets.write_bounds(Bounds(start, flushed, self._mark, epoch), durable=True)

    def emptying(self, offset: int) -> None:
        """Record that the log begins anew at `offset`. Call it before the log is emptied.
        **safety** Otherwise what a killed process leaves behind would be taken for a log.

        Without room for the checkpoint the log stays as it is, and so does the rest of its record:
        it may be used again before it is emptied. **safety** The mark comes last. If it were taken
        back, a power failure could bring it back.
        """
        is_offline = bool(self._health.offline_reason)
        with self._health.changing("resetting"):
            self._storage.look_for_folder()
            self._storage.make_folder()
        if not is_offline:
            # What the checkpoint says, and perhaps only it says durably. (A log that is offline may
            # not have been opened.)
            self.note_bounds(durable=True)
        if len(self._storage.segments) or is_offline:
            # The old one is not true any more. Its start stays: the mark may be torn.
            start = min(self._storage.checkpoint.log_start_offset, offset)
            self._save(LogCheckpoint(log_start_offset=start, recovery_point=start, segments=()))
        self._may_be_marked = True
        mark = Bounds(offset, offset, Mark.EMPTYING)
        with self._health.changing("resetting"):
            self._offsets.replace_refused(mark)
            self._offsets.write_end(0)
            self._offsets.write_bounds(mark)
        with self._health.must_succeed("resetting"):  # The next start may empty the log by now.
            self._offsets.write_bounds(mark, durable=True)
            self._storage.sync_directories()


def _noted(led: LedEpoch) -> int:
    """A leader epoch as the offsets file has it."""
    return max(led.leader_epoch, 0)
