"""The problems that an examination of log files can find.

*Repairable* findings are repaired when the server next opens the log, and cost no record that was
ever flushed. The others are **damage**: the server keeps the bytes and takes the log offline.
Without sound metadata it does not start.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    TORN_TAIL = "torn_tail"  # an append that was cut short, with nothing valid after it
    CORRUPT_BATCH = "corrupt_batch"  # a bad batch that no torn write explains
    BAD_COLUMNS = "bad_columns"  # both CRCs are right, the columns are not: never written by us
    OFFSET_GAP = "offset_gap"  # a valid batch or segment that does not begin at the next offset
    EPOCH_REGRESSION = "epoch_regression"  # a leader epoch below the one before
    TIMESTAMP_REGRESSION = "timestamp_regression"  # an append timestamp below the one before
    MISSING_RECORDS = "missing_records"  # what is on record says that more was there
    MISSING_INDEX = "missing_index"  # a sealed segment without one
    BAD_INDEX = "bad_index"  # damaged, unreadable, of another segment, pointing at no batch
    BAD_CHECKPOINT = "bad_checkpoint"  # damaged, of another log, or contradicting the batches
    BAD_OFFSETS = "bad_offsets"  # the offsets file is damaged: the checkpoint says what it can
    BAD_IDENTITY = "bad_identity"  # meta.json or group.json: missing, unreadable, contradicting
    BAD_METADATA = "bad_metadata"  # a record of the metadata that nothing valid explains
    MISSING_METADATA = "missing_metadata"  # the journal, the snapshot, or entries between them
    BAD_SYNCED = "bad_synced"  # nothing says what of the metadata's journal had been synced
    BAD_RUNS = "bad_runs"  # `runs` is damaged or another folder's: it vouches for no log
    LEFTOVER_FILE = "leftover_file"  # an atomic write that never took place
    UNKNOWN_FILE = "unknown_file"  # no file of ours: nothing reads it
    UNREADABLE = "unreadable"  # the operating system refuses to read it


_REPAIRABLE = frozenset(
    {
        Kind.TORN_TAIL,
        Kind.MISSING_INDEX,
        Kind.BAD_INDEX,
        Kind.BAD_CHECKPOINT,
        Kind.BAD_OFFSETS,
        Kind.BAD_RUNS,
        Kind.BAD_SYNCED,
        Kind.LEFTOVER_FILE,
        Kind.UNKNOWN_FILE,
    }
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: its file, the byte, the kind, and a sentence about it."""

    file: str
    position: int
    kind: Kind
    message: str

    @property
    def repairable(self) -> bool:
        return self.kind in _REPAIRABLE
