"""Logs with the gaps that compaction leaves: appended, read, cut and recovered."""

from __future__ import annotations

import errno

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import DivergedError, StorageError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk
from tests.support.log_batches import read_all, stamped
from tests.support.log_disk import FaultyDisk, MemoryDisk

GAPPY = [(0, 3), (10, 2), (12, 1), (30, 5)]
"""Base offset and number of records of the batches of `gappy_log`; it ends at 35."""


def after_gap(base_offset: int, records: int, epoch: int = 0) -> bytes:
    encoded = encode([b"v%d" % i for i in range(records)], b"a", after_gap=True)
    encoded.stamp(base_offset, epoch, 0)
    return encoded.to_bytes()


def gappy_log(disk: Disk, config: LogConfig | None = None) -> CommitLog:
    log = CommitLog.open(disk, "/17", config, clean=False)
    for base, records in GAPPY:
        data = after_gap(base, records) if base not in (0, 12) else stamped(base, records=records)
        log.append_replica(data, gaps_below=35)
    return log


def bases(log: CommitLog, start: int) -> list[int]:
    return [batch.header.base_offset for batch in read_all(log, start=start)]


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
@pytest.mark.parametrize("segment_bytes", [100, 300, 1 << 20])
@pytest.mark.parametrize("interval", [1, 4096])
def test_a_read_within_a_gap_gives_what_is_after_it(
    bytes_max: int, segment_bytes: int, interval: int
) -> None:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=interval)
    log = gappy_log(MemoryDisk(), config)
    for offset in range(35):
        expected = [base for base, records in GAPPY if base + records > offset]
        found = read_all(log, start=offset, bytes_max=bytes_max)
        assert [batch.header.base_offset for batch in found] == expected


def test_a_batch_after_a_gap_is_not_served_before_it_is_committed() -> None:
    log = gappy_log(MemoryDisk())
    assert log.read(5, 1 << 20, 11) is None
    slice_ = log.read(5, 1 << 20, 12)
    assert slice_ is not None
    assert (slice_.base_offset, slice_.next_offset) == (10, 12)


@pytest.mark.parametrize(
    ("data", "gaps_below"),
    [
        (stamped(10), 100),
        (after_gap(10, 1), 0),
        (after_gap(10, 1), 9),
        (after_gap(2, 1), 100),
    ],
    ids=["unmarked", "never compacted", "beyond the high watermark", "backwards"],
)
def test_any_other_gap_is_refused(data: bytes, gaps_below: int) -> None:
    log = CommitLog.open(MemoryDisk(), "/17", clean=False)
    log.append_replica(stamped(0, records=3))
    with pytest.raises(DivergedError):
        log.append_replica(data, gaps_below=gaps_below)
    assert log.log_end_offset == 3


def test_a_gap_up_to_the_high_watermark_is_taken() -> None:
    log = CommitLog.open(MemoryDisk(), "/17", clean=False)
    log.append_replica(after_gap(10, 1), gaps_below=10)
    assert log.log_end_offset == 11


@pytest.mark.parametrize("segment_bytes", [100, 1 << 20])
@pytest.mark.parametrize(
    ("offset", "end"), [(0, 0), (3, 3), (7, 3), (10, 3), (11, 3), (12, 12), (20, 13), (35, 35)]
)
def test_truncation_within_a_gap_cuts_to_the_batch_before_it(
    offset: int, end: int, segment_bytes: int
) -> None:
    disk = MemoryDisk()
    log = gappy_log(disk, LogConfig(segment_bytes=segment_bytes))
    assert log.truncate(offset) == log.log_end_offset == end
    log.append_replica(stamped(end, records=2))
    log.flush()
    again = CommitLog.open(disk.killed(), "/17", clean=False)
    assert again.offline_reason == ""
    assert again.log_end_offset == end + 2
    assert bases(again, 0) == [base for base, records in GAPPY if base + records <= end] + [end]


@pytest.mark.parametrize(
    ("operation", "path_ends", "committed_below"),
    [("truncate", ".log", 30), ("fsync", ".log", 13), ("write_atomic", "compaction", 13)],
)
def test_a_log_whose_cut_at_a_gap_failed_knows_after_a_restart_that_its_gaps_are_committed(
    operation: str, path_ends: str, committed_below: int
) -> None:
    """If it is elected, no follower would take them otherwise."""
    disk = FaultyDisk(MemoryDisk())
    log = gappy_log(disk)
    log.flush()
    assert log.committed_below == 30
    disk.fail(operation, path_ends, errno.EIO)
    for failing in (lambda: log.truncate(30), log.salvage):
        with pytest.raises(StorageError):
            failing()
        assert log.offline_reason
    disk.heal()
    again = CommitLog.open(disk, "/17", clean=False)
    assert [base for base in bases(again, 0) if base in (10, 30)][-1] <= again.committed_below
    assert again.committed_below == committed_below


@pytest.mark.parametrize("segment_bytes", [100, 1 << 20])
def test_gaps_are_no_damage_to_recovery(segment_bytes: int) -> None:
    disk = MemoryDisk()
    gappy_log(disk, LogConfig(segment_bytes=segment_bytes))
    again = CommitLog.open(disk.killed(), "/17", clean=False)
    assert again.offline_reason == ""
    assert again.log_end_offset == 35
    assert bases(again, 0) == [base for base, _ in GAPPY]


def test_a_gap_that_no_batch_admits_is_damage() -> None:
    disk = MemoryDisk()
    gappy_log(disk)
    path = f"/17/{0:020d}.log"
    data = disk.read_file(path)
    first = stamped(0, records=3)
    disk.truncate(path, 0)
    disk.write(path, 0, [first, stamped(20, records=1), data[len(first) :]])
    again = CommitLog.open(disk.killed(), "/17", clean=False)
    assert "where 3 is next" in again.offline_reason
