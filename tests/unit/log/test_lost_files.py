"""A file of a log that is gone, short or changed: what recovery makes of it."""

from __future__ import annotations

import errno
import json

import pytest

from jetstream_protocol.batch import crc32c
from jetstream_protocol.errors import OffsetOutOfRangeError, RecordsDamagedError, StorageError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.compacting import steps
from tests.support.log_batches import batch, stamped, values_of
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
from tests.support.log_start import advance_log_start

LENGTH = batch(b"0000").length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)
BOOT = "the boot"
FIRST, SECOND, THIRD = (f"/17/{base:020d}.log" for base in (0, 4, 8))
OFFSETS = "/17.offsets"
CHECKPOINT = "/17/checkpoint"


def reopen(disk: MemoryDisk, *, clean: bool = False, boot_id: str = BOOT) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean, boot_id=boot_id)


def fill(disk: MemoryDisk, count: int = 10, *, acknowledge: bool = True) -> CommitLog:
    """Ten batches over three segments, acknowledged before they are flushed."""
    log = reopen(disk)
    for number in range(log.log_end_offset, log.log_end_offset + count):
        log.append(batch(b"%04d" % number), leader_epoch=1, timestamp_us=number)
        if acknowledge:
            log.note_end()
    return log


def expected(start: int, end: int) -> list[bytes]:
    return [b"%04d" % number for number in range(start, end)]


def lose_folder(disk: MemoryDisk) -> None:
    for name in disk.files("/17"):
        disk.remove(f"/17/{name}")
    disk.remove_directory("/17")


# In front


@pytest.mark.parametrize("record", ["both", CHECKPOINT, OFFSETS])
@pytest.mark.parametrize("clean", [True, False])
def test_what_is_missing_in_front_is_damage_and_the_rest_is_read(
    disk: MemoryDisk, record: str, clean: bool
) -> None:
    fill(disk).close(clean=True)
    for other in {CHECKPOINT, OFFSETS} - {record}:
        if record != "both":
            disk.remove(other)
    disk.remove(FIRST)
    log = reopen(disk, clean=clean)
    assert log.lacks_beginning
    assert "[0, 4) are missing" in log.offline_reason
    assert (log.log_start_offset, log.log_end_offset) == (0, 10)
    with pytest.raises(RecordsDamagedError, match="missing") as caught:
        log.read(0, 1000, 10)
    assert (caught.value.start_offset, caught.value.end_offset) == (0, 4)
    assert log.read(4, 1 << 20, 10) is not None
    with pytest.raises(StorageError):
        log.append(batch(), leader_epoch=2, timestamp_us=0)


@pytest.mark.parametrize("record", ["both", CHECKPOINT, OFFSETS])
def test_what_retention_removed_is_not_missing(disk: MemoryDisk, record: str) -> None:
    log = fill(disk)
    advance_log_start(log, 5)
    for other in {CHECKPOINT, OFFSETS} - {record}:
        if record != "both":
            disk.remove(other)
    again = reopen(disk.killed())
    assert (again.offline_reason, again.log_start_offset) == ("", 5)
    disk.remove(SECOND)
    assert reopen(disk).lacks_beginning


@pytest.mark.parametrize("later", [1, 3])
@pytest.mark.parametrize("boot_id", [BOOT, "another"])
def test_a_segment_that_was_the_last_when_it_was_flushed_is_missed(
    disk: MemoryDisk, later: int, boot_id: str
) -> None:
    """The checkpoint lists the sealed segments before it, and the log goes on after it."""
    log = fill(disk, 8)
    log.flush()
    fill_more = [batch(b"%04d" % number) for number in range(8, 8 + later)]
    for number, each in enumerate(fill_more, 8):
        log.append(each, leader_epoch=1, timestamp_us=number)
        log.note_end()
    copy = disk.killed()
    assert reopen(copy.killed(), boot_id=boot_id).offline_reason == ""
    copy.remove(SECOND)
    found = reopen(copy, boot_id=boot_id)
    assert "[4, 8) is missing" in found.offline_reason
    assert found.log_end_offset == 4


def test_the_log_start_is_on_disk_before_the_first_file_is_removed(disk: MemoryDisk) -> None:
    fill(disk).flush()
    for dies_after in range(100):
        copy = disk.killed()
        log = reopen(copy)
        copy.crash_after = copy.operations + dies_after
        try:
            advance_log_start(log, 8)
        except Killed:
            # Names have changed as far as they were; of the bytes the synced ones are left.
            found = reopen(copy.power_failed(lambda n: n - 1), boot_id="another")
            assert found.offline_reason == ""
            assert found.log_start_offset in (0, 8)
        else:
            assert dies_after > 3
            return
    raise AssertionError("it never ended")


def test_a_log_without_any_record_of_it_starts_where_it_begins_and_is_incomplete(
    disk: MemoryDisk,
) -> None:
    """An operator can go on with the rest. The cluster does not rely on it before it has been
    told."""
    advance_log_start(fill(disk), 8)
    disk.remove(CHECKPOINT)
    disk.remove(OFFSETS)
    for _ in range(2):
        log = reopen(disk)
        assert (log.offline_reason, log.log_start_offset) == ("", 8)
        assert log.incomplete_reason
        assert log.is_start_unknown
    log.incompleteness_recorded()
    assert (reopen(disk).incomplete_reason, reopen(disk).is_start_unknown) == ("", False)


def test_a_damaged_log_without_any_record_of_it_may_lack_its_beginning_too(
    disk: MemoryDisk,
) -> None:
    """The damage must not hide that: a follower would go on at the damage, and join the ISR."""
    fill(disk, 12)  # never flushed, so there is no checkpoint
    disk.remove(OFFSETS)
    disk.remove(FIRST)
    data = disk.read_file(SECOND)
    disk.put(SECOND, data[:-1] + bytes([data[-1] ^ 1]))
    for _ in range(2):
        log = reopen(disk)
        assert "a valid batch follows" in log.offline_reason
        assert log.is_start_unknown
        log.records.note_all(durable=True)
    log.salvage()
    assert (log.offline_reason, log.is_start_unknown) == ("", False)
    assert (reopen(disk).offline_reason, reopen(disk).is_start_unknown) == ("", False)


def test_a_follower_drops_a_log_without_its_beginning_and_copies_anew(disk: MemoryDisk) -> None:
    fill(disk).close(clean=True)
    disk.remove(FIRST)
    log = reopen(disk)
    log.reset(2)
    assert (log.offline_reason, log.lacks_beginning, log.log_end_offset) == ("", False, 2)
    log.append_replica(stamped(2, b"0002", epoch=1))
    again = reopen(disk.killed())
    assert (again.offline_reason, again.log_start_offset, values_of(again)) == ("", 2, [b"0002"])


def test_who_leads_for_want_of_a_better_one_takes_what_is_left(disk: MemoryDisk) -> None:
    fill(disk).close(clean=True)
    disk.remove(FIRST)
    log = reopen(disk)
    log.salvage()
    assert (log.offline_reason, log.log_start_offset) == ("", 4)
    again = reopen(disk.killed())
    assert (again.offline_reason, values_of(again)) == ("", expected(4, 10))
    with pytest.raises(OffsetOutOfRangeError):
        again.read(0, 1000, 10)


@pytest.mark.parametrize("records", [[], [CHECKPOINT, OFFSETS]])
def test_who_is_brought_back_and_not_elected_still_says_that_the_beginning_is_lost(
    disk: MemoryDisk, records: list[str]
) -> None:
    """Otherwise its readers would be told that the stream begins there, and the next start would
    take the rest for a complete log."""
    fill(disk).close(clean=True)
    for name in (FIRST, *records):
        disk.remove(name)
    log = reopen(disk)
    log.health.fail("a flush failed")
    log.salvage(is_elected=False)
    assert (log.offline_reason, log.log_start_offset, log.is_start_unknown) == ("", 4, True)
    for _ in range(2):
        log = reopen(disk)
        assert log.is_start_unknown
        assert log.incomplete_reason
    log.incompleteness_recorded()  # It was elected after all.
    again = reopen(disk)
    assert (again.is_start_unknown, again.incomplete_reason) == (False, "")
    assert values_of(again) == expected(4, 10)


def test_what_is_missing_in_front_hides_no_gap_after_it(disk: MemoryDisk) -> None:
    """A leader with such a log serves it to followers, which accept no gap."""
    fill(disk, 12).close(clean=True)
    disk.remove(FIRST)
    disk.remove(THIRD)
    log = reopen(disk)
    assert (log.lacks_beginning, log.log_end_offset) == (True, 8)
    log.salvage()
    assert (log.offline_reason, values_of(log)) == ("", expected(4, 8))


# In the middle, and at the end


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_missing_in_the_middle_is_damage(disk: MemoryDisk, clean: bool) -> None:
    fill(disk).close(clean=True)
    disk.remove(SECOND)
    log = reopen(disk, clean=clean)
    assert "[4, 8) is missing" in log.offline_reason
    assert values_of(log) == expected(0, 4)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("left", [0, LENGTH, 3 * LENGTH - 5])
def test_a_sealed_segment_that_is_short_is_damage(disk: MemoryDisk, clean: bool, left: int) -> None:
    fill(disk).close(clean=True)
    disk.put(SECOND, disk.read_file(SECOND)[:left])
    log = reopen(disk, clean=clean)
    assert "[4, 8) has" in log.offline_reason
    assert values_of(log) == expected(0, 4 + left // LENGTH)
    assert disk.exists(THIRD)


def test_a_segment_that_was_the_last_one_when_the_checkpoint_was_written_is_looked_at(
    disk: MemoryDisk,
) -> None:
    fill(disk, 4).close(clean=True)
    reopen(disk, clean=True).seal()
    disk.put(FIRST, b"")
    assert reopen(disk.killed()).offline_reason


def test_segments_that_compaction_is_swapping_have_any_size(disk: MemoryDisk) -> None:
    log = fill(disk)
    log.flush()
    for number in range(len(list(steps(disk.killed(), reopen(disk.killed()))))):
        copy = disk.killed()
        swapped = reopen(copy)
        swapped.flush()
        passes = steps(copy, swapped)
        for _ in range(number + 1):
            next(passes)
        found = reopen(copy.killed())
        assert found.offline_reason == ""


@pytest.mark.parametrize("path", [THIRD, "/17/"])
def test_a_last_segment_or_all_of_them_that_are_gone_are_damage(
    disk: MemoryDisk, path: str
) -> None:
    fill(disk)
    for name in list(disk.files("/17")):
        if f"/17/{name}".startswith(path):
            disk.remove(f"/17/{name}")
    log = reopen(disk)
    assert log.offline_reason
    assert log.is_lost == (path == "/17/")


@pytest.mark.parametrize("acknowledge", [True, False])
def test_a_missing_folder_is_no_empty_log(disk: MemoryDisk, acknowledge: bool) -> None:
    log = fill(disk, acknowledge=acknowledge)
    if not acknowledge:
        log.flush()
    lose_folder(disk)
    for _ in range(2):
        log = reopen(disk)
        assert log.is_lost
        assert "the folder is missing" in log.offline_reason
        with pytest.raises(StorageError):
            log.append(batch(), leader_epoch=2, timestamp_us=0)
    log.reset(0)
    assert reopen(disk).offline_reason == ""


def test_a_folder_that_never_held_anything_is_not_missing(disk: MemoryDisk) -> None:
    assert reopen(disk).offline_reason == ""
    log = fill(disk)
    log.delete()
    assert reopen(disk).offline_reason == ""


def test_what_a_power_failure_took_is_not_missing(disk: MemoryDisk) -> None:
    fill(disk)
    assert reopen(disk.killed()).log_end_offset == 10
    lost = disk.power_failed(lambda n: 0)
    assert reopen(lost, boot_id="another").offline_reason == ""


def test_a_folder_that_was_made_without_the_file_beside_it_is_flushed_when_that_is_there(
    disk: MemoryDisk,
) -> None:
    faulty = FaultyDisk(disk)
    log = CommitLog.open(faulty, "/17", CONFIG, clean=False, boot_id=BOOT)
    faulty.fail("create", OFFSETS, errno.EIO)
    with pytest.raises(StorageError):
        log.append(batch(), leader_epoch=1, timestamp_us=0)
    faulty.heal()
    log.note_end()  # This makes the file.
    log.reset(0)
    log.append(batch(b"0000"), leader_epoch=1, timestamp_us=0)
    log.flush()
    found = reopen(disk.power_failed(lambda n: 0), boot_id="another")
    assert values_of(found) == expected(0, 1)


@pytest.mark.parametrize("offset", [0, 5])
def test_what_is_flushed_after_a_reset_that_was_killed_outlives_a_power_failure(
    offset: int,
) -> None:
    """Neither the folder goes, nor does the mark of the reset come back."""
    was_killed, operations = True, 0
    while was_killed:
        disk, operations = MemoryDisk(), operations + 1
        log = reopen(disk)
        disk.crash_after = operations
        try:
            log.reset(offset)
            disk.crash_after, was_killed = None, False
        except Killed:
            disk = disk.killed()
            log = reopen(disk)
        if log.log_end_offset != offset:
            log.reset(offset)
        log.append(batch(b"%04d" % offset), leader_epoch=1, timestamp_us=0)
        log.flush()
        found = reopen(disk.power_failed(lambda n: 0), boot_id="another")
        assert values_of(found) == expected(offset, offset + 1), operations
    assert operations > 10


# Damaged or torn


def test_in_the_same_boot_a_bad_batch_at_the_end_is_damage(disk: MemoryDisk) -> None:
    fill(disk, acknowledge=False)
    whole = disk.read_file(THIRD)
    for at in range(LENGTH, 2 * LENGTH):
        copy = disk.killed()
        copy.put(THIRD, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        same = reopen(copy.killed())
        assert "this boot of the machine" in same.offline_reason
        assert same.log_end_offset == 9
        other = reopen(copy, boot_id="another")
        assert (other.offline_reason, other.incomplete_reason) == ("", ""), "torn, perhaps"


def test_in_the_same_boot_an_append_that_was_cut_short_is_cut_off(disk: MemoryDisk) -> None:
    fill(disk)
    whole = disk.read_file(THIRD)
    following = stamped(10, b"0010", epoch=1)
    for length in range(1, len(following)):
        copy = disk.killed()
        copy.put(THIRD, whole + following[:length])
        log = reopen(copy)
        assert (log.offline_reason, log.incomplete_reason, log.log_end_offset) == ("", "", 10)


def test_in_the_same_boot_a_log_that_ends_before_what_was_acknowledged_is_damaged(
    disk: MemoryDisk,
) -> None:
    fill(disk)
    whole = disk.read_file(THIRD)
    for size in range(len(whole)):
        copy = disk.killed()
        copy.put(THIRD, whole[:size])
        assert reopen(copy).offline_reason


def test_what_was_flushed_is_told_from_a_torn_tail_by_the_next_boot_too(disk: MemoryDisk) -> None:
    log = fill(disk, acknowledge=False)
    log.flush()
    whole = disk.read_file(THIRD)
    disk.put(THIRD, whole[:-1])
    assert "it had been flushed" in reopen(disk, boot_id="another").offline_reason


def test_a_cut_without_proof_makes_the_log_incomplete_until_that_is_told(disk: MemoryDisk) -> None:
    fill(disk)
    disk.put(THIRD, disk.read_file(THIRD) + stamped(10, b"0010", epoch=1)[:50])
    disk.remove(OFFSETS)
    for _ in range(3):
        log = reopen(disk)
        assert log.offline_reason == ""
        assert log.incomplete_reason
        disk = disk.killed()
        log = reopen(disk)
    log.incompleteness_recorded()
    assert reopen(disk.killed()).incomplete_reason == ""


# Folders of earlier releases


def without_segments(disk: MemoryDisk) -> None:
    """The checkpoint as it was written before there was an offsets file."""
    state = json.loads(disk.read_file(CHECKPOINT).split(b"\n", 1)[1])
    del state["segments"]
    body = json.dumps(state, separators=(",", ":")).encode() + b"\n"
    disk.put(CHECKPOINT, b"JSLC 1 %08x\n%b" % (crc32c(body), body))
    disk.remove(OFFSETS)


@pytest.mark.parametrize("clean", [True, False])
def test_the_folder_of_a_release_without_the_record_is_believed_as_it_is(
    disk: MemoryDisk, clean: bool
) -> None:
    log = fill(disk)
    advance_log_start(log, 4)
    log.close(clean=True)
    without_segments(disk)
    old = disk.killed()
    log = reopen(disk, clean=clean)
    assert (log.offline_reason, log.incomplete_reason) == ("", "")
    assert values_of(log) == expected(4, 10)
    old.remove(SECOND)
    assert reopen(old, clean=clean).log_start_offset == 8, "it removed files before it said so"
    disk.remove(SECOND)
    assert reopen(disk, clean=clean).lacks_beginning, "from its first start here on it is recorded"


@pytest.mark.parametrize("left", [0, 2 * LENGTH])
def test_a_segment_that_is_cut_between_batches_while_it_is_rewritten_is_missing_records(
    disk: MemoryDisk, left: int
) -> None:
    """Its length is not on record then."""
    log = fill(disk)
    log.flush()
    log.damage.begin_swap(log.damage.segments()[1])
    disk = disk.killed()
    assert not reopen(disk).offline_reason
    disk.put(SECOND, disk.files("/17")[SECOND.rpartition("/")[2]][:left])
    again = reopen(disk)
    assert f"[4, 8) ends at offset {4 + left // LENGTH}" in again.offline_reason
    assert again.log_end_offset == 4 + left // LENGTH
