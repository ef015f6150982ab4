"""A leader epoch that has no records of its own, and what a restart still knows of it."""

from __future__ import annotations

import errno

import pytest

from jetstream_protocol.errors import StorageError
from jetstream_protocol.logfiles.offsets_file import Bounds, decode, encode_bounds
from jetstream_protocol.logfiles.recorded import NO_EPOCH_LED
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.replication.core.unclean_election import last_epoch_begun
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk, MemoryDisk

OFFSETS = "/17.offsets"


def reopen(disk: MemoryDisk | FaultyDisk) -> CommitLog:
    return CommitLog.open(disk, "/17", LogConfig(), clean=False, boot_id="")


def flushed(disk: MemoryDisk | FaultyDisk) -> CommitLog:
    """A log with the offsets 0 to 4, of epoch 1."""
    log = reopen(disk)
    for number in range(5):
        log.append(batch(b"%d" % number), leader_epoch=1, timestamp_us=number)
    log.flush()
    return log


def led(disk: MemoryDisk | FaultyDisk) -> CommitLog:
    """The same log, whose node began epoch 3 at its end and got no records."""
    log = flushed(disk)
    log.start_epoch(3)
    log.note_epoch(3)
    log.flush()
    return log


def nothing_unsynced(disk: MemoryDisk) -> MemoryDisk:
    return disk.power_failed(lambda n: 0)


def test_an_epoch_without_records_is_known_after_a_power_failure(disk: MemoryDisk) -> None:
    led(disk)
    found = reopen(nothing_unsynced(disk))
    assert (found.epochs.latest_epoch, found.led_epoch.leader_epoch) == (1, 3)
    assert last_epoch_begun(found) == 3


def test_an_epoch_counts_as_noted_once_it_is_flushed(disk: MemoryDisk) -> None:
    log = flushed(disk)
    log.note_epoch(3)
    assert log.led_epoch == NO_EPOCH_LED
    log.note_end()
    log.records.note_bounds(durable=True)  # By somebody who removes records in front.
    assert reopen(nothing_unsynced(disk)).led_epoch == NO_EPOCH_LED
    log.flush()
    assert log.led_epoch == (3, 5)


def test_a_note_is_kept_while_the_log_grows_and_by_a_clean_stop(disk: MemoryDisk) -> None:
    log = led(disk)
    log.append(batch(b"of another leader"), leader_epoch=4, timestamp_us=9)
    log.flush()
    assert reopen(nothing_unsynced(disk)).led_epoch.leader_epoch == 3
    log.close(clean=True)
    found = CommitLog.open(disk, "/17", LogConfig(), clean=True, boot_id="")
    assert (found.led_epoch.leader_epoch, last_epoch_begun(found)) == (3, 4)


def test_a_log_that_was_cut_in_front_of_it_says_nothing_of_the_epoch(disk: MemoryDisk) -> None:
    """Nor once it has grown beyond that again, with the records of another leader."""
    log = led(disk)
    log.truncate(4)
    assert log.led_epoch == NO_EPOCH_LED
    log.append(batch(b"another"), leader_epoch=2, timestamp_us=9)
    log.flush()
    found = reopen(nothing_unsynced(disk))
    assert (found.log_end_offset, found.led_epoch, last_epoch_begun(found)) == (5, NO_EPOCH_LED, 2)


def test_a_cut_at_it_or_after_it_changes_nothing(disk: MemoryDisk) -> None:
    log = led(disk)
    log.append(batch(b"uncommitted"), leader_epoch=3, timestamp_us=9)
    log.truncate(5)
    assert reopen(nothing_unsynced(disk)).led_epoch == (3, 5)


def test_a_cut_that_was_recorded_and_not_made_forgets_it_too(disk: MemoryDisk) -> None:
    log = led(disk)
    faulty = FaultyDisk(disk)
    log = reopen(faulty)
    faulty.fail("truncate", ".log", errno.EIO)
    with pytest.raises(StorageError, match="truncating"):
        log.truncate(2)
    assert reopen(nothing_unsynced(disk)).led_epoch == NO_EPOCH_LED


def test_a_log_that_is_begun_anew_says_nothing_of_the_epoch(disk: MemoryDisk) -> None:
    log = led(disk)
    log.reset(5)
    assert (log.led_epoch, last_epoch_begun(log)) == (NO_EPOCH_LED, -1)
    assert reopen(nothing_unsynced(disk)).led_epoch == NO_EPOCH_LED


def test_a_log_that_lost_records_says_nothing_of_the_epoch(disk: MemoryDisk) -> None:
    led(disk)
    path = "/17/00000000000000000000.log"
    disk.truncate(path, disk.size(path) - 8)
    found = reopen(disk)
    assert (found.log_end_offset, found.is_damaged) == (4, True)
    assert (found.led_epoch, last_epoch_begun(found)) == (NO_EPOCH_LED, 1)


def test_a_full_disk_is_waited_for_and_takes_no_log_offline(disk: MemoryDisk) -> None:
    flushed(disk)
    faulty = FaultyDisk(disk)
    log = reopen(faulty)
    log.note_epoch(3)
    faulty.fail("write", ".offsets", errno.ENOSPC)
    assert (log.flush(), log.led_epoch, log.offline_reason) == (5, NO_EPOCH_LED, "")
    faulty.heal()
    log.flush()
    assert log.led_epoch == (3, 5)
    assert reopen(nothing_unsynced(disk)).led_epoch == (3, 5)


def test_a_note_that_could_not_be_synced_takes_the_log_offline(disk: MemoryDisk) -> None:
    flushed(disk)
    faulty = FaultyDisk(disk)
    log = reopen(faulty)
    log.note_epoch(3)
    faulty.fail("fsync", ".offsets", errno.EIO)
    with pytest.raises(StorageError, match="noting the offsets"):
        log.flush()
    assert log.led_epoch == NO_EPOCH_LED
    assert log.health.has_failed


def test_releases_that_know_no_such_note_read_the_same_offsets() -> None:
    """Four bytes that were 0, and that they pass over, hold it."""
    with_epoch, without = (encode_bounds(b"17", Bounds(2, 5, leader_epoch=e)) for e in (3, 0))
    assert [at for at in range(32) if with_epoch[at] != without[at]] == [8, 9, 10, 11, 12]
    assert decode(without, b"17").bounds == Bounds(2, 5)
    assert decode(with_epoch, b"17").bounds == Bounds(2, 5, leader_epoch=3)
