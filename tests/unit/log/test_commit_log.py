"""The log as its users see it, on the real disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from jetstream_protocol.batch import BatchHeader, decode_header
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    FencedEpochError,
    OffsetOutOfRangeError,
    StorageError,
)
from jetstream_protocol.logfiles import index_file
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from tests.support.log_batches import batch, read_all, stamped, values_of
from tests.support.log_disk import FaultyDisk
from tests.support.log_start import advance_log_start, delete_segments_before

LENGTH = batch(b"0000").length
FOUR_PER_SEGMENT = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=2 * LENGTH)


@pytest.fixture
def directory(tmp_path: Path) -> str:
    return str(tmp_path / "17")


@pytest.fixture
def log(os_disk: OsDisk, directory: str) -> CommitLog:
    return CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=False)


def append(log: CommitLog, count: int, *, epoch: int = 1) -> None:
    """`count` batches of one record, each naming its offset and appended at ten times that."""
    for _ in range(count):
        offset = log.log_end_offset
        log.append(batch(b"%04d" % offset), leader_epoch=epoch, timestamp_us=offset * 10)


def names(directory: str) -> list[str]:
    return sorted(path.name for path in Path(directory).iterdir())


# Appending


def test_log_without_a_folder_is_empty_and_makes_none(log: CommitLog, directory: str) -> None:
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (0, 0, 0)
    assert (log.size_bytes, log.segment_count, log.last_append_timestamp) == (0, 0, 0)
    assert log.read(0, 100, 100) is None
    assert log.flush() == 0
    assert log.offset_for_timestamp(0) is None
    log.close(clean=True)
    assert not Path(directory).exists()


def test_append_stamps_and_numbers_batches(log: CommitLog) -> None:
    assert log.append(batch(records=3), leader_epoch=5, timestamp_us=1000) == 0
    assert log.append(batch(records=2), leader_epoch=5, timestamp_us=1001) == 3
    assert log.log_end_offset == 5
    first, second = read_all(log)
    assert (first.header.base_offset, first.header.leader_epoch) == (0, 5)
    assert (second.header.base_offset, second.header.append_timestamp) == (3, 1001)
    assert list(second.offsets()) == [3, 4]


def test_append_timestamps_never_go_back(log: CommitLog) -> None:
    for timestamp in (50, 40, 60):
        log.append(batch(), leader_epoch=1, timestamp_us=timestamp)
    assert [b.header.append_timestamp for b in read_all(log)] == [50, 50, 60]
    assert log.last_append_timestamp == 60


def test_appended_is_not_flushed_until_it_is(log: CommitLog) -> None:
    append(log, 2)
    assert log.flushed_offset == 0
    assert log.flush() == 2
    assert log.flushed_offset == 2


def test_segment_is_sealed_when_the_next_batch_does_not_fit(log: CommitLog, directory: str) -> None:
    append(log, 9)
    assert log.segment_count == 3
    assert [n for n in names(directory) if n.endswith(".log")] == [
        "00000000000000000000.log", "00000000000000000004.log", "00000000000000000008.log",
    ]  # fmt: skip
    assert values_of(log) == [b"%04d" % i for i in range(9)]
    assert log.size_bytes == 9 * LENGTH


def test_batch_larger_than_a_segment_gets_one_of_its_own(log: CommitLog) -> None:
    append(log, 1)
    log.append(batch(b"x" * 5 * LENGTH), leader_epoch=1, timestamp_us=1)
    append(log, 1)
    assert log.segment_count == 3
    assert values_of(log) == [b"0000", b"x" * 5 * LENGTH, b"0002"]


def test_segment_is_sealed_by_age(os_disk: OsDisk, directory: str) -> None:
    log = CommitLog.open(os_disk, directory, LogConfig(segment_age_us=100), clean=False)
    for timestamp in (1000, 1099, 1100, 1150, 1200):
        log.append(batch(), leader_epoch=1, timestamp_us=timestamp)
    assert log.segment_count == 3


def test_sealing_begins_a_segment_unless_the_last_is_empty(log: CommitLog) -> None:
    log.seal()
    assert log.segment_count == 0
    append(log, 1)
    log.seal()
    log.seal()
    assert log.segment_count == 2
    append(log, 1)
    assert values_of(log) == [b"0000", b"0001"]


# Leader epochs


def test_epoch_begins_at_the_log_end_before_anything_is_appended(log: CommitLog) -> None:
    append(log, 2, epoch=1)
    log.start_epoch(4)
    assert log.epochs.entries == ((1, 0), (4, 2))
    log.start_epoch(5)
    assert log.epochs.entries == ((1, 0), (5, 2))


def test_older_epoch_can_neither_begin_nor_append(log: CommitLog) -> None:
    log.start_epoch(4)
    with pytest.raises(FencedEpochError):
        log.start_epoch(3)
    with pytest.raises(FencedEpochError):
        append(log, 1, epoch=3)
    assert log.log_end_offset == 0


def test_follower_takes_epochs_from_batches(log: CommitLog) -> None:
    log.append_replica(stamped(0, epoch=1) + stamped(1, epoch=1) + stamped(2, epoch=3))
    assert log.epochs.entries == ((1, 0), (3, 2))


# Following


def test_follower_stores_the_leaders_bytes(os_disk: OsDisk, tmp_path: Path, log: CommitLog) -> None:
    append(log, 11)
    follower = CommitLog.open(os_disk, str(tmp_path / "18"), FOUR_PER_SEGMENT, clean=False)
    while (slice_ := log.read(follower.log_end_offset, 3 * LENGTH, 11)) is not None:
        follower.append_replica(log.pread(slice_))
    assert [b.body for b in read_all(follower)] == [b.body for b in read_all(log)]
    assert [b.header for b in read_all(follower)] == [b.header for b in read_all(log)]
    assert follower.last_append_timestamp == log.last_append_timestamp
    assert follower.segment_count == log.segment_count


def test_follower_splits_what_it_got_over_segments(log: CommitLog) -> None:
    log.append_replica(b"".join(stamped(i, b"%04d" % i) for i in range(10)))
    assert log.segment_count == 3
    assert log.log_end_offset == 10
    assert values_of(log) == [b"%04d" % i for i in range(10)]


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (stamped(1), DivergedError),  # a gap
        (stamped(0) + stamped(0), DivergedError),
        (stamped(0, epoch=3) + stamped(1, epoch=2), DivergedError),  # an epoch that falls
        (stamped(0, epoch=8), DivergedError),  # newer than asked under
        (stamped(0)[:-1], CorruptBatchError),
        (stamped(0) + stamped(1)[:40], CorruptBatchError),
        (stamped(0) + b"\0" * 8, CorruptBatchError),
        (stamped(0)[:-16] + b"\1" + stamped(0)[-15:], CorruptBatchError),
    ],
)
def test_follower_refuses_what_does_not_continue_its_log_and_appends_none_of_it(
    log: CommitLog, data: bytes, error: type[Exception]
) -> None:
    with pytest.raises(error):
        log.append_replica(data, leader_epoch=7)
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    log.append_replica(stamped(0, epoch=7), leader_epoch=7)
    assert log.log_end_offset == 1


# Reading


def headers_of(log: CommitLog, *args: int) -> list[BatchHeader]:
    slice_ = log.read(*args)
    if slice_ is None:
        return []
    data, found, position = log.pread(slice_), [], 0
    while position < len(data):
        found.append(decode_header(data, position))
        position += found[-1].length
    assert (slice_.base_offset, slice_.next_offset) == (found[0].base_offset, found[-1].next_offset)
    return found


def test_read_begins_with_the_batch_that_holds_the_offset(log: CommitLog) -> None:
    log.append(batch(records=5), leader_epoch=1, timestamp_us=0)
    log.append(batch(records=5), leader_epoch=1, timestamp_us=0)
    for offset in range(5):
        assert headers_of(log, offset, 1 << 20, 10)[0].base_offset == 0
    assert headers_of(log, 5, 1 << 20, 10)[0].base_offset == 5


def test_read_stops_at_the_bytes_but_always_gives_one_batch(log: CommitLog) -> None:
    append(log, 4)
    assert len(headers_of(log, 0, 0, 4)) == 1
    assert len(headers_of(log, 0, LENGTH, 4)) == 1
    assert len(headers_of(log, 0, 3 * LENGTH - 1, 4)) == 2
    assert len(headers_of(log, 0, 3 * LENGTH, 4)) == 3


def test_read_stays_within_a_segment(log: CommitLog) -> None:
    append(log, 9)
    assert [h.base_offset for h in headers_of(log, 1, 1 << 20, 9)] == [1, 2, 3]
    assert [h.base_offset for h in headers_of(log, 4, 1 << 20, 9)] == [4, 5, 6, 7]


def test_read_gives_only_batches_wholly_below_the_limit(log: CommitLog) -> None:
    log.append(batch(records=3), leader_epoch=1, timestamp_us=0)
    log.append(batch(records=3), leader_epoch=1, timestamp_us=0)
    assert log.read(0, 1 << 20, 2) is None
    for limit in (3, 4, 5):
        assert len(headers_of(log, 0, 1 << 20, limit)) == 1
    assert len(headers_of(log, 0, 1 << 20, 6)) == 2
    assert log.read(3, 1 << 20, 3) is None
    assert log.read(5, 1 << 20, 3) is None


def test_read_at_the_log_end_gives_nothing_and_beyond_it_is_an_error(log: CommitLog) -> None:
    append(log, 2)
    assert log.read(2, 1 << 20, 2) is None
    with pytest.raises(OffsetOutOfRangeError) as raised:
        log.read(3, 1 << 20, 2)
    assert (raised.value.log_start_offset, raised.value.high_watermark) == (0, 2)
    with pytest.raises(OffsetOutOfRangeError):
        log.read(-1, 1 << 20, 2)


def test_slice_removed_by_retention_meanwhile_is_out_of_range(log: CommitLog) -> None:
    append(log, 9)
    slice_ = log.read(0, 1 << 20, 9)
    assert slice_ is not None
    advance_log_start(log, 5)
    with pytest.raises(OffsetOutOfRangeError):
        log.pread(slice_)


def test_time_finds_the_first_batch_appended_then_or_later(log: CommitLog) -> None:
    append(log, 9, epoch=3)  # at 0, 10, … 80
    assert log.offset_for_timestamp(-5) == (0, 3)
    for offset in range(9):
        assert log.offset_for_timestamp(offset * 10) == (offset, 3)
        assert log.offset_for_timestamp(offset * 10 - 9) == (offset, 3)
    assert log.offset_for_timestamp(81) is None


def test_time_before_the_log_start_finds_the_log_start(log: CommitLog) -> None:
    append(log, 9, epoch=3)
    advance_log_start(log, 6)
    assert log.offset_for_timestamp(0) == (6, 3)
    assert log.offset_for_timestamp(70) == (7, 3)
    advance_log_start(log, 9)
    assert log.offset_for_timestamp(0) is None


# Removing


@pytest.mark.parametrize("offset", range(10))
def test_truncate_drops_all_from_the_offset_on(
    log: CommitLog, os_disk: OsDisk, directory: str, offset: int
) -> None:
    append(log, 9)
    log.flush()
    assert log.truncate(offset) == min(offset, 9)
    assert log.log_end_offset == log.flushed_offset == min(offset, 9)
    assert values_of(log) == [b"%04d" % i for i in range(min(offset, 9))]
    append(log, 3, epoch=2)
    expected = values_of(log)
    assert expected[-3:] == [b"%04d" % (min(offset, 9) + i) for i in range(3)]
    again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=False)
    assert values_of(again) == expected
    assert again.offline_reason == ""
    assert again.epochs.entries == log.epochs.entries


def test_offsets_and_times_are_found_in_what_was_appended_after_a_truncation(
    os_disk: OsDisk, directory: str
) -> None:
    log = CommitLog.open(os_disk, directory, LogConfig(index_interval_bytes=1), clean=False)
    for offset in range(10):
        log.append(batch(b"x" * 10 * offset), leader_epoch=1, timestamp_us=offset)
    log.truncate(3)
    for offset in range(3, 13):
        log.append(batch(b"y" * 100), leader_epoch=2, timestamp_us=100 * offset)
    for offset in range(13):
        assert headers_of(log, offset, 1, 13)[0].base_offset == offset
    assert log.offset_for_timestamp(301) == (4, 2)


def test_index_of_a_segment_that_was_cut_is_removed(log: CommitLog, directory: str) -> None:
    append(log, 9)
    assert "00000000000000000000.index" in names(directory)
    log.truncate(2)
    assert names(directory) == ["00000000000000000000.log"]


def test_index_is_saved_again_when_the_log_grew_since_it_was_loaded(
    log: CommitLog, os_disk: OsDisk, directory: str
) -> None:
    append(log, 2)
    log.close(clean=True)
    again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=True)
    assert values_of(again) == [b"0000", b"0001"]
    append(again, 2)
    again.close(clean=True)
    data = (Path(directory) / "00000000000000000000.index").read_bytes()
    assert len(index_file.decode(data, 0, 4 * LENGTH)) == 2 * 3


def test_truncate_within_a_batch_drops_the_whole_batch(log: CommitLog) -> None:
    log.append(batch(records=3), leader_epoch=1, timestamp_us=0)
    log.append(batch(records=3), leader_epoch=2, timestamp_us=0)
    assert log.truncate(4) == 3
    assert log.epochs.entries == ((1, 0),)
    assert log.truncate(1) == 0


def test_truncate_outside_the_log_is_refused(log: CommitLog) -> None:
    append(log, 9)
    advance_log_start(log, 5)
    for offset in (4, 10):
        with pytest.raises(OffsetOutOfRangeError):
            log.truncate(offset)


def test_advancing_the_log_start_removes_whole_segments_and_hides_the_rest(
    log: CommitLog, os_disk: OsDisk, directory: str
) -> None:
    append(log, 10)
    advance_log_start(log, 5)
    assert log.log_start_offset == 5
    assert "00000000000000000000.log" not in names(directory)
    assert log.segment_count == 2
    with pytest.raises(OffsetOutOfRangeError):
        log.read(4, 100, 10)
    assert headers_of(log, 5, LENGTH, 10)[0].base_offset == 5
    advance_log_start(log, 3)
    assert log.log_start_offset == 5
    with pytest.raises(OffsetOutOfRangeError):
        advance_log_start(log, 11)
    again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (5, 10)


def test_log_start_at_the_log_end_keeps_the_epoch_and_the_offsets(
    log: CommitLog, os_disk: OsDisk, directory: str
) -> None:
    append(log, 10, epoch=6)
    advance_log_start(log, 10)
    assert log.segment_count == 1, "the last segment always stays"
    log.close(clean=True)
    for clean in (True, False):
        again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=clean)
        assert (again.log_start_offset, again.log_end_offset) == (10, 10)
        assert again.epochs.latest_epoch == 6
    append(again, 1, epoch=6)
    assert again.log_end_offset == 11


def test_retention_removes_only_whole_segments_below_the_offset(log: CommitLog) -> None:
    append(log, 10)
    assert delete_segments_before(log, 3) == 0
    assert delete_segments_before(log, 7) == 4
    assert log.segment_count == 2
    assert delete_segments_before(log, 100) == 8
    assert log.segment_count == 1, "the last segment always stays"


@pytest.mark.parametrize("offset", [0, 3, 50])
def test_reset_begins_anew(log: CommitLog, os_disk: OsDisk, directory: str, offset: int) -> None:
    append(log, 9)
    log.flush()
    log.reset(offset)
    assert (log.log_start_offset, log.log_end_offset, log.flushed_offset) == (offset,) * 3
    assert log.epochs.entries == ()
    again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (offset, offset)
    append(again, 2, epoch=9)
    assert values_of(again) == [b"%04d" % offset, b"%04d" % (offset + 1)]


def test_reset_of_a_log_that_was_never_written_gives_it_a_start(
    log: CommitLog, os_disk: OsDisk, directory: str
) -> None:
    log.reset(7)
    again = CommitLog.open(os_disk, directory, clean=False)
    assert (again.log_start_offset, again.log_end_offset) == (7, 7)


def test_deleted_log_leaves_nothing(log: CommitLog, directory: str) -> None:
    append(log, 9)
    log.close(clean=True)
    log.delete()
    assert not Path(directory).exists()
    with pytest.raises(StorageError, match="is offline"):
        append(log, 1)


def test_deleting_a_log_that_was_never_written_is_nothing(log: CommitLog) -> None:
    log.delete()


# Closing


def test_closed_log_takes_no_appends(log: CommitLog) -> None:
    append(log, 1)
    log.close(clean=False)
    with pytest.raises(StorageError, match="closed"):
        append(log, 1)
    with pytest.raises(StorageError, match="closed"):
        log.flush()


def test_clean_close_flushes(log: CommitLog) -> None:
    append(log, 5)
    log.close(clean=True)
    assert log.flushed_offset == 5


@pytest.mark.parametrize("clean", [True, False])
def test_log_is_the_same_after_a_clean_close(
    log: CommitLog, os_disk: OsDisk, directory: str, clean: bool
) -> None:
    append(log, 6, epoch=2)
    append(log, 4, epoch=3)
    advance_log_start(log, 2)
    log.close(clean=True)
    again = CommitLog.open(os_disk, directory, FOUR_PER_SEGMENT, clean=clean)
    for name in (
        "log_start_offset", "log_end_offset", "flushed_offset", "size_bytes", "segment_count",
        "last_append_timestamp",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(log, name), name
    assert again.epochs.entries == log.epochs.entries
    assert values_of(again)[2:] == [b"%04d" % i for i in range(4, 10)]
    append(again, 5, epoch=4)
    assert values_of(again)[-1] == b"0014"


# Reading what was appended last


def test_what_was_appended_last_is_found_without_a_read(os_disk: OsDisk, directory: str) -> None:
    counting = FaultyDisk(os_disk)
    log = CommitLog.open(counting, directory, FOUR_PER_SEGMENT, clean=False)
    for appended in range(10):
        append(log, 1)
        slice_ = log.read(appended, LENGTH, log.log_end_offset)
        assert slice_ is not None
        assert (slice_.base_offset, slice_.next_offset) == (appended, appended + 1)
    assert counting.count("pread") == 0
    assert values_of(log) == [b"%04d" % offset for offset in range(10)]


def test_what_was_cut_off_is_not_found_in_what_follows(log: CommitLog) -> None:
    append(log, 3)
    log.truncate(1)
    log.append(batch(records=3), leader_epoch=2, timestamp_us=0)
    slice_ = log.read(2, 1 << 20, log.log_end_offset)
    assert slice_ is not None
    assert (slice_.base_offset, slice_.next_offset) == (1, 4)
