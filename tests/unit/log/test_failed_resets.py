"""What a reset, a truncation or a deletion that failed, was killed or refused, has left behind."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from itertools import product

import pytest

from jetstream_protocol.errors import StorageError, StorageFullError
from jetstream_protocol.logfiles.offsets_file import Bounds
from jetstream_protocol.logfiles.recorded import Recorded
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Buffer
from jetstream_server.log.offsets_file import OffsetsFile
from jetstream_server.log.recovery import Recovered
from tests.support.log_batches import batch, values_of
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
from tests.support.log_start import advance_log_start


def reopen(disk: FaultyDisk | MemoryDisk, boot_id: str = "boot") -> CommitLog:
    return CommitLog.open(disk, "/17", clean=False, boot_id=boot_id)


def append(log: CommitLog, count: int = 1) -> None:
    for _ in range(count):
        log.append(batch(b"%04d" % log.log_end_offset), leader_epoch=1, timestamp_us=0)


def expected(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


class LateDisk(FaultyDisk):
    """A write that fails has arrived all the same."""

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        try:
            super().write_atomic(path, data, durable=durable)
        except OSError:
            self._disk.write_atomic(path, data)
            raise

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        try:
            super().write(path, position, buffers)
        except OSError:
            self._disk.write(path, position, buffers)
            raise


def test_a_log_that_is_revived_after_its_emptying_failed_is_not_emptied_by_the_next_start() -> None:
    disk = LateDisk(MemoryDisk())
    log = reopen(disk)
    append(log, 3)
    log.flush()
    disk.fail("write", ".offsets", errno.EIO)
    with pytest.raises(StorageError):
        log.reset(50)
    disk.heal()
    log.salvage()
    assert values_of(reopen(disk)) == expected(3)


def test_a_log_that_is_revived_after_its_reset_failed_holds_nothing_of_before() -> None:
    """Retention has taken a segment out, and its file cannot be removed."""
    disk = FaultyDisk(MemoryDisk())
    log = reopen(disk)
    append(log, 2)
    log.seal()
    append(log, 2)
    log.flush()
    log.begin_advance(2)
    disk.fail("remove", "0000.log", errno.EIO)
    with pytest.raises(StorageError):
        log.reset(2)
    disk.heal()
    log.salvage()
    append(log)
    log.flush()
    for each in (log, reopen(disk)):
        assert (each.log_start_offset, each.log_end_offset) == (2, 3)
        assert values_of(each) == [b"0002"]


def test_a_checkpoint_whose_write_failed_does_not_say_where_the_log_starts() -> None:
    disk = LateDisk(MemoryDisk())
    log = reopen(disk)
    append(log)
    log.reset(0)
    disk.fail("write_atomic", "checkpoint", errno.EIO)
    with pytest.raises(StorageError):
        log.reset(4)
    disk.heal()
    log.reset(0)
    append(log, 6)
    log.flush()
    assert values_of(reopen(disk)) == expected(6)


@pytest.mark.parametrize("end_offset", [0, 2])
def test_a_state_of_compaction_whose_write_failed_says_nothing_about_later_records(
    end_offset: int,
) -> None:
    """An unclean election has made the log shorter than what was committed."""
    disk = LateDisk(MemoryDisk())
    log = reopen(disk)
    append(log, 6)
    disk.fail("write_atomic", "compaction", errno.EIO)
    with pytest.raises(StorageError):
        log.compaction.note_committed(5)
    disk.heal()
    if end_offset:
        log.truncate(end_offset)
    else:
        log.reset(0)
    append(log, 4)
    log.flush()
    assert reopen(disk).committed_below <= end_offset


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_failed_append_leaves_no_record_that_later_ones_were_committed(fails_first: bool) -> None:
    """The disk that refuses the append refuses to take back what was noted before it, too."""
    disk = (LateDisk if fails_first else FaultyDisk)(MemoryDisk())
    log = reopen(disk)
    append(log, 2)
    if fails_first:
        disk.fail("write_atomic", "compaction", errno.EIO)
        with pytest.raises(StorageError):
            log.compaction.note_committed(5)
        disk.heal()
    else:
        log.compaction.note_committed(5)
        disk.fail("write_atomic", "compaction", errno.ENOSPC)
    log.compaction.not_appended(2)
    disk.heal()
    append(log, 4)
    log.flush()
    assert reopen(disk).committed_below <= 2


class BadSector(FaultyDisk):
    """`path` lies on a bad sector, until another file has that name."""

    path = "/17.offsets"

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        super().write_atomic(path, data, durable=durable)
        if path == self.path:
            self.path = ""

    def _check(self, operation: str, path: str) -> None:
        super()._check(operation, path)
        if path == self.path and operation in ("read_file", "pread", "write", "fsync"):
            raise OSError(errno.EIO, "Input/output error", path)


def unread_log(disk: FaultyDisk) -> CommitLog:
    """A log that could not be opened because of its device."""
    log = CommitLog(disk, "/17", LogConfig(), Recovered(recorded=Recorded(boot_id="boot")))
    log.health.unread("Input/output error")
    return log


def test_a_log_whose_offsets_file_lies_on_a_bad_sector_can_be_emptied() -> None:
    memory = MemoryDisk()
    log = reopen(memory)
    append(log, 6)
    log.flush()
    disk = BadSector(memory)
    with pytest.raises(StorageError):
        reopen(disk)
    log = unread_log(disk)
    log.reset(3)
    append(log, 2)
    log.note_end()
    log.flush()
    for each in (log, reopen(memory.killed()), reopen(memory.power_failed(lambda count: 0))):
        assert (each.offline_reason, each.incomplete_reason) == ("", "")
        assert (each.log_start_offset, each.log_end_offset) == (3, 5)


@pytest.mark.parametrize("dies_after", range(40))
def test_a_kill_while_that_log_is_emptied_leaves_nothing_of_it(dies_after: int) -> None:
    """Either it still cannot be opened, or it is empty: nobody knows what it lacks."""
    memory = MemoryDisk()
    log = reopen(memory)
    append(log, 6)
    log.flush()
    disk, before = BadSector(memory), memory.read_file("/17.offsets")
    memory.crash_after = memory.operations + dies_after
    with suppress(Killed):
        unread_log(disk).reset(3)
    found = memory.killed()
    if found.read_file("/17.offsets") == before:
        disk._disk = found
        with pytest.raises(StorageError):
            reopen(disk)
    else:
        again = reopen(found)
        assert (again.log_start_offset, again.log_end_offset) == (3, 3)


def test_what_could_not_be_synced_beside_a_log_is_written_again() -> None:
    disk = FaultyDisk(MemoryDisk())
    offsets = OffsetsFile(disk, "/17", "boot")
    offsets.create()
    disk.fail("fsync", ".offsets", errno.EIO)
    with pytest.raises(OSError):
        offsets.write_bounds(Bounds(0, 5), durable=True)
    disk.heal()
    before = disk.count("write", ".offsets")
    for _ in range(2):
        offsets.write_bounds(Bounds(0, 5), durable=True)
        assert disk.count("write", ".offsets") == before + 1


def test_after_a_reset_without_room_no_power_failure_empties_the_log() -> None:
    """Wherever the process was killed meanwhile, what is flushed later stays."""
    for operations in range(12):
        memory = MemoryDisk()
        disk = FaultyDisk(memory)
        log = reopen(disk)
        append(log, 3)
        log.flush()
        disk.fail("write_atomic", "checkpoint", errno.ENOSPC)
        memory.crash_after = memory.operations + operations
        with suppress(Killed, StorageFullError):
            log.reset(50)
        killed = memory.killed()
        log = reopen(killed)
        append(log)
        log.flush()
        found = killed.power_failed(lambda n: 0)
        again = reopen(found, "another")
        assert values_of(again) == expected(4), operations


def killed_in_a_truncation(operations: int) -> MemoryDisk:
    """A flushed log of three records was to be cut to one; so many operations were done."""
    memory = MemoryDisk()
    log = reopen(memory)
    append(log, 3)
    log.flush()
    memory.crash_after = memory.operations + operations
    with suppress(Killed):
        log.truncate(1)
    return memory.killed()


def test_a_truncation_that_was_killed_is_synced_before_what_follows_it() -> None:
    """Whether the next segment is flushed by the same process or by the one after it."""
    for operations, is_killed in product(range(8), (False, True)):
        killed = killed_in_a_truncation(operations)
        log = reopen(killed)
        log.seal()
        if is_killed:
            killed = killed.killed()
            log = reopen(killed)
        append(log)
        log.flush()
        again = reopen(killed.power_failed(lambda n: 0), "another")
        assert again.offline_reason == "", (operations, is_killed)
        assert values_of(again) == expected(log.log_end_offset), (operations, is_killed)


@pytest.mark.parametrize("starts_before", [False, True])
@pytest.mark.parametrize("offset", [2, 9])
def test_a_log_that_was_to_be_emptied_knows_its_start_though_a_power_failure_tears_the_mark(
    offset: int, starts_before: bool
) -> None:
    is_there = 0
    for operations in range(6):
        memory = MemoryDisk()
        log = reopen(memory)
        log.append(batch(records=4), leader_epoch=1, timestamp_us=0)
        advance_log_start(log, 3)
        memory.crash_after = memory.operations + operations
        with suppress(Killed):
            log.reset(offset)
        killed, start = memory.killed(), min(3, offset)
        if starts_before:
            start = reopen(killed).log_start_offset
        killed.write("/17.offsets", 0, [bytes(8)])
        again = reopen(killed, "another")
        if again.log_end_offset == 4:
            assert again.log_start_offset >= start, operations
            is_there += 1
    assert is_there


def test_a_start_syncs_what_a_killed_truncation_has_cut() -> None:
    """Otherwise it could come back between new records, of which none was flushed either."""
    for operations in range(8):
        killed = killed_in_a_truncation(operations)
        log = reopen(killed)
        again = reopen(killed.power_failed(lambda n: 0), "another")
        assert again.log_end_offset == log.log_end_offset, operations


def test_a_folder_that_was_made_in_part_is_deleted() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = reopen(disk)
    disk.fail("create", ".offsets", errno.EIO)
    with pytest.raises(StorageError):
        append(log)
    disk.heal()
    log.delete()
    assert disk.list_directory("/") == []
