"""A start finds a state file that the device refuses to read, or a disk that is full."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import StorageError, StorageFullError, UnavailableError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import Disk
from tests.support.compacting import GRACE_US, compact
from tests.support.log_batches import batch, read_all
from tests.support.log_disk import FaultyDisk, MemoryDisk

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=100)
CHECKPOINT, PRODUCERS, COMPACTION = "/17/checkpoint", "/17/producers", "/17/compaction"
END = 20


def reopen(disk: Disk, *, clean: bool = False) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean, boot_id="b")


@pytest.fixture
def memory() -> MemoryDisk:
    """A compacted log with producers, closed cleanly."""
    memory = MemoryDisk()
    log = reopen(memory)
    for offset in range(END):
        key, value = b"%d" % (offset % 8), None if offset == 12 else b"v"
        data = encode([value], b"s", keys=[key], producer_id=7, producer_sequence=offset)
        log.append(data, leader_epoch=1, timestamp_us=0)
        log.note_end()
    log.seal()
    log.flush()
    for wall_us in (1, 1 + GRACE_US):
        compact(memory, log, wall_us=wall_us)
    log.close(clean=True)
    return memory


@pytest.fixture
def bad_disk(memory: MemoryDisk) -> FaultyDisk:
    return FaultyDisk(memory)


def append(log: CommitLog, count: int) -> None:
    for _ in range(count):
        data = batch(b"%04d" % log.log_end_offset)
        log.append(data, leader_epoch=log.epochs.latest_epoch, timestamp_us=0)
        log.note_end()


# A file that cannot be read


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("path", [CHECKPOINT, PRODUCERS, COMPACTION])
def test_a_state_file_that_the_device_refuses_is_a_damaged_one(
    memory: MemoryDisk, path: str, clean: bool
) -> None:
    damaged, refused = memory.killed(), FaultyDisk(memory)
    damaged.put(path, b"rot")
    refused.fail("read_file", path, errno.EIO)
    one, other = reopen(damaged, clean=clean), reopen(refused, clean=clean)
    assert other.offline_reason == other.incomplete_reason == ""
    (said,), (expected,) = other.damaged_files, one.damaged_files
    assert (said.path, said.instead) == (path, expected.instead)
    assert "Input/output error" in said.reason
    assert other.compaction.state == one.compaction.state
    assert other.producers.image() == one.producers.image()
    assert other.epochs.entries == one.epochs.entries
    for log in (one, other):
        assert (log.log_start_offset, log.flushed_offset, log.log_end_offset) == (0, END, END)
    assert [each.values() for each in read_all(other)] == [each.values() for each in read_all(one)]


@pytest.mark.parametrize("path", [CHECKPOINT, PRODUCERS])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.EACCES])
def test_another_error_says_nothing_of_the_file(
    bad_disk: FaultyDisk, path: str, error: int
) -> None:
    before = bad_disk.read_file(path)
    bad_disk.fail("read_file", path, error)
    with pytest.raises(StorageError):
        reopen(bad_disk)
    bad_disk.heal()
    assert bad_disk.read_file(path) == before
    assert reopen(bad_disk).damaged_files == ()


def test_without_its_offsets_file_a_log_is_not_opened(bad_disk: FaultyDisk) -> None:
    """It alone says that a log is being emptied, or may lack records. It may be readable again."""
    bad_disk.fail("read_file", "/17.offsets", errno.EIO)
    with pytest.raises(StorageError):
        reopen(bad_disk)
    bad_disk.heal()
    assert reopen(bad_disk).damaged_files == ()


@pytest.mark.parametrize("clean", [True, False])
def test_a_checkpoint_that_can_be_read_again_is_not_believed(
    memory: MemoryDisk, bad_disk: FaultyDisk, clean: bool
) -> None:
    bad_disk.fail("read_file", CHECKPOINT, errno.EIO)
    log = reopen(bad_disk, clean=clean)
    bad_disk.heal()
    log.truncate(3)
    again = reopen(memory.killed())
    assert again.offline_reason == ""
    assert again.log_end_offset == log.log_end_offset <= 3


def test_a_compaction_state_that_can_be_read_again_is_not_believed(
    memory: MemoryDisk, bad_disk: FaultyDisk
) -> None:
    reopen(memory).compaction.note_committed(END + 9)
    bad_disk.fail("read_file", COMPACTION, errno.EIO)
    bad_disk.fail("write_atomic", COMPACTION, errno.ENOSPC)
    log = reopen(bad_disk)
    with pytest.raises(StorageFullError):
        append(log, 1)
    bad_disk.heal()
    append(log, 5)
    assert reopen(memory.killed()).committed_below <= END


@pytest.mark.parametrize("is_rebuilt", [True, False])
def test_a_sealed_segment_that_the_device_refuses_is_only_damaged(
    memory: MemoryDisk, bad_disk: FaultyDisk, is_rebuilt: bool
) -> None:
    """What producers stored in it is not known any more. The rest of the log is good."""
    memory.put(PRODUCERS, b"rot")
    if is_rebuilt:  # It does not tell the content of batches of which rows were removed.
        reopen(memory, clean=True).close(clean=True)
    for segment in reopen(memory.killed(), clean=True).damage.segments()[:-1]:
        bad_disk.fail("pread", segment.path, errno.EIO)
    log = reopen(bad_disk, clean=True)
    assert (log.offline_reason, log.log_end_offset) == ("", END)
    append(log, 1)


def test_a_refused_checkpoint_stays_if_the_log_cannot_be_opened_without_it(
    bad_disk: FaultyDisk,
) -> None:
    before = bad_disk.read_file(CHECKPOINT)
    bad_disk.fail("read_file", CHECKPOINT, errno.EIO)
    bad_disk.fail("pread", f"/17/{0:020}.log", errno.EIO)
    with pytest.raises(StorageError):
        reopen(bad_disk)
    bad_disk.heal()
    assert bad_disk.read_file(CHECKPOINT) == before


def test_a_compaction_state_that_cannot_be_opened_keeps_only_appends_waiting(
    memory: MemoryDisk, bad_disk: FaultyDisk
) -> None:
    log = reopen(memory)
    log.compaction.note_committed(END + 9)  # Its append never was.
    bad_disk.fail("read_file", COMPACTION, errno.EMFILE)
    log = reopen(bad_disk)
    assert (log.offline_reason, log.damaged_files) == ("", ())
    assert read_all(log)
    with pytest.raises(StorageError):
        append(log, 1)
    assert log.log_end_offset == END
    bad_disk.heal()
    assert log.committed_below == END
    append(log, 5)
    assert reopen(memory.killed()).committed_below == END


# A disk that is full


@pytest.fixture
def full(memory: MemoryDisk, bad_disk: FaultyDisk) -> FaultyDisk:
    """The follower died between `note_committed` and its append."""
    reopen(memory).compaction.note_committed(END + 9)
    bad_disk.fail("write_atomic", COMPACTION, errno.ENOSPC)
    return bad_disk


@pytest.mark.parametrize("stops_cleanly", [True, False])
def test_a_state_that_finds_no_room_is_cut_before_anything_is_appended(
    memory: MemoryDisk, full: FaultyDisk, stops_cleanly: bool
) -> None:
    """Otherwise the next start would take new records for those that were committed."""
    log = reopen(full)
    assert (log.offline_reason, log.committed_below) == ("", END)
    assert read_all(log)
    with pytest.raises(StorageFullError):
        append(log, 1)
    assert log.log_end_offset == END
    if stops_cleanly:
        log.close(clean=True)
        log = reopen(full, clean=True)
        with pytest.raises(StorageFullError):
            append(log, 1)
    full.heal()
    append(log, 5)
    assert log.log_end_offset == END + 5
    again = reopen(memory.killed())
    assert (again.log_end_offset, again.committed_below) == (END + 5, END)


class _Mutex:
    """Lets a pass of compaction begin just before the owner of the log gets the mutex."""

    def __init__(self) -> None:
        self.before: Callable[[], None] | None = None

    def __enter__(self) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()

    def __exit__(self, *_: object) -> None:
        pass


def test_a_pass_that_begins_while_the_state_is_settled_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise nobody would know that tombstones are being removed."""
    mutex, full = _Mutex(), FaultyDisk(MemoryDisk())
    log = reopen(full)
    append(log, END)
    log.seal()
    log.flush()
    log.compaction.note_committed(END + 9)
    full.fail("write_atomic", COMPACTION, errno.ENOSPC)
    monkeypatch.setattr(full, "mutex", lambda: mutex)
    log = reopen(full)
    full.heal()
    task = log.compaction.plan(
        log.compaction.sources(END), token="1", tombstones_below=END, kept_base_offsets=frozenset()
    )
    mutex.before = lambda: log.compaction.begin(task)
    append(log, 1)
    assert log.compaction.state.tombstones_gone_below == END
    assert reopen(full).compaction.state.tombstones_gone_below == END


def test_a_pass_that_began_before_a_repair_cleans_nothing(bad_disk: FaultyDisk) -> None:
    """The repaired segment may hold older records of the same keys. Nothing is clean yet."""
    log = reopen(bad_disk)
    log.compaction.forget()
    task = log.compaction.plan(
        log.compaction.sources(END), token="1", tombstones_below=0, kept_base_offsets=frozenset()
    )
    log.compaction.begin(task)
    log.compaction.note_repaired(0)
    with pytest.raises(UnavailableError):
        log.compaction.finish(task, replace(log.compaction.state, cleaned_to=END))
    assert log.compaction.state.cleaned_to == 0


def test_a_log_that_lost_its_state_is_opened_on_a_full_disk(memory: MemoryDisk) -> None:
    memory.put(COMPACTION, b"rot")
    disk = FaultyDisk(memory)
    disk.fail("write_atomic", COMPACTION, errno.ENOSPC)
    log = reopen(disk, clean=True)
    assert log.offline_reason == ""
    disk.heal()
    append(log, 1)
    again = reopen(memory.killed())
    assert again.damaged_files == ()
    assert again.compaction.state == log.compaction.state
