"""Reads the state files of a log once, when it is opened, and notes which of them are damaged.

A damaged file stops nothing: `damaged` says what the node does instead, and the node logs it. A
file that the device refuses to read is damaged too. **safety** It may be readable again at a later
start, when it does not fit the log any more: the checkpoint is removed, `producers` is compared
with the log anyway, and `compaction` is written anew before the log changes. Not so the offsets
file, without which the log is not opened: it alone says that a log is being emptied, or may lack
records, and where it ended in this boot of the machine. A flipped bit damages one of its slots.

**safety** A compacted log, or a copy of one, that lost its file must not be taken for a complete
log: its state is rebuilt from the batches (compaction/state.py). The checkpoint says whether there
was such a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from jetstream_protocol.errors import CorruptBatchError, StorageError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_protocol.logfiles.names import (
    CHECKPOINT_NAME,
    COMPACTION_NAME,
    OFFSETS_SUFFIX,
    PRODUCERS_NAME,
)
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.log.compaction.state import CompactionState, read_compaction, rebuilt
from jetstream_server.log.disk import Disk
from jetstream_server.log.offsets_file import read_offsets
from jetstream_server.log.segment import Segment
from jetstream_server.log.state_files import DamagedFile, is_refused, read_log_checkpoint

_SCAN: Final = "the whole log is scanned"
_CHECKPOINT: Final = "log start, flushed offset and log end are taken from the checkpoint"
_BATCHES: Final = "what was published in the last day is read again from the batches"
_COMPACT: Final = (
    "nothing counts as compacted, and replicas that are behind offset {} copy this log anew"
)


class RecoveredState:
    """See the module. names: the files in the log's folder."""

    __slots__ = (
        "_directory", "_disk", "_is_checkpoint_refused", "_names", "damaged", "has_lost_compaction",
    )  # fmt: skip

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self._disk = disk
        self._directory = directory
        self._names = names
        self._is_checkpoint_refused = False
        self.damaged: list[DamagedFile] = []
        self.has_lost_compaction = False
        """Whether the state of compaction had to be rebuilt."""

    def record(self, boot_id: str) -> Recorded:
        """The checkpoint and the offsets file. Raises OSError."""
        recorded = Recorded(self._checkpoint(), read_offsets(self._disk, self._directory), boot_id)
        if recorded.offsets_damage:
            path = self._directory + OFFSETS_SUFFIX
            self.damaged.append(DamagedFile(path, recorded.offsets_damage, _CHECKPOINT))
        return recorded

    def _checkpoint(self) -> LogCheckpoint | None:
        if CHECKPOINT_NAME not in self._names:
            return None
        try:
            return read_log_checkpoint(self._disk, self._directory)
        except CorruptBatchError as error:
            reason = error.reason
        except OSError as error:
            if not is_refused(error):
                raise
            reason, self._is_checkpoint_refused = str(error.strerror), True
        self._note(CHECKPOINT_NAME, reason, _SCAN)
        return None

    def remove_refused(self) -> None:
        """Remove the checkpoint if it could not be read. Call it once the log was found without it.
        Raises OSError."""
        if self._is_checkpoint_refused:
            self._disk.remove(f"{self._directory}/{CHECKPOINT_NAME}")
            self._disk.fsync_directory(self._directory)

    def compaction(
        self, checkpoint: LogCheckpoint | None, segments: Sequence[Segment]
    ) -> CompactionState | None:
        """The compaction state; None: it cannot be read at the moment. segments: what recovery
        found of the log. Raises OSError."""
        is_expected = checkpoint is not None and checkpoint.compaction
        reason = "the file is missing"
        if COMPACTION_NAME in self._names:
            try:
                return read_compaction(self._disk, self._directory)
            except CorruptBatchError as error:
                reason = error.reason
            except StorageError as error:
                if not is_refused(error.__cause__):
                    return None
                reason = error.message
        elif not is_expected:
            return CompactionState()
        state = rebuilt(segments)
        self.has_lost_compaction = True
        self._note(COMPACTION_NAME, reason, _COMPACT.format(state.tombstones_gone_below))
        return state

    def producers_damaged(self, reason: str) -> None:
        """Note the file `producers` as damaged. reason: why it is not trusted; "": it is
        trusted."""
        if reason:
            self._note(PRODUCERS_NAME, reason, _BATCHES)

    def _note(self, name: str, reason: str, instead: str) -> None:
        self.damaged.append(DamagedFile(f"{self._directory}/{name}", reason, instead))
