"""Small batches, stamped or not, and what a log holds, for tests of the log."""

from __future__ import annotations

from jetstream_protocol.batch import Batch, EncodedBatch, encode, iterate
from jetstream_server.log.commit_log import CommitLog


def batch(*values: bytes, records: int = 1) -> EncodedBatch:
    """A batch of those values, or of `records` short ones."""
    return encode(list(values) or [b"value %d" % i for i in range(records)], b"a.b")


def stamped(
    base_offset: int, *values: bytes, epoch: int = 0, timestamp: int = 0, records: int = 1
) -> bytes:
    """The bytes of a batch as a leader stored it."""
    encoded = batch(*values, records=records)
    encoded.stamp(base_offset, epoch, timestamp)
    return encoded.to_bytes()


def read_all(log: CommitLog, *, start: int | None = None, bytes_max: int = 1 << 20) -> list[Batch]:
    """Every batch from `start` (the log start) to the log end."""
    offset = log.log_start_offset if start is None else start
    found: list[Batch] = []
    while True:
        slice_ = log.read(offset, bytes_max, log.log_end_offset)
        if slice_ is None:
            return found
        data = log.pread(slice_)
        found.extend(iterate(data, file=slice_.path))
        assert found[-1].header.next_offset == slice_.next_offset
        offset = slice_.next_offset


def values_of(log: CommitLog) -> list[bytes | None]:
    """The value of every record, in order."""
    return [value for found in read_all(log) for value in found.values()]
