"""State files of a log that are damaged or missing: said by name, and replaced by what is safe."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import encode
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.state_files import DamagedFile
from tests.support.compacting import GRACE_US, compact
from tests.support.log_disk import MemoryDisk

CONFIG = LogConfig(segment_bytes=300)
BOOT = "the boot"
CHECKPOINT, PRODUCERS, COMPACTION = "/17/checkpoint", "/17/producers", "/17/compaction"
OFFSETS = "/17.offsets"
TOMBSTONE_AT = 12


def reopen(disk: MemoryDisk, *, clean: bool = True, boot_id: str = BOOT) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean, boot_id=boot_id)


@pytest.fixture
def closed() -> MemoryDisk:
    """A compacted log with producers, closed cleanly: it has every state file but `damage`."""
    disk = MemoryDisk()
    log = reopen(disk, clean=False)
    for offset in range(20):
        value = None if offset == TOMBSTONE_AT else b"v"
        key = b"deleted" if offset in (5, TOMBSTONE_AT) else b"%d" % (offset % 8)
        batch = encode([value], b"s", keys=[key], producer_id=7, producer_sequence=offset)
        log.append(batch, leader_epoch=1, timestamp_us=0)
        log.note_end()
    log.seal()
    log.flush()
    for wall_us in (1, 1 + GRACE_US):
        compact(disk, log, wall_us=wall_us)
    log.close(clean=True)
    return disk


def flip(disk: MemoryDisk, path: str, at: int) -> None:
    data = bytearray(disk.read_file(path))
    data[at] ^= 1
    disk.put(path, bytes(data))


def damaged(log: CommitLog, path: str) -> DamagedFile:
    (found,) = log.damaged_files
    assert found.path == path
    assert found.reason
    assert found.instead
    return found


@pytest.mark.parametrize("clean", [True, False])
def test_of_a_sound_log_nothing_is_said(closed: MemoryDisk, clean: bool) -> None:
    assert reopen(closed, clean=clean).damaged_files == ()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("path", [CHECKPOINT, PRODUCERS, COMPACTION, OFFSETS])
def test_every_flipped_bit_of_a_state_file_is_said_by_name(
    closed: MemoryDisk, path: str, clean: bool
) -> None:
    whole = closed.read_file(path)
    for at in range(0, len(whole), 5):
        flip(closed, path, at)
        log = reopen(closed, clean=clean)
        damaged(log, path)
        assert log.offline_reason == log.incomplete_reason == ""
        assert log.log_end_offset == 20
        closed.put(path, whole)


@pytest.mark.parametrize("length", [1, 30, 33, 70, 127, 129, 4000])
def test_an_offsets_file_of_another_size_is_said(closed: MemoryDisk, length: int) -> None:
    whole = closed.read_file(OFFSETS)
    closed.put(OFFSETS, (whole + b"\xff" * 4000)[:length])
    damaged(reopen(closed), OFFSETS)
    assert reopen(closed).damaged_files == (), "it is said once, and mended"


def test_a_slot_of_the_offsets_file_that_was_zeroed_is_said(closed: MemoryDisk) -> None:
    whole = closed.read_file(OFFSETS)
    for start, end in ((0, 64), (64, 128), (0, 128)):
        closed.put(OFFSETS, whole[:start] + bytes(end - start) + whole[end:])
        damaged(reopen(closed), OFFSETS)


def test_a_log_that_was_never_flushed_has_no_bounds_and_that_is_no_damage() -> None:
    disk = MemoryDisk()
    log = reopen(disk, clean=False)
    log.append(encode([b"v"], b"s"), leader_epoch=1, timestamp_us=0)
    log.note_end()
    assert reopen(disk.killed(), clean=False).damaged_files == ()


@pytest.mark.parametrize("path", [PRODUCERS, COMPACTION])
def test_a_file_that_the_checkpoint_knows_of_is_missed(closed: MemoryDisk, path: str) -> None:
    closed.remove(path)
    assert "missing" in damaged(reopen(closed), path).reason
    closed.remove(CHECKPOINT)
    assert path not in [found.path for found in reopen(closed).damaged_files]


def test_a_log_that_was_never_compacted_misses_no_file() -> None:
    disk = MemoryDisk()
    log = reopen(disk, clean=False)
    log.append(encode([b"v"], b"s"), leader_epoch=1, timestamp_us=0)
    log.close(clean=True)
    log = reopen(disk)
    assert log.damaged_files == ()
    log.close(clean=True)
    assert '"compaction":false' in disk.read_file(CHECKPOINT).decode()


@pytest.mark.parametrize("is_missing", [True, False])
def test_without_its_file_a_compacted_log_lacks_whatever_it_may_lack(
    closed: MemoryDisk, is_missing: bool
) -> None:
    """Its followers learn which tombstones it may have removed, and accept its gaps."""
    before = reopen(closed).compaction.state
    if is_missing:
        closed.remove(COMPACTION)
    else:
        closed.put(COMPACTION, b"rot")
    log = reopen(closed)
    assert TOMBSTONE_AT < log.tombstones_gone_below <= before.tombstones_gone_below
    assert 0 < log.committed_below <= before.committed_below
    assert log.compaction.state.cleaned_to == 0
    again = reopen(closed)
    assert again.damaged_files == (), "it is written anew at once"
    assert again.compaction.state == log.compaction.state


def test_a_segment_that_cannot_be_read_counts_as_compacted(closed: MemoryDisk) -> None:
    log = reopen(closed)
    last = next(each for each in reversed(log.damage.segments()) if each.size)
    closed.remove(COMPACTION)
    flip(closed, last.path, 20)
    assert reopen(closed).tombstones_gone_below == last.next_offset


def test_a_damaged_list_of_damage_is_said_and_all_is_inspected(closed: MemoryDisk) -> None:
    closed.put("/17/damage", b"rot")
    log = reopen(closed)
    assert log.damage.is_unknown
    damaged(log, "/17/damage")
