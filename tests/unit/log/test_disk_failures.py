"""A full disk fails an append and nothing else; any other failure takes the one log offline."""

from __future__ import annotations

import errno
from dataclasses import replace
from random import Random

import pytest

from jetstream_protocol.errors import OffsetOutOfRangeError, StorageError, StorageFullError
from jetstream_protocol.logfiles.offsets_file import Bounds, Mark
from jetstream_protocol.types import WallUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.offsets_file import OffsetsFile, read_offsets
from tests.simulation.disk import SimulatedDisk
from tests.support.log_batches import batch, stamped, values_of
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
from tests.support.log_start import advance_log_start

LENGTH = batch(b"0000").length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)


@pytest.fixture
def bad_disk() -> FaultyDisk:
    return FaultyDisk(MemoryDisk())


@pytest.fixture
def log(bad_disk: FaultyDisk) -> CommitLog:
    return reopen(bad_disk)


def reopen(disk: FaultyDisk, *, clean: bool = False) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean)


def append(log: CommitLog, count: int = 1) -> None:
    for _ in range(count):
        log.append(batch(b"%04d" % log.log_end_offset), leader_epoch=1, timestamp_us=0)


def expected(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


# A full disk


@pytest.mark.parametrize("room", [0, 1, 87, 88, 89, LENGTH - 1])
def test_append_to_a_full_disk_leaves_nothing_behind(
    bad_disk: FaultyDisk, log: CommitLog, room: int
) -> None:
    append(log, 2)
    bad_disk.write_room = room
    with pytest.raises(StorageFullError):
        append(log)
    assert (log.log_end_offset, log.size_bytes, log.offline_reason) == (2, 2 * LENGTH, "")
    assert bad_disk.size("/17/00000000000000000000.log") == 2 * LENGTH
    assert values_of(log) == expected(2)
    assert values_of(reopen(bad_disk)) == expected(2)


def test_log_takes_appends_again_when_there_is_room(bad_disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 2)
    bad_disk.write_room = 50
    for _ in range(3):
        with pytest.raises(StorageFullError):
            append(log)
    bad_disk.heal()
    append(log, 3)
    assert log.flush() == 5
    assert values_of(log) == expected(5)
    assert values_of(reopen(bad_disk)) == expected(5)


def test_follower_on_a_full_disk_appends_none_of_what_did_not_fit(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    bad_disk.write_room = LENGTH + 20
    with pytest.raises(StorageFullError):
        log.append_replica(stamped(0, b"0000") + stamped(1, b"0001"))
    assert (log.log_end_offset, log.size_bytes) == (0, 0)
    bad_disk.heal()
    log.append_replica(stamped(0, b"0000") + stamped(1, b"0001"))
    assert values_of(log) == expected(2)


def test_follower_keeps_the_segments_it_filled_before_the_disk_was_full(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    data = b"".join(stamped(i, b"%04d" % i) for i in range(8))
    bad_disk.write_room = 5 * LENGTH
    with pytest.raises(StorageFullError):
        log.append_replica(data)
    assert log.log_end_offset == 4
    assert values_of(reopen(bad_disk)) == expected(4)


def test_segment_that_cannot_be_begun_for_want_of_room_is_begun_later(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 4)
    bad_disk.fail("create", ".log", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        append(log)
    assert (log.segment_count, log.offline_reason) == (1, "")
    bad_disk.heal()
    append(log)
    assert values_of(log) == expected(5)


def test_first_append_on_a_full_disk_can_be_tried_again(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    bad_disk.fail("make_directory", "", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        append(log)
    bad_disk.heal()
    bad_disk.fail("create", ".log", errno.EDQUOT)
    with pytest.raises(StorageFullError):
        append(log)
    bad_disk.heal()
    append(log)
    assert values_of(log) == expected(1)


def test_index_that_finds_no_room_is_rebuilt(bad_disk: FaultyDisk, log: CommitLog) -> None:
    bad_disk.fail("write_atomic", ".index", errno.ENOSPC)
    append(log, 9)
    log.close(clean=True)
    assert not bad_disk.exists("/17/00000000000000000000.index")
    again = reopen(bad_disk, clean=True)
    assert values_of(again) == expected(9)


def test_log_opens_on_a_full_disk(bad_disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 9)
    log.flush()
    bad_disk.fail("write_atomic", "", errno.ENOSPC)
    bad_disk.write_room = 0
    again = reopen(bad_disk)
    assert (again.offline_reason, values_of(again)) == ("", expected(9))


def test_flush_succeeds_though_its_checkpoint_finds_no_room(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 9)
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    assert log.flush() == 9
    bad_disk.heal()
    assert values_of(reopen(bad_disk)) == expected(9)


def test_truncate_for_which_there_is_no_room_changes_nothing(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 9)
    log.flush()
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        log.truncate(3)
    assert (log.log_end_offset, log.offline_reason) == (9, "")
    bad_disk.heal()
    log.truncate(3)
    assert values_of(reopen(bad_disk)) == expected(3)


@pytest.mark.parametrize("is_flushed", [True, False])
def test_reset_for_which_there_is_no_room_changes_nothing(
    bad_disk: FaultyDisk, log: CommitLog, is_flushed: bool
) -> None:
    append(log, 9)
    if is_flushed:
        log.flush()
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        log.reset(50)
    assert (log.log_end_offset, log.offline_reason, values_of(log)) == (9, "", expected(9))
    bad_disk.heal()
    again = reopen(bad_disk)
    assert (again.offline_reason, values_of(again)) == ("", expected(9))


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("offset", [5, 50])
def test_reset_for_which_there_is_no_room_and_that_is_killed_is_done_or_undone(
    offset: int, is_flushed: bool
) -> None:
    for survived in range(20):
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        log = CommitLog.open(disk, "/17", CONFIG, clean=False, boot_id="boot")
        append(log, 9)
        log.note_end()
        if is_flushed:
            log.flush()
        disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
        memory.crash_after = memory.operations + survived
        with pytest.raises((Killed, StorageFullError)) as raised:
            log.reset(offset)
        again = CommitLog.open(memory.killed(), "/17", CONFIG, clean=False, boot_id="boot")
        assert again.offline_reason == ""
        found = (again.log_start_offset, again.log_end_offset)
        assert found in ((0, 9), (offset, offset)), survived
        if not isinstance(raised.value, Killed):
            assert found == (0, 9)
            break
    else:
        raise AssertionError("it makes fewer changes than that")


def test_reset_of_a_new_log_needs_no_room_for_its_checkpoint(bad_disk: FaultyDisk) -> None:
    log = CommitLog.open(bad_disk, "/17", CONFIG, clean=False, boot_id="boot")
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    log.reset(50)
    assert (log.log_start_offset, log.offline_reason) == (50, "")
    bad_disk.heal()
    append(log, 5)
    log.note_end()
    again = CommitLog.open(bad_disk, "/17", CONFIG, clean=False, boot_id="boot")
    assert (again.log_start_offset, again.log_end_offset, again.offline_reason) == (50, 55, "")


@pytest.mark.parametrize("name", ["compaction", "damage"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_reset_that_cannot_forget_what_was_in_the_log_fails_it(
    bad_disk: FaultyDisk, log: CommitLog, name: str, error: int
) -> None:
    append(log, 9)
    log.compaction.note_copied_under(5)
    log.damage.is_unknown = True
    log.damage.save()
    bad_disk.fail("write_atomic", name, error)
    with pytest.raises(StorageError):
        log.reset(50)
    assert log.health.has_failed
    with pytest.raises(StorageError):
        append(log)
    if error == errno.ENOSPC:
        assert reopen(bad_disk).offline_reason, "a start cannot do it either"
    bad_disk.heal()
    log.reset(60)
    append(log, 2)
    log.note_end()
    again = reopen(bad_disk)
    assert (again.log_start_offset, again.log_end_offset, again.offline_reason) == (60, 62, "")
    assert (again.copied_under, again.lost_range) == (0, None)


@pytest.mark.parametrize(("boot_id", "count"), [("boot", 3), ("another", 0)])
def test_log_that_went_on_after_a_reset_in_this_boot_is_not_emptied_by_a_start(
    bad_disk: FaultyDisk, boot_id: str, count: int
) -> None:
    log = CommitLog.open(bad_disk, "/17", CONFIG, clean=False, boot_id="boot")
    log.reset(50)
    append(log, 3)
    log.note_end()
    offsets = OffsetsFile(bad_disk, "/17", "boot")
    offsets.write_bounds(Bounds(50, 50, Mark.EMPTYING), durable=True)
    for _ in range(2):
        again = CommitLog.open(bad_disk, "/17", CONFIG, clean=False, boot_id=boot_id)
        assert (again.log_end_offset, again.offline_reason) == (50 + count, "")


def test_reset_that_a_kill_interrupted_ends_without_room_for_a_checkpoint(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 9)
    log.flush()
    bad_disk.fail("remove", ".log", errno.EIO)
    with pytest.raises(StorageError):
        log.reset(50)
    bad_disk.heal()
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    for _ in range(2):
        again = reopen(bad_disk)
        found = (again.offline_reason, again.log_start_offset, again.log_end_offset)
        assert found == ("", 50, 50)


def test_retention_frees_segments_even_when_the_disk_is_full(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 9)
    log.flush()
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        advance_log_start(log, 5)
    assert (log.log_start_offset, log.segment_count, log.offline_reason) == (5, 2, "")
    bad_disk.heal()
    assert reopen(bad_disk).log_start_offset == 5, "the offsets file is written in place"


def test_full_disk_fails_a_clean_close_and_the_next_open_recovers(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 5)
    bad_disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
    with pytest.raises(StorageFullError):
        log.close(clean=True)
    bad_disk.heal()
    assert values_of(reopen(bad_disk, clean=True)) == expected(5)


# Failed fsync: offline, never tried again


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_failed_fsync_takes_the_log_offline_and_is_never_tried_again(
    bad_disk: FaultyDisk, log: CommitLog, error: int
) -> None:
    append(log, 2)
    log.flush()
    append(log)
    bad_disk.fail("fsync", ".log", error)
    with pytest.raises(StorageError) as raised:
        log.flush()
    assert not isinstance(raised.value, StorageFullError)
    assert "flushing /17" in log.offline_reason
    bad_disk.heal()
    before = bad_disk.count("fsync")
    for use in (log.flush, lambda: append(log), lambda: log.truncate(1), log.seal):
        with pytest.raises(StorageError, match="offline"):
            use()
    assert bad_disk.count("fsync") == before
    assert log.flushed_offset == 2
    assert values_of(log) == expected(3), "what is there can still be read"


def test_failed_fsync_of_a_sealed_segment_or_of_the_folder_counts_as_well(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 6)
    bad_disk.fail("fsync", "/00000000000000000000.log", errno.EIO)
    with pytest.raises(StorageError):
        log.flush()
    assert (log.flushed_offset, bool(log.offline_reason)) == (0, True)

    other = CommitLog.open(bad_disk, "/18", CONFIG, clean=False)
    append(other)
    bad_disk.fail("fsync_directory", "", errno.EIO)
    with pytest.raises(StorageError):
        other.flush()
    assert (other.flushed_offset, bool(other.offline_reason)) == (0, True)


def test_close_after_a_failed_fsync_claims_nothing(bad_disk: FaultyDisk, log: CommitLog) -> None:
    append(log, 2)
    bad_disk.fail("fsync", ".log", errno.EIO)
    with pytest.raises(StorageError):
        log.close(clean=True)
    bad_disk.heal()
    assert not bad_disk.exists("/17/checkpoint")


# Other failures


def test_write_error_takes_the_log_offline_and_leaves_whole_batches(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 2)
    bad_disk.fail("write", ".log", errno.EIO)
    with pytest.raises(StorageError, match="Input/output error"):
        append(log)
    bad_disk.heal()
    with pytest.raises(StorageError, match="offline"):
        append(log)
    assert values_of(reopen(bad_disk)) == expected(2)


def test_append_that_cannot_be_undone_takes_the_log_offline(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 2)
    bad_disk.write_room = 10
    bad_disk.fail("truncate", ".log", errno.EIO)
    with pytest.raises(StorageError, match="cutting off"):
        append(log)
    assert log.offline_reason
    bad_disk.heal()
    assert values_of(reopen(bad_disk)) == expected(2), "recovery cuts it off instead"


def test_read_error_is_reported_and_the_log_stays_online(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 2)
    slice_ = log.read(0, 1 << 20, 2)
    assert slice_ is not None
    bad_disk.fail("pread", ".log", errno.EIO)
    with pytest.raises(StorageError, match="reading"):
        log.read(0, 1 << 20, 1)
    with pytest.raises(StorageError, match="reading"):
        log.pread(slice_)
    bad_disk.heal()
    append(log)
    assert values_of(log) == expected(3)


def closed_and_opened(disk: FaultyDisk, log: CommitLog, count: int) -> CommitLog:
    """The log with that many records, after a clean stop: no index is in memory."""
    append(log, count)
    log.close(clean=True)
    return reopen(disk, clean=True)


def append_as(log: CommitLog, *, is_leader: bool) -> None:
    end = log.log_end_offset
    if is_leader:
        append(log)
    else:
        log.append_replica(stamped(end, b"%04d" % end, epoch=1))


@pytest.mark.parametrize("is_leader", [True, False])
@pytest.mark.parametrize("error", [errno.EIO, errno.EMFILE])
def test_append_needs_no_index_that_can_be_read(
    bad_disk: FaultyDisk, log: CommitLog, error: int, is_leader: bool
) -> None:
    log = closed_and_opened(bad_disk, log, 6)
    bad_disk.fail("read_file", ".index", error)
    append_as(log, is_leader=is_leader)
    bad_disk.heal()
    append(log)
    log.close(clean=True)
    assert values_of(reopen(bad_disk, clean=True)) == expected(8)


@pytest.mark.parametrize("age_us", [None, 1_000_000])
@pytest.mark.parametrize("is_leader", [True, False])
def test_append_that_cannot_have_an_index_writes_nothing(
    bad_disk: FaultyDisk, log: CommitLog, is_leader: bool, age_us: int | None
) -> None:
    log = closed_and_opened(bad_disk, log, 6)
    log.configure(replace(CONFIG, segment_age_us=age_us))
    bad_disk.fail("read_file", ".index", errno.EIO)
    bad_disk.fail("pread", ".log", errno.EIO)
    with pytest.raises(StorageError, match="reading /17"):
        append_as(log, is_leader=is_leader)
    assert (log.log_end_offset, log.offline_reason) == (6, "")
    assert bad_disk.size("/17/00000000000000000004.log") == 2 * LENGTH
    bad_disk.heal()
    append(log)
    assert values_of(reopen(bad_disk)) == expected(7)


def test_sealed_segment_is_read_without_its_index(bad_disk: FaultyDisk, log: CommitLog) -> None:
    log = closed_and_opened(bad_disk, log, 9)
    bad_disk.fail("read_file", ".index", errno.EIO)
    assert values_of(log) == expected(9)
    assert [span.base_offset for span in log.sealed_spans()] == [0, 4]
    assert log.offset_for_timestamp(WallUs(0)) == (0, 1)
    log.truncate(3)
    assert values_of(log) == expected(3)


@pytest.mark.parametrize("operation", ["list_directory", "size", "read_file", "pread"])
def test_log_that_cannot_be_read_is_a_storage_error_at_open(
    bad_disk: FaultyDisk, log: CommitLog, operation: str
) -> None:
    append(log, 9)
    bad_disk.fail(operation, "", errno.EIO)
    with pytest.raises(StorageError, match="/17"):
        reopen(bad_disk)
    bad_disk.heal()
    assert values_of(reopen(bad_disk)) == expected(9)


def test_log_in_a_read_only_folder_is_a_storage_error_at_open(
    bad_disk: FaultyDisk, log: CommitLog
) -> None:
    append(log, 2)
    bad_disk.read_only = True
    for clean in (True, False):
        with pytest.raises(StorageError, match="/17 is read-only"):
            reopen(bad_disk, clean=clean)


def test_one_log_offline_leaves_the_others_alone(bad_disk: FaultyDisk, log: CommitLog) -> None:
    other = CommitLog.open(bad_disk, "/18", CONFIG, clean=False)
    append(log)
    append(other)
    bad_disk.fail("fsync", "/17/00000000000000000000.log", errno.EIO)
    with pytest.raises(StorageError):
        log.flush()
    assert other.flush() == 1
    with pytest.raises(OffsetOutOfRangeError):
        other.read(5, 1, 1)


def test_a_log_that_was_offline_is_looked_at_again_by_the_next_start(bad_disk: FaultyDisk) -> None:
    """The mark of an earlier clean close would vouch for what was found damaged since."""
    log = reopen(bad_disk)
    append(log, 3)
    log.close(clean=True)
    path = "/17/00000000000000000000.log"
    bad_disk.write(path, LENGTH - 1, [b"?"])
    damaged = reopen(bad_disk, clean=False)
    assert damaged.offline_reason
    damaged.close(clean=True)
    assert reopen(bad_disk, clean=True).offline_reason == damaged.offline_reason


def test_what_a_failed_fsync_has_dropped_is_written_again() -> None:
    """The next fsync would succeed, and write nothing: a power failure would leave a hole."""
    disk = SimulatedDisk()
    disk.make_directory("/streams")
    disk.fsync_directory("/")
    log = CommitLog.open(disk, "/streams/17", CONFIG, clean=False)
    append(log, 2)
    log.flush()
    append(log, 5)  # After the flushed records of the first segment, and over two more.
    disk.fsync_fails = True
    with pytest.raises(StorageError):
        log.flush()
    log.salvage()
    append(log)
    assert log.flush() == 8
    disk.lose_power(Random(2))
    again = CommitLog.open(disk, "/streams/17", CONFIG, clean=False)
    assert (again.offline_reason, again.log_end_offset) == ("", 8)
    assert values_of(again) == expected(8)


def test_what_a_killed_process_could_not_sync_is_written_again() -> None:
    """It may have died before anybody knew that the fsync had failed. The next one would succeed,
    and write nothing."""
    disk = SimulatedDisk()
    disk.make_directory("/streams")
    disk.fsync_directory("/")
    log = CommitLog.open(disk, "/streams/17", CONFIG, clean=False, boot_id="one")
    append(log, 2)
    log.flush()
    append(log, 5)
    log.note_end()
    disk.fsync_fails = True
    with pytest.raises(StorageError):
        log.flush()
    log = CommitLog.open(disk, "/streams/17", CONFIG, clean=False, boot_id="one")
    assert (log.flush(), values_of(log)) == (7, expected(7))
    disk.lose_power(Random(2))
    log = CommitLog.open(disk, "/streams/17", CONFIG, clean=False, boot_id="two")
    assert (log.offline_reason, values_of(log)) == ("", expected(7))


def test_offsets_that_a_killed_process_could_not_sync_are_written_again() -> None:
    disk = SimulatedDisk()
    file = OffsetsFile(disk, "/17", "one")
    file.create()
    disk.fsync_directory("/")
    disk.fsync_fails = True
    with pytest.raises(OSError, match="Input/output"):
        file.write_bounds(Bounds(4, 8), durable=True)
    found = read_offsets(disk, "/17")
    file = OffsetsFile(disk, "/17", "one")
    file.adopt(found, is_in_doubt=True)
    file.write_bounds(Bounds(4, 8), durable=True)
    disk.lose_power(Random(2))
    assert read_offsets(disk, "/17") == found


@pytest.mark.parametrize(
    ("operation", "path_ends"),
    [("remove", "8.log"), ("fsync_directory", "/17"), ("truncate", "4.log"), ("fsync", "4.log")],
)
def test_a_log_whose_truncation_failed_and_that_is_brought_back_ends_where_it_was_cut(
    bad_disk: FaultyDisk, log: CommitLog, operation: str, path_ends: str
) -> None:
    """Otherwise its last segment reaches into the next one, and hides records of it."""
    append(log, 10)
    log.flush()
    bad_disk.fail(operation, path_ends, errno.EIO)
    with pytest.raises(StorageError):
        log.truncate(6)
    bad_disk.heal()
    log.salvage()
    assert (log.log_end_offset, values_of(log)) == (6, expected(6))
    append(log, 4)
    assert values_of(log) == expected(10)
    ends = [segment.next_offset for segment in log._storage.segments.all]
    assert ends == [*log._storage.segments.base_offsets[1:], 10]
    assert values_of(reopen(bad_disk)) == expected(10)
