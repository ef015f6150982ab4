"""Reads the bytes of a slice, and says why they cannot be read."""

from __future__ import annotations

from typing import Protocol

from jetstream_protocol.errors import (
    CorruptBatchError,
    JetstreamError,
    OffsetOutOfRangeError,
    RecordsDamagedError,
    StorageError,
    UnavailableError,
)
from jetstream_server.disk_errors import storage_error
from jetstream_server.log.disk import Disk
from jetstream_server.log.segment import LogSlice


class Bounded(Protocol):
    """The part of a log that reading needs."""

    log_start_offset: int
    log_end_offset: int


class SliceReader:
    """Reads slices of one log. For any thread."""

    __slots__ = ("_disk", "_log")

    def __init__(self, disk: Disk, log: Bounded) -> None:
        self._disk = disk
        self._log = log

    def pread(self, slice_: LogSlice) -> bytes:
        """See CommitLog.pread."""
        try:
            data = self._disk.pread(slice_.path, slice_.position, slice_.length)
            slice_.check_is_there()
        except OSError as error:
            if slice_.last_epoch is not None:
                raise UnavailableError("the lake's records are not kept here any more") from error
            failure = self.read_error(error, slice_.path, slice_.next_offset)
            if slice_.is_gone and isinstance(failure, StorageError):
                failure = UnavailableError("the records were cut or compacted while they were read")
            raise failure from error
        if len(data) != slice_.length:
            raise CorruptBatchError("the file ends early", slice_.path, slice_.position + len(data))
        return data

    def read_error(self, error: OSError, path: str, next_offset: int) -> JetstreamError:
        """The error to raise when records below `next_offset` could not be read."""
        if isinstance(error, FileNotFoundError) and next_offset <= self._log.log_start_offset:
            return self.removed_error()
        return storage_error(error, f"reading {path}")

    def missing_error(self, offset: int, base_offsets: list[int]) -> JetstreamError:
        """The error to raise for an offset before the first segment. base_offsets: of the segments;
        there are none while the log is emptied."""
        start, first_offset = self._log.log_start_offset, next(iter(base_offsets), offset)
        if not start <= offset < first_offset:
            return self.removed_error()  # By now.
        message = f"the records from offset {start} to {first_offset - 1} are missing"
        return RecordsDamagedError(message, start, first_offset)

    def removed_error(self) -> OffsetOutOfRangeError:
        """The error for records that retention removed meanwhile."""
        return OffsetOutOfRangeError(
            "the records were removed while they were read",
            self._log.log_start_offset,
            self._log.log_end_offset,
        )
