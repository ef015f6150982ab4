"""Compaction of one log: which segments a pass covers, how they are swapped, and its state.

    plan ──> Task ──(another process: rewrite_pass.run)──> swap for each segment ──> finish

A swap is one rename over the segment's file, on the thread that owns the log: a lookup sees the old
file or the new one. A slice chosen before the swap still names the old file. After opening the
file, its reader checks `LogSlice.is_gone` to learn whether it may have opened the wrong one.

Crash policy. Before the rename the log is unchanged and the new files are temporary files, which
recovery removes. After it, the segment holds all that had to stay. The state is written last, once
the renames are synced: a pass that did not get so far is repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace

from jetstream_protocol.errors import StorageError, StorageFullError, UnavailableError
from jetstream_protocol.logfiles.names import COMPACTION_NAME, index_name, segment_name
from jetstream_server.log.compaction.rewrite_pass import Rewritten, Source, Task, temporary_name
from jetstream_server.log.compaction.state import KIND, CompactionState, read_compaction
from jetstream_server.log.disk import Disk
from jetstream_server.log.encryption import Encryption
from jetstream_server.log.health import Health
from jetstream_server.log.state_files import owner_of, write_state
from jetstream_server.log.storage import LogStorage


class LogCompaction:
    """Owned by the log's thread, except `finish`. Methods raise StorageError."""

    __slots__ = (
        "_disk", "_encryption", "_found_end", "_health", "_is_in_doubt", "_mutex", "_save",
        "_state", "_storage", "_token",
    )  # fmt: skip

    def __init__(
        self,
        disk: Disk,
        storage: LogStorage,
        health: Health,
        mutex: AbstractContextManager[object],
        save_checkpoint: Callable[[], None],
        encryption: Encryption | None = None,
    ) -> None:
        self._disk = disk
        self._encryption = encryption
        self._save = save_checkpoint
        self._storage = storage
        self._health = health
        self._mutex = mutex
        self._state = storage.compaction  # None: it could not be read, and is tried again.
        self._token = ""  # of the pass under way, unless the log was cut since it was planned
        self._is_in_doubt = storage.has_lost_compaction
        """A write or the first read of the state has failed: the file may say something else."""
        self._found_end: int | None = None
        """Where recovery found the log end, or an append has failed, until the file says nothing of
        later records."""

    @property
    def state(self) -> CompactionState:
        """The state; read again if reading it has failed before. Raises StorageError."""
        if self._state is None:
            self._state = self._as_found(read_compaction(self._disk, self._storage.directory))
        if self._state.undecrypted and self._encryption is not None:
            # The file says so once it is written again: a restart before finds the same.
            self._state = self._state.with_keys(self._encryption.keys.ids)
        return self._state

    def _as_found(self, state: CompactionState) -> CompactionState:
        """The state of the log as recovery found it."""
        if self._found_end is None:
            return state
        cut = state.cut_to(self._found_end)
        self._is_in_doubt |= cut != state
        return cut

    @property
    def waits_for_removals(self) -> bool:
        """Whether files of retired segments are still there: see `sources`."""
        return self._storage.has_retired

    def sources(self, bound_offset: int) -> tuple[Source, ...]:
        """The sealed segments wholly below `bound_offset` (what is committed and flushed). Empty
        while files of retired segments are there.

        **safety** A kill would bring those segments back, with records whose tombstones are gone.
        """
        if self._storage.has_retired:
            return ()
        return tuple(
            Source(segment.base_offset, segment.next_offset, segment.size)
            for segment in self._storage.sealed_and_synced()
            if segment.next_offset <= bound_offset
        )

    def plan(
        self,
        sources: tuple[Source, ...],
        *,
        token: str,
        tombstones_below: int,
        kept_base_offsets: frozenset[int],
    ) -> Task:
        """A pass over `sources`. token: unique among the passes on this log. tombstones_below:
        tombstones before it are removed."""
        self._token = token
        end = sources[-1].next_offset
        return Task(
            directory=self._storage.directory,
            token=token,
            sources=sources,
            cleaned_to=self.state.cleaned_to,
            tombstones_below=tombstones_below,
            kept_base_offsets=tuple(sorted(at for at in kept_base_offsets if at < end)),
            index_interval_bytes=self._storage.interval_bytes,
        )

    def begin(self, task: Task) -> None:
        """Record what the pass may remove, before its first swap. Blocks: call it in a thread.

        **safety** After a restart, a leader with this log must know that its gaps are committed;
        otherwise no follower would accept them. It must also know which tombstones may be missing;
        otherwise a follower would keep the records that they deleted.
        """
        with self._mutex:
            self._require_uncut(task)
            state = self.state
            begun = replace(
                state,
                committed_below=max(state.committed_below, task.sources[-1].next_offset),
                tombstones_gone_below=max(state.tombstones_gone_below, task.tombstones_below),
            )
            if self._is_new(begun):
                self._write(begun)
            # Otherwise a segment whose size differs from the checkpoint would count as damage.
            self._storage.rewriting.update(_bases(task))
            self._save()

    @property
    def committed_below(self) -> int:
        """The offset below which all records were committed; 0: unknown."""
        try:
            return self.state.committed_below
        except StorageError:
            return 0

    def swap(self, task: Task, rewritten: Rewritten) -> bool:
        """Replace a segment's file by its successor. Returns False, and removes the successor, when
        the segment is not in the log any more, or has changed.

        Raises UnavailableError while files of retired segments are there: see `sources`.
        """
        self._health.require_online()
        if self._storage.has_retired:
            raise UnavailableError("segments in front are being removed")
        folder = self._storage.directory
        names = (segment_name(rewritten.base_offset), index_name(rewritten.base_offset))
        path, index_path = (f"{folder}/{temporary_name(name, task.token)}" for name in names)
        size = next(s.size for s in task.sources if s.base_offset == rewritten.base_offset)
        with self._health.changing("swapping a compacted segment into"):
            if self._token == task.token and self._storage.swap(
                rewritten.base_offset, size, rewritten.size, path, index_path
            ):
                return True
            for leftover in (path, index_path):
                self._disk.remove(leftover)
        return False

    def discard(self, task: Task) -> None:
        """Remove the files of a failed pass."""
        self._storage.rewriting.difference_update(_bases(task))
        folder = self._storage.directory
        with self._health.reading():
            for name in self._disk.list_directory(folder):
                if name.endswith(temporary_name("", task.token)):
                    self._disk.remove(f"{folder}/{name}")

    def finish(self, task: Task, state: CompactionState) -> None:
        """Record the result of a pass that has ended. Blocks: call it in a thread.

        Raises UnavailableError if the log was cut during the pass: records appended since are not
        clean, so the result is discarded.
        """
        with self._mutex:
            self._health.require_online()
            self._require_uncut(task)
            with self._health.repeatable("syncing compacted segments of"):
                self._disk.fsync_directory(self._storage.directory)
            self._storage.rewriting.difference_update(_bases(task))
            now = self.state
            self._write(
                replace(
                    state,
                    tombstones_gone_below=now.tombstones_gone_below,
                    copied_under=now.copied_under,
                    committed_below=now.committed_below,
                )
            )
            try:
                self._save()
            except StorageFullError:
                pass  # Until the next one the sizes of these segments are not known.

    def _require_uncut(self, task: Task) -> None:
        if self._token != task.token:
            raise UnavailableError("the log was cut while it was compacted")

    def abandon(self) -> None:
        """Discard the running pass, which has read bad bytes: it swaps no more segments."""
        self._token = ""

    def note_repaired(self, start_offset: int) -> None:
        """Note that records from this offset on come from another log. That log may hold records
        that this one had removed."""
        self._token = ""  # Even if nothing is clean yet: the pass under way would call them clean.
        with self._mutex:
            state = self.state.dirty_from(start_offset)
            if self._is_new(state):
                self._write(state)

    def cutting(self) -> None:
        """Discard the running pass: the log is about to be cut. Raises StorageError if the state,
        which is cut once the log is, cannot be read."""
        self._token = ""
        self._state = self.state

    def cut_to(self, log_end_offset: int) -> None:
        """Note that the log was cut at this offset: later records are not clean. **safety** Nor are
        they committed: call it before anything follows, and once the log is cut. A log that is not
        cut after all has to know its gaps."""
        self._token = ""
        state = self.state.cut_to(log_end_offset)
        if self._is_new(state):
            self._write(state)

    def forget(self) -> None:
        """Forget everything, because the log was emptied."""
        self._token = ""
        try:
            is_new = self._is_new(CompactionState())
        except StorageError:
            is_new = True  # An unreadable state is not needed any more.
        if is_new:
            self._write(CompactionState())

    def lead_from(self, log_end_offset: int) -> None:
        """Begin a leadership at this log end.

        After an unclean election the log from which this one was copied may have continued. What
        this log records about that part does not hold any more.
        """
        with self._mutex:
            state = self.state.cut_to(log_end_offset)
            state = replace(
                state,
                copied_under=min(state.copied_under, log_end_offset),
            )
            if self._is_new(state):
                self._token = ""
                self._state = state  # So it is, whatever the disk does.
                self._write(state)

    def note_copied_under(self, tombstones_gone_below: int) -> None:
        """Note that the copied log's leader has removed tombstones below this offset."""
        state = replace(self.state, copied_under=tombstones_gone_below)
        if self._is_new(state):
            with self._mutex:
                self._begin(state)

    def note_committed(self, offset: int) -> None:
        """Note that records below this offset were committed. Call it before gaps up to this offset
        enter the log."""
        if offset > self.state.committed_below:
            with self._mutex:
                self._begin(replace(self.state, committed_below=offset))

    def not_appended(self, log_end_offset: int) -> None:
        """Note that an append has failed: nothing from this offset on is in the log.

        **safety** After an unclean election other records may come there. These do not count as
        committed because the missing ones did.
        """
        with suppress(StorageError), self._mutex:
            if self.state.committed_below > log_end_offset or self._is_in_doubt:
                self._state = self.state.cut_to(log_end_offset)
                self._is_in_doubt = True  # The file still says more.
                self._found_end = log_end_offset  # If it goes on to say so, `settle` tries again.
                self._write(self._state)
                self._found_end = None

    def found_end(self, log_end_offset: int) -> None:
        """Note where recovery found the log end, and write a state that recovery rebuilt or cut.

        If that is not possible at the moment, because the disk is full or the file could not be
        read, `settle` does it.
        """
        self._found_end = log_end_offset
        if self._state is None:
            return
        self._state = self._as_found(self._state)
        # What was rebuilt is valid for this run; the next start rebuilds it again.
        excused = StorageError if self._storage.has_lost_compaction else StorageFullError
        with suppress(excused):
            self.settle()

    def settle(self) -> None:
        """**safety** Call it before an append: after another start, the new records must not count
        as those that the file knew as committed there. Raises StorageFullError, too."""
        if self._found_end is not None:
            with self._mutex:
                state = self.state  # Only now: a pass may have begun or ended meanwhile.
                if self._is_in_doubt:
                    self._write(state)
                self._found_end = None

    def _is_new(self, state: CompactionState) -> bool:
        """Whether the file says, or may say, something else."""
        return state != self.state or self._is_in_doubt

    def _begin(self, state: CompactionState) -> None:
        """Write the state, perhaps for the first time in this log. From then on the checkpoint says
        that the file exists, so that its loss is noticed."""
        self._write(state)
        if not self._storage.checkpoint.compaction:
            self._save()

    def _write(self, state: CompactionState) -> None:
        folder = self._storage.directory
        path = f"{folder}/{COMPACTION_NAME}"
        with self._health.changing("making the folder"):
            self._storage.make_folder()
        self._is_in_doubt = True
        write_state(self._disk, path, KIND, owner_of(folder), state.to_dict())
        self._is_in_doubt = False
        self._storage.has_compaction = True
        self._state = state


def _bases(task: Task) -> list[int]:
    return [source.base_offset for source in task.sources]
