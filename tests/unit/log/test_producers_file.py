"""What is remembered against duplicates survives a restart, whatever became of its file."""

from __future__ import annotations

import errno

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import StorageError, UnknownOutcomeError
from jetstream_protocol.logfiles import checkpoint_file
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.producers import StoredBatch
from tests.support.log_batches import stamped
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.log_producers import crc_of
from tests.support.log_start import advance_log_start

P = 2**62 + 1
FILE = "/17/producers"


def produced(sequence: int, ids: tuple[bytes, ...] = ()) -> EncodedBatch:
    blocks = [b"NATS/1.0\r\nNats-Msg-Id: %b\r\n\r\n" % i for i in ids] or None
    if blocks:
        return encode([b"x"] * len(ids), b"s", header_blocks=blocks)
    return encode([b"x"], b"s", producer_id=P, producer_sequence=sequence)


CRC = crc_of(produced(0))
"""Of every producer's batch here: the numbers are in the header."""
LENGTH = produced(0).length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)


def open_log(disk: MemoryDisk | FaultyDisk, *, clean: bool = False) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean, duplicate_window_us=1000)


def make(disk: MemoryDisk, sequences: int, ids: tuple[bytes, ...] = ()) -> CommitLog:
    """A log that sealed and flushed along the way, as a killed process leaves it."""
    log = open_log(disk)
    for sequence in range(sequences):
        log.append(produced(sequence), leader_epoch=sequence // 6, timestamp_us=sequence)
        if sequence % 5 == 4:
            log.flush()
    if ids:
        log.append(produced(0, ids), leader_epoch=sequences // 6, timestamp_us=sequences)
    return log


def remembered(log: CommitLog) -> tuple[object, ...]:
    return log.producers.image()


@pytest.mark.parametrize("sequences", [1, 4, 5, 9, 10, 23])
@pytest.mark.parametrize("clean", [False, True])
def test_a_restart_forgets_nothing(disk: MemoryDisk, sequences: int, clean: bool) -> None:
    log = make(disk, sequences, (b"a", b"b"))
    if clean:
        log.close(clean=True)
    again = open_log(disk, clean=clean)
    assert remembered(again) == remembered(log)
    assert again.producers.offset_of(b"s", b"b", sequences) == sequences + 1
    assert again.producers.check(P, sequences - 1, CRC) == StoredBatch(
        sequences - 1, sequences - 1, sequences, CRC
    )


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("damage", [None, b"", b"x" * 100, b"JSLC 1 00000000\n{}\n"])
def test_a_missing_or_damaged_file_is_rebuilt_from_the_log(
    disk: MemoryDisk, clean: bool, damage: bytes | None
) -> None:
    log = make(disk, 23, (b"a",))
    if clean:
        log.close(clean=True)
    if damage is None:
        disk.remove(FILE)
    else:
        disk.put(FILE, damage)
    assert remembered(open_log(disk, clean=clean)) == remembered(log)


def test_a_flipped_byte_anywhere_in_the_file_costs_nothing(disk: MemoryDisk) -> None:
    log = make(disk, 12, (b"a",))
    log.close(clean=True)
    good = disk.read_file(FILE)
    for at in range(len(good)):
        spoilt = bytearray(good)
        spoilt[at] ^= 1
        disk.put(FILE, bytes(spoilt))
        assert remembered(open_log(disk, clean=True)) == remembered(log)


def as_version_1(disk: MemoryDisk) -> None:
    """The file as earlier releases wrote it: no CRCs, and ids without their subjects."""
    state = checkpoint_file.decode(disk.read_file(FILE), "producers", "17")
    assert state.pop("version") == 2
    for producer in state["producers"]:
        producer[3] = [row[:3] for row in producer[3]]
    state["message_ids"] = [
        [offset, time_us, key.partition(" ")[2]] for offset, time_us, key in state.pop("ids")
    ]
    disk.put(FILE, checkpoint_file.encode("producers", "17", state))


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("ids", [(), (b"a", b"b")])
def test_what_a_file_of_an_earlier_release_lacks_is_read_from_the_records(
    disk: MemoryDisk, clean: bool, ids: tuple[bytes, ...]
) -> None:
    log = make(disk, 13, ids)
    log.flush()
    if clean:
        log.close(clean=True)
    else:
        log.append(produced(13), leader_epoch=4, timestamp_us=14)
    as_version_1(disk)
    again = open_log(disk, clean=clean)
    assert not again.damaged_files
    assert remembered(again) == remembered(log)
    for message_id in ids:
        assert again.producers.offset_of(b"s", message_id, 14) is not None
        assert again.producers.offset_of(b"other", message_id, 14) is None


def test_of_what_no_record_tells_any_more_nothing_is_taken_for_stored(disk: MemoryDisk) -> None:
    """A file of an earlier release, and retention has removed the records."""
    log = make(disk, 12)
    log.append(produced(0, (b"a",)), leader_epoch=2, timestamp_us=12)
    log.seal()
    log.append(produced(12), leader_epoch=2, timestamp_us=13)
    log.flush()
    advance_log_start(log, 13)
    log.close(clean=True)
    as_version_1(disk)
    again = open_log(disk, clean=True)
    assert again.producers.offset_of(b"s", b"a", 13) is None
    assert again.producers.check(P, 12, CRC) == StoredBatch(12, 13, 14, CRC)
    with pytest.raises(UnknownOutcomeError):
        again.producers.check(P, 11, CRC)
    assert again.producers.check(P, 13, CRC) is None


def test_earlier_releases_find_in_the_file_nothing_to_take_for_an_id(disk: MemoryDisk) -> None:
    """They read `message_ids`, and rows of three numbers; without them they read the batches."""
    log = make(disk, 3, (b"a",))
    log.close(clean=True)
    state = checkpoint_file.decode(disk.read_file(FILE), "producers", "17")
    assert "message_ids" not in state
    assert state["ids"] == [[3, 3, "s a"]]


def test_a_file_of_a_later_version_is_not_believed(disk: MemoryDisk) -> None:
    log = make(disk, 13, (b"a",))
    log.close(clean=True)
    state = checkpoint_file.decode(disk.read_file(FILE), "producers", "17")
    disk.put(FILE, checkpoint_file.encode("producers", "17", state | {"version": 3}))
    again = open_log(disk, clean=True)
    assert remembered(again) == remembered(log)
    assert "version 3" in again.damaged_files[0].reason


def test_a_file_that_covers_less_than_the_checkpoint_says_is_not_believed(disk: MemoryDisk) -> None:
    log = make(disk, 12)
    older = disk.read_file(FILE)
    for sequence in range(12, 23):
        log.append(produced(sequence), leader_epoch=4, timestamp_us=sequence)
    log.close(clean=True)
    assert disk.read_file(FILE) != older
    disk.put(FILE, older)
    assert remembered(open_log(disk, clean=True)) == remembered(log)


def test_a_file_of_another_history_is_not_believed(disk: MemoryDisk) -> None:
    """Batches were replaced by another leader's. The file describes the replaced ones."""
    log = make(disk, 10)
    log.flush()
    log.close(clean=True)
    old = disk.read_file(FILE)
    log = open_log(disk, clean=True)
    log.truncate(7)
    for offset in range(7, 10):
        log.append_replica(stamped(offset, b"z", epoch=9, timestamp=20))
    log.close(clean=True)
    disk.put(FILE, old)
    again = open_log(disk, clean=True)
    assert again.producers.check(P, 7, CRC) is None
    assert again.producers.check(P, 6, CRC) == StoredBatch(6, 6, 7, CRC)


def test_a_truncated_log_forgets_what_it_lost_also_after_a_kill(disk: MemoryDisk) -> None:
    log = make(disk, 10)
    log.flush()
    log.truncate(8)
    for known in (log.producers, open_log(disk).producers):
        assert known.check(P, 8, CRC) is None
        assert known.check(P, 7, CRC) == StoredBatch(7, 7, 8, CRC)


def test_what_a_power_failure_took_is_not_remembered(disk: MemoryDisk) -> None:
    log = make(disk, 9)
    assert log.flushed_offset == 5
    again = open_log(disk.power_failed(lambda _: 0))
    end = again.log_end_offset
    assert 5 <= end < 9
    assert again.producers.check(P, end, CRC) is None
    assert again.producers.check(P, end - 1, CRC) == StoredBatch(end - 1, end - 1, end, CRC)


def test_a_reset_forgets_everything_also_after_a_kill(disk: MemoryDisk) -> None:
    log = make(disk, 10, (b"a",))
    log.flush()
    log.reset(100)
    assert not log.producers
    assert not open_log(disk).producers


def test_a_log_whose_emptying_failed_and_that_is_revived_still_remembers(disk: MemoryDisk) -> None:
    """It leads if no replica is trusted, with the records that it has."""
    make(disk, 10, (b"a",)).flush()
    faulty = FaultyDisk(disk)
    log = open_log(faulty)
    faulty.fail("write", ".offsets", errno.EIO)
    with pytest.raises(StorageError):
        log.reset(100)
    faulty.heal()
    log.salvage()
    assert (log.offline_reason, log.log_end_offset) == ("", 11)
    assert log.producers.check(P, 9, CRC) == StoredBatch(9, 9, 10, CRC)


def test_a_follower_remembers_what_its_leader_does(disk: MemoryDisk) -> None:
    leader = make(disk, 13, (b"a", b"b"))
    follower = CommitLog.open(disk, "/18", CONFIG, clean=False, duplicate_window_us=1000)
    slice_ = leader.read(0, 1 << 20, leader.log_end_offset)
    while slice_ is not None:
        follower.append_replica(leader.pread(slice_))
        slice_ = leader.read(follower.log_end_offset, 1 << 20, leader.log_end_offset)
    assert remembered(follower) == remembered(leader)


def test_a_log_without_producers_and_ids_has_no_file_and_looks_for_none(disk: MemoryDisk) -> None:
    log = open_log(disk)
    for offset in range(10):
        log.append(encode([b"plain"], b"s"), leader_epoch=0, timestamp_us=offset)
    log.close(clean=True)
    assert not disk.exists(FILE)
    watched = FaultyDisk(disk)
    assert not open_log(watched, clean=True).producers
    assert watched.count("read_file", "producers") == 0


def test_retention_does_not_make_duplicates_unknown(disk: MemoryDisk) -> None:
    log = make(disk, 13)
    log.flush()
    advance_log_start(log, 12)
    log.close(clean=True)
    again = open_log(disk, clean=True)
    assert again.log_start_offset == 12
    assert again.producers.check(P, 9, CRC) == StoredBatch(9, 9, 10, CRC)
