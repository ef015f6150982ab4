"""The files of one log: which exist, which of them are synced, and what the checkpoint says.

Knows nothing of epochs, watermarks or failure policy: the commit log, which owns this object, does.
After any change, even an interrupted one, recovery finds the log as it was before or after the
change.

Two lists say what must be synced. The loop thread adds an entry only *after* it has written the
data. `sync`, on the flusher thread, empties the lists only *after* its caller has chosen the offset
to reach. So nothing below that offset is missed. **safety** An entry goes only once it is synced:
if its file could not even be opened, for lack of descriptors, the next `sync` does it.

Methods raise OSError, and CorruptBatchError where they read.
"""

from __future__ import annotations

from dataclasses import replace

from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import INDEX_SUFFIX, LOG_SUFFIX, base_offset_of
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import Encryption
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.producers import Producers
from jetstream_server.log.producers_file import write_producers
from jetstream_server.log.recovery import Recovered
from jetstream_server.log.segment import Segment
from jetstream_server.log.segments import Segments
from jetstream_server.log.state_files import write_log_checkpoint

WRITE_BYTES = 1 << 20
"""Bytes of one write when data is written again."""


class LogStorage:
    """See the module. `checkpoint` is the one on disk, as far as it can be trusted."""

    __slots__ = (
        "_disk", "_encryption", "_exists", "_has_dropped", "_is_checkpoint_in_doubt",
        "_is_in_doubt", "_offsets", "_retired", "_unsynced_directories", "_unsynced_segments",
        "checkpoint", "compaction", "directory", "has_compaction",
        "has_lost_compaction", "interval_bytes", "recovery_point", "rewriting", "segments",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, directory: str, interval_bytes: int, recovered: Recovered,
        offsets: OffsetsFile, encryption: Encryption | None = None,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._encryption = encryption
        self._offsets = offsets
        self.rewriting: set[int] = set()
        """Base offsets of the segments that compaction or a repair may swap at any moment."""
        self._exists = recovered.exists
        self.interval_bytes = interval_bytes
        self.directory = directory
        self.segments = Segments(recovered.segments)
        self.checkpoint = recovered.checkpoint
        self.recovery_point = recovered.checkpoint.recovery_point
        """The highest one that the checkpoint on disk may have: a write of it that failed may have
        replaced the file."""
        self.compaction = recovered.compaction
        """The state of compaction, as recovery found it."""
        self.has_compaction = recovered.has_compaction
        """Whether the file `compaction` was written."""
        self.has_lost_compaction = recovered.has_lost_compaction
        self._unsynced_segments = recovered.segments[recovered.unsynced_from : -1]
        self._unsynced_directories: list[str] = []
        self._is_in_doubt = recovered.is_in_doubt
        self._has_dropped = False  # `_drop_after` has removed files, and not synced the folder yet
        self._retired: list[Segment] = []  # out of the log; their files are still there
        if recovered.unsynced_from < len(recovered.segments):
            self._unsynced_directories.append(directory)
        recorded = recovered.recorded
        # A reset marks the log after its checkpoint is durable.
        self._is_checkpoint_in_doubt = recovered.is_in_doubt and not recorded.is_being_emptied
        if recovered.exists and (recorded.flushed_offset == 0 or recorded.is_being_emptied):
            # **safety** Perhaps nothing has synced the name of the folder itself yet: the process
            # may have died right after making it, before it held a segment. (A reset notes as
            # flushed where the log begins anew, before that.)
            self._unsynced_directories.append(self._parent)

    @property
    def _parent(self) -> str:
        return self.directory.rpartition("/")[0]

    @property
    def has_sealed_unsynced(self) -> bool:
        return bool(self._unsynced_segments)

    @property
    def has_retired(self) -> bool:
        """Whether files of retired segments are still there."""
        return bool(self._retired)

    def begin_segment(self, base_offset: int) -> Segment:
        """Begin a new last segment, and seal the one before."""
        sealed = self.segments.last
        self.make_folder()
        segment = Segment.create(self._disk, self.directory, base_offset, self.interval_bytes)
        self._unsynced_directories.append(self.directory)
        if sealed is not None:
            sealed.save_index()
            self._unsynced_segments.append(sealed)
        self.segments.append(segment)
        return segment

    def look_for_folder(self) -> None:
        """Check whether another process removed the folder, or the file beside it, before the log
        is begun anew. **safety** A folder that was made in part has to be synced: it stays new."""
        if not (self._disk.exists(self.directory) and self._disk.exists(self._offsets.path)):
            self._exists = False

    def make_folder(self) -> None:
        """Make the folder before anything is written to it: an empty stream has none."""
        if not self._exists:
            if not self._disk.exists(self.directory):
                self._disk.make_directory(self.directory)
            self._offsets.create()
            self._exists = True
            self._unsynced_directories.append(self._parent)

    # Compaction.

    def sealed_and_synced(self) -> list[Segment]:
        """The segments whose files do not change any more, unless compaction swaps them."""
        unsynced = self._unsynced_segments[:1]
        sealed = self.segments.sealed
        return sealed[: sealed.index(unsynced[0])] if unsynced and unsynced[0] in sealed else sealed

    def swap(
        self, base_offset: int, size: int, size_after: int, path: str, index_path: str
    ) -> bool:
        """Replace a sealed segment by the file at `path`; False when there is no such segment of
        `size` bytes. Durable once the folder is synced."""
        found = [s for s in self.segments.sealed if s.base_offset == base_offset and s.size == size]
        if not found:
            return False
        old = found[0]
        new = Segment(
            self._disk, self.directory, base_offset, size_after, old.next_offset,
            interval_bytes=self.interval_bytes,
        )  # fmt: skip
        old.is_gone = True  # First: from now on an open may get the new file.
        try:
            old.remove_index()
            self._disk.rename(path, old.path)
        except OSError:
            old.is_gone = False
            raise
        self.segments.replace(old, new)
        self._disk.rename(index_path, new.index_path)
        return True

    # Syncing.

    def is_synced(self) -> bool:
        """Whether everything before the last segment is synced."""
        return not self._unsynced_segments and not self._unsynced_directories

    def sync(self, last: Segment, flushed_offset: int) -> None:
        """Sync everything up to and in `last`, which was the last segment when this began.
        flushed_offset: below it everything is synced."""
        if self._is_in_doubt:
            self.write_again(flushed_offset)
            self._is_in_doubt = False
        while self._unsynced_segments:
            self._disk.fsync(self._unsynced_segments[0].path)
            del self._unsynced_segments[0]
        self._disk.fsync(last.path)
        self.sync_directories()

    def sync_directories(self) -> None:
        """Sync the names of all new files."""
        while self._unsynced_directories:
            # **safety** Forgotten only then: a log that is begun anew after a failure needs it too.
            self._disk.fsync_directory(self._unsynced_directories[0])
            del self._unsynced_directories[0]

    def sealed_below(self, offset: int) -> tuple[tuple[int, int, int], ...]:
        """Base offset, next offset and bytes of each sealed segment wholly below `offset`; bytes is
        -1 for a segment that is being rewritten."""
        return tuple(
            (s.base_offset, s.next_offset, -1 if s.base_offset in self.rewriting else s.size)
            for s in self.segments.sealed
            if s.next_offset <= offset
        )

    def save(self, checkpoint: LogCheckpoint, producers: Producers, leader_epoch: int) -> None:
        """Write the checkpoint durably if it says anything new, or if the file may say something
        else. Before it, write what de-duplication remembered at its recovery point. leader_epoch:
        of the last record below that point."""
        if checkpoint != self.checkpoint or self._is_checkpoint_in_doubt:
            self._is_checkpoint_in_doubt = True  # From now on the files may say something else.
            if checkpoint.producers:
                write_producers(
                    self._disk, self.directory, producers, checkpoint.recovery_point, leader_epoch,
                    self._encryption,
                )  # fmt: skip
            self._write_checkpoint(checkpoint)

    def unmark_clean(self) -> None:
        """Remove the mark of a clean close from the checkpoint."""
        if self.checkpoint.clean_size >= 0:
            self._write_checkpoint(replace(self.checkpoint, clean_size=-1))

    def _write_checkpoint(self, checkpoint: LogCheckpoint) -> None:
        self.recovery_point = max(self.recovery_point, checkpoint.recovery_point)
        self._is_checkpoint_in_doubt = True
        write_log_checkpoint(self._disk, self.directory, checkpoint)
        self.checkpoint, self.recovery_point = checkpoint, checkpoint.recovery_point
        self._is_checkpoint_in_doubt = False

    # Removing. Durable on return, except where stated.

    def cut(self, segment: Segment, position: int, log_end_offset: int) -> None:
        """Drop everything from `position` of `segment` on. log_end_offset: the base offset of the
        batch that begins there. **safety** If it fails, the segment ends there all the same, as the
        log does: `drop_damaged` cuts the file. If it lacks descriptors, call it again."""
        segment.ends_at(position, log_end_offset)
        self._drop_after(segment.base_offset)
        segment.truncate(position, log_end_offset)
        self._disk.fsync(segment.path)

    def retire_before(self, offset: int) -> None:
        """Take the segments wholly below `offset` out of the log, oldest first, except the last one
        and those that await their sync. No I/O: `remove_retired` removes the files."""
        unsynced = self._unsynced_segments[:1]
        if unsynced:
            offset = min(offset, unsynced[0].base_offset)
        for segment in self.segments.drop_before(offset):
            segment.is_gone = True
            self._retired.append(segment)

    def remove_retired(self, below: int | None = None) -> None:
        """Remove the files of retired segments, oldest first; below: only those that end there or
        before. **safety** Record the log start before.

        The removal is not synced: a file that comes back after a power failure is removed again.
        """
        while self._retired and (below is None or self._retired[0].next_offset <= below):
            self._retired[0].remove()
            self._retired.pop(0)

    def restart_at(self, offset: int) -> None:
        """Remove all segments, and begin one at `offset`. The checkpoint must promise nothing by
        then. **safety** No segment is in the log any more, even if it fails: it may be revived."""
        self._drop_after(-1)
        self.remove_retired()
        self._remove_strays()  # What an earlier failed attempt has left.
        self._is_in_doubt = False
        self.begin_segment(offset)
        self.sync_directories()

    def drop_damaged(self) -> None:
        """Remove the files that recovery left out of the segments because of damage."""
        self.remove_retired()
        self._remove_strays()
        last = self.segments.last
        if last is not None:
            last.truncate(*last.end)
            self._disk.fsync(last.path)
        self._disk.fsync_directory(self.directory)

    def write_again(self, offset: int) -> None:
        """Write and sync everything from `offset` on once more. **safety** After a failed fsync the
        kernel takes pages for clean that it has not written, and no later fsync writes them."""
        for segment in self.segments.all:
            if segment.next_offset <= offset:
                continue
            try:
                position = segment.locate(offset)[0] if segment.base_offset < offset else 0
            except CorruptBatchError:
                position = 0
            for start in range(position, segment.size, WRITE_BYTES):
                data = segment.read(start, min(WRITE_BYTES, segment.size - start))
                self._disk.write(segment.path, start, (data,))
            self._disk.fsync(segment.path)

    def _remove_strays(self) -> None:
        """Remove the files of segments that are not in the log, newest first."""
        if not self._exists:
            return
        kept = self.segments.base_offsets
        for name in reversed(self._disk.list_directory(self.directory)):
            for suffix in (LOG_SUFFIX, INDEX_SUFFIX):
                base_offset = base_offset_of(name, suffix)
                if base_offset is not None and base_offset not in kept:
                    self._disk.remove(f"{self.directory}/{name}")

    def delete(self) -> None:
        """Remove every file and the folder."""
        self.segments = Segments([])
        self._retired.clear()
        # First: otherwise what a crash leaves would look like a lost folder.
        self._offsets.delete()
        if self._disk.exists(self.directory):
            for name in reversed(self._disk.list_directory(self.directory)):
                self._disk.remove(f"{self.directory}/{name}")
            self._disk.remove_directory(self.directory)

    def _drop_after(self, offset: int) -> None:
        """Remove the segments that begin after `offset`, newest first: no crash leaves a gap."""
        dropped = self.segments.drop_after(offset)
        self._has_dropped |= bool(dropped)
        self._forget(dropped)
        for segment in dropped:
            segment.is_gone = True  # First: another segment may soon have a file of that name.
        for segment in reversed(dropped):
            segment.remove()
        if self._has_dropped:
            self._disk.fsync_directory(self.directory)
            self._has_dropped = False

    def _forget(self, dropped: list[Segment]) -> None:
        self._unsynced_segments = [s for s in self._unsynced_segments if s not in dropped]
