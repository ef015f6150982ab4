"""What message ids and producers age by: real time, whatever the wall clocks of the leaders say."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.producers import IDLE_US
from tests.support.log_disk import MemoryDisk
from tests.support.log_producers import crc_of

SECOND = 1_000_000
HOUR = 3600 * SECOND
WINDOW = 120 * SECOND
FILE = "/17/producers"


def message(message_id: bytes) -> EncodedBatch:
    block = b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % message_id
    return encode([b"x"], b"s", header_blocks=[block])


def open_log(disk: MemoryDisk, segment_bytes: int = 1 << 20) -> CommitLog:
    config = LogConfig(segment_bytes=segment_bytes)
    return CommitLog.open(disk, "/17", config, clean=True, duplicate_window_us=WINDOW)


def append(log: CommitLog, batch: EncodedBatch, epoch: int, wall_us: int, now_us: int) -> None:
    log.append(batch, leader_epoch=epoch, timestamp_us=wall_us, now_us=now_us)


def copied(log: CommitLog, now_us: int | None) -> CommitLog:
    """A follower's log that was given all of it at once; now_us: None if long after."""
    follower = open_log(MemoryDisk())
    slice_ = log.read(0, 1 << 20, log.log_end_offset)
    assert slice_ is not None
    follower.append_replica(log.pread(slice_), now_us=now_us)
    return follower


@pytest.fixture
def log(disk: MemoryDisk) -> CommitLog:
    return open_log(disk)


def is_known(log: CommitLog, message_id: bytes, now_us: int) -> bool:
    return log.producers.offset_of(b"s", message_id, now_us) is not None


@pytest.mark.parametrize("ahead", [-10 * HOUR, 10 * HOUR])
def test_an_id_is_known_under_a_leader_whose_clock_is_hours_off(log: CommitLog, ahead: int) -> None:
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"b"), 2, 100 * HOUR + ahead, now_us=SECOND)
    assert is_known(log, b"a", WINDOW)
    log.forget_message_ids(WINDOW)
    assert is_known(log, b"a", WINDOW)
    assert not is_known(log, b"a", WINDOW + 1)
    assert is_known(log, b"b", WINDOW + 1)
    assert not is_known(log, b"b", WINDOW + SECOND + 1)


def test_a_clock_that_is_set_back_keeps_no_id_for_longer_than_the_window(log: CommitLog) -> None:
    """The append timestamps stand still then."""
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    for seconds in range(1, 240, 10):
        append(log, message(b"%d" % seconds), 1, 50 * HOUR, now_us=seconds * SECOND)
        assert is_known(log, b"a", seconds * SECOND) == (seconds <= 120)


@pytest.mark.parametrize("ahead", [-10 * HOUR, 10 * HOUR])
def test_a_follower_in_sync_knows_ids_for_the_window_since_they_came(
    log: CommitLog, ahead: int
) -> None:
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"b"), 2, 100 * HOUR + ahead, now_us=0)
    follower = copied(log, now_us=7 * HOUR)
    assert is_known(follower, b"a", 7 * HOUR + WINDOW)
    assert not is_known(follower, b"a", 7 * HOUR + WINDOW + 1)


def test_who_copies_a_log_takes_the_time_between_batches_of_one_leader_for_passed(
    log: CommitLog,
) -> None:
    append(log, message(b"old"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"a"), 1, 101 * HOUR, now_us=HOUR)
    append(log, message(b"b"), 1, 101 * HOUR + SECOND, now_us=HOUR + SECOND)
    follower = copied(log, now_us=None)
    follower.forget_message_ids(0)
    assert not is_known(follower, b"old", 0)
    assert is_known(follower, b"a", WINDOW - SECOND)
    assert not is_known(follower, b"a", WINDOW - SECOND + 1)
    assert is_known(follower, b"b", WINDOW)


def test_who_copies_a_log_takes_no_time_for_passed_where_the_leader_changed(
    log: CommitLog,
) -> None:
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"b"), 2, 110 * HOUR, now_us=SECOND)
    assert is_known(copied(log, now_us=None), b"a", 0)


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("ahead", [-50 * HOUR, 50 * HOUR])
def test_a_restart_forgets_no_id_and_no_producer_for_the_clocks_of_leaders(
    disk: MemoryDisk, lost: bool, clean: bool, ahead: int
) -> None:
    """Whether read from the file, or rebuilt from the batches."""
    log = open_log(disk, segment_bytes=300)
    first = encode([b"p"], b"s", producer_id=7, producer_sequence=0)
    append(log, first, 1, 100 * HOUR, now_us=0)
    append(log, message(b"a"), 1, 100 * HOUR, now_us=SECOND)
    for number in range(8):
        wall_us = 100 * HOUR + ahead * (number % 2) + number * SECOND
        append(log, message(b"b%d" % number), 2 + number, wall_us, now_us=number * SECOND)
    log.flush()
    assert log.segment_count > 3
    log.close(clean=clean)
    if lost:
        disk.remove(FILE)
    again = open_log(disk)
    assert is_known(again, b"a", 5 * HOUR)
    assert not is_known(again, b"a", 5 * HOUR + WINDOW + SECOND)
    assert again.producers.check(7, 0, crc_of(first)) is not None


def test_a_rebuilt_memory_ages_ids_by_the_time_between_batches_of_one_leader(
    disk: MemoryDisk,
) -> None:
    log = open_log(disk)
    append(log, message(b"old"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"a"), 1, 101 * HOUR, now_us=HOUR)
    log.close(clean=True)
    disk.remove(FILE)
    again = open_log(disk)
    assert not is_known(again, b"old", 0)
    assert is_known(again, b"a", 0)


def test_time_that_a_saved_memory_has_counted_is_not_counted_again(disk: MemoryDisk) -> None:
    """A checkpoint was written while batches waited for their flush: a start reads them again."""
    log = open_log(disk)
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    log.flush()
    append(log, message(b"b"), 1, 100 * HOUR + SECOND, now_us=SECOND)
    append(log, message(b"c"), 1, 100 * HOUR + 100 * SECOND, now_us=100 * SECOND)
    log.records.save()
    again = open_log(disk)
    assert is_known(again, b"a", 0)
    assert not is_known(again, b"a", 20 * SECOND + 1)


def test_the_age_of_batches_that_came_with_a_newer_one_is_not_counted_again(
    disk: MemoryDisk, log: CommitLog
) -> None:
    """A follower that stood still gets them at once, and copies the next one late."""
    follower = open_log(MemoryDisk())

    def take(now_us: int | None) -> None:
        slice_ = log.read(follower.log_end_offset, 1 << 20, log.log_end_offset)
        assert slice_ is not None
        follower.append_replica(log.pread(slice_), now_us=now_us)

    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    take(0)
    append(log, message(b"b"), 1, 100 * HOUR + 60 * SECOND, now_us=60 * SECOND)
    append(log, encode([b"x"], b"s"), 1, 100 * HOUR + 100 * SECOND, now_us=100 * SECOND)
    take(100 * SECOND)
    assert is_known(follower, b"b", 180 * SECOND)
    assert not is_known(follower, b"b", 180 * SECOND + 1)
    append(log, message(b"c"), 1, 100 * HOUR + 101 * SECOND, now_us=101 * SECOND)
    take(None)
    assert is_known(follower, b"a", 0)
    assert is_known(follower, b"a", 19 * SECOND)
    assert not is_known(follower, b"a", 19 * SECOND + 1)


def test_time_is_not_counted_again_for_batches_that_were_cut_off(log: CommitLog) -> None:
    append(log, message(b"a"), 1, 100 * HOUR, now_us=0)
    append(log, message(b"b"), 1, 100 * HOUR + SECOND, now_us=SECOND)
    append(log, message(b"c"), 1, 100 * HOUR + 100 * SECOND, now_us=100 * SECOND)
    again = copied(log, None)
    again.truncate(1)
    slice_ = log.read(1, 1 << 20, log.log_end_offset)
    assert slice_ is not None
    again.append_replica(log.pread(slice_))
    assert is_known(again, b"a", 0)


@pytest.mark.parametrize("ahead", [-2 * IDLE_US, 2 * IDLE_US])
def test_a_producer_is_forgotten_after_a_day_of_silence_and_not_for_a_clock(
    log: CommitLog, ahead: int
) -> None:
    crc = crc_of(encode([b"x"], b"s"))

    def produce(producer_id: int, sequence: int, epoch: int, wall_us: int, now_us: int) -> None:
        batch = encode([b"x"], b"s", producer_id=producer_id, producer_sequence=sequence)
        append(log, batch, epoch, wall_us, now_us)

    produce(1, 0, 1, 10 * IDLE_US, now_us=0)
    produce(2, 0, 2, 10 * IDLE_US + ahead, now_us=SECOND)
    assert log.producers.check(1, 0, crc) is not None
    produce(2, 1, 2, 10 * IDLE_US + ahead, now_us=IDLE_US + 1)
    assert log.producers.check(1, 0, crc) is None
    assert log.producers.check(2, 0, crc) is not None
