"""Opening a log after anything: what is cut off, what is kept, what is believed."""

from __future__ import annotations

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.errors import CorruptBatchError, StorageError
from jetstream_protocol.logfiles.checkpoint_file import LogCheckpoint
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.log_batches import batch, stamped, values_of
from tests.support.log_disk import FaultyDisk, MemoryDisk

LENGTH = batch(b"0000").length
CONFIG = LogConfig(segment_bytes=4 * LENGTH, index_interval_bytes=LENGTH)
FIRST = "/17/00000000000000000000.log"
SECOND = "/17/00000000000000000004.log"
THIRD = "/17/00000000000000000008.log"


def make(disk: MemoryDisk, count: int = 10, *, flush: bool = False) -> CommitLog:
    """A log of `count` batches, four to a segment, as a killed process leaves it."""
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    for offset in range(count):
        log.append(batch(b"%04d" % offset), leader_epoch=offset // 3, timestamp_us=offset * 10)
    if flush:
        log.flush()
    return log


def reopen(disk: MemoryDisk | FaultyDisk, *, clean: bool = False) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean)


def expected(count: int) -> list[bytes]:
    return [b"%04d" % i for i in range(count)]


def spoil(disk: MemoryDisk, path: str, at: int, by: int = 1) -> None:
    data = bytearray(disk.read_file(path))
    data[at] ^= by
    disk.put(path, bytes(data))


# A torn tail


@pytest.mark.parametrize(
    "garbage", [b"\0" * 5, b"\0" * 5000, b"x" * 300, stamped(10)[:-8], stamped(10)[:88], b"JSLB"]
)
def test_torn_tail_is_cut_off_and_the_log_goes_on(disk: MemoryDisk, garbage: bytes) -> None:
    make(disk)
    whole = disk.read_file(THIRD)
    disk.put(THIRD, whole + garbage)
    log = reopen(disk)
    assert (log.offline_reason, log.log_end_offset) == ("", 10)
    assert disk.read_file(THIRD) == whole
    log.append(batch(b"0010"), leader_epoch=9, timestamp_us=0)
    assert values_of(reopen(disk)) == expected(11)


def test_torn_first_batch_of_a_segment_leaves_an_empty_segment(disk: MemoryDisk) -> None:
    make(disk, 9)
    disk.put(THIRD, disk.read_file(THIRD)[:50])
    log = reopen(disk)
    assert (log.offline_reason, log.log_end_offset, log.segment_count) == ("", 8, 3)
    log.append(batch(b"0008"), leader_epoch=9, timestamp_us=0)
    assert values_of(reopen(disk)) == expected(9)


@pytest.mark.parametrize("after", [b"", b"\0" * 4096, b"JSLB" * 40])
def test_segments_after_a_torn_tail_go_when_they_hold_no_batch(
    disk: MemoryDisk, after: bytes
) -> None:
    make(disk, 8)
    disk.put(SECOND, disk.read_file(SECOND)[:-1])
    disk.put(THIRD, after)
    log = reopen(disk)
    assert (log.offline_reason, log.log_end_offset) == ("", 7)
    assert not disk.exists(THIRD)
    assert values_of(log) == expected(7)


def test_stored_batch_inside_a_torn_payload_is_not_taken_for_the_logs(disk: MemoryDisk) -> None:
    # Somebody publishes what was read from a log, and the append of that is cut short.
    inner = stamped(500, epoch=50, records=4)
    outer = encode([inner], b"a.b")
    make(disk)
    whole = disk.read_file(THIRD)
    outer.stamp(10, 9, 0)
    torn = outer.to_bytes()[:-8]
    assert inner in torn
    assert (len(whole) + torn.index(inner)) % 8 == 0, "or the scan would pass over it anyway"
    disk.put(THIRD, whole + torn)
    log = reopen(disk)
    assert (log.offline_reason, log.log_end_offset) == ("", 10)


# Corruption


@pytest.mark.parametrize(("path", "first"), [(FIRST, 0), (SECOND, 4)])
def test_damage_with_batches_after_it_keeps_every_byte_and_takes_the_log_offline(
    disk: MemoryDisk, path: str, first: int
) -> None:
    make(disk)
    for number in range(4):
        damaged = disk.killed()
        spoil(damaged, path, number * LENGTH + 100)
        before = {n: d for n, d in damaged.files("/17").items() if n.endswith(".log")}
        log = reopen(damaged)
        assert f"{path} at byte {number * LENGTH}: batch body fails its CRC" in log.offline_reason
        assert "corruption" in log.offline_reason
        assert values_of(log) == expected(first + number)
        assert log.log_end_offset == first + number
        after = {n: d for n, d in damaged.files("/17").items() if n.endswith(".log")}
        assert after == before
        with pytest.raises(StorageError, match="offline"):
            log.append(batch(), leader_epoch=9, timestamp_us=0)


def test_valid_batch_that_does_not_continue_the_log_is_corruption(disk: MemoryDisk) -> None:
    for intruder in (stamped(9, epoch=9), stamped(11, epoch=9), stamped(10, epoch=0)):
        disk = MemoryDisk()
        make(disk)
        disk.put(THIRD, disk.read_file(THIRD) + intruder)
        log = reopen(disk)
        assert "corruption" in log.offline_reason
        assert values_of(log) == expected(10)


def test_missing_segment_is_corruption(disk: MemoryDisk) -> None:
    make(disk)
    disk.remove(SECOND)
    log = reopen(disk)
    assert "segment begins at offset 8 where 4 is next" in log.offline_reason
    assert values_of(log) == expected(4)
    assert disk.exists(THIRD)


def test_damage_below_the_recovery_point_is_never_a_torn_tail(disk: MemoryDisk) -> None:
    log = make(disk)
    log.close(clean=True)
    whole = disk.read_file(THIRD)
    for data in (whole[:-1], whole[:LENGTH], whole[:-9] + b"\xff" + whole[-8:], b""):
        damaged = disk.killed()
        damaged.put(THIRD, data)
        again = reopen(damaged)
        assert again.offline_reason
        assert damaged.read_file(THIRD) == data
        assert values_of(again) == expected(again.log_end_offset)


def test_log_whose_files_are_gone_does_not_restart_at_zero(disk: MemoryDisk) -> None:
    make(disk).close(clean=True)
    for name in disk.files("/17"):
        if name != "checkpoint":
            disk.remove(f"/17/{name}")
    for clean in (True, False):
        log = reopen(disk, clean=clean)
        assert "segment files are missing" in log.offline_reason
        with pytest.raises(StorageError):
            log.append(batch(), leader_epoch=9, timestamp_us=0)


def test_damage_can_be_discarded_when_another_replica_has_the_records(disk: MemoryDisk) -> None:
    make(disk)
    spoil(disk, SECOND, LENGTH + 100)
    log = reopen(disk)
    log.salvage()
    assert (log.offline_reason, log.log_end_offset, log.segment_count) == ("", 5, 2)
    log.append_replica(stamped(5, b"0005", epoch=9) + stamped(6, b"0006", epoch=9))
    again = reopen(disk)
    assert (again.offline_reason, values_of(again)) == ("", expected(7))


def test_discarding_does_not_bring_back_a_log_that_is_offline_for_another_reason(
    disk: MemoryDisk,
) -> None:
    log = make(disk)
    log.close(clean=True)
    log.salvage()
    assert log.offline_reason == "the log is closed"


def test_damage_found_by_a_reader_names_file_and_position(disk: MemoryDisk) -> None:
    log = make(disk)
    spoil(disk, FIRST, 2 * LENGTH + 30)  # in a header
    with pytest.raises(CorruptBatchError) as raised:
        log.read(2, 1 << 20, 10)
    assert (raised.value.file, raised.value.position) == (FIRST, 2 * LENGTH)
    slice_ = log.read(0, 3 * LENGTH, 10)
    assert slice_ is not None
    assert slice_.next_offset == 2, "what lies before the damage is served"


# What is believed


def test_clean_open_reads_no_segment(disk: MemoryDisk) -> None:
    make(disk).close(clean=True)
    watched = FaultyDisk(disk)
    log = reopen(watched, clean=True)
    assert log.log_end_offset == 10
    assert watched.count("pread") == 0
    assert len(watched.calls) <= 9, "three looks, a listing, two records, each segment's size"
    assert values_of(log) == expected(10)


def test_idle_log_is_closed_again_without_a_write(disk: MemoryDisk) -> None:
    make(disk).close(clean=True)
    watched = FaultyDisk(disk)
    log = reopen(watched, clean=True)
    log.start_epoch(99)
    log.flush()
    before = disk.operations
    log.close(clean=True)
    assert disk.operations == before


@pytest.mark.parametrize("clean", [True, False])
def test_clean_marker_is_not_believed_when_the_last_segment_differs(
    disk: MemoryDisk, clean: bool
) -> None:
    make(disk).close(clean=True)
    disk.put(THIRD, disk.read_file(THIRD) + stamped(10, b"0010", epoch=9) + b"torn")
    log = reopen(disk, clean=clean)
    assert (log.offline_reason, values_of(log)) == ("", expected(11))
    assert log.epochs.latest_epoch == 9


def test_scan_begins_at_the_segment_of_the_recovery_point(disk: MemoryDisk) -> None:
    make(disk, 10, flush=True)
    spoil(disk, FIRST, LENGTH + 100)
    watched = FaultyDisk(disk)
    log = reopen(watched)
    assert (log.offline_reason, log.log_end_offset) == ("", 10)
    assert {path for op, path in watched.calls if op == "pread"} == {THIRD}
    assert log.flushed_offset == 10
    with pytest.raises(CorruptBatchError):
        values_of(log)


def test_without_a_checkpoint_everything_is_scanned(disk: MemoryDisk) -> None:
    log = make(disk, flush=True)
    disk.remove("/17/checkpoint")
    again = reopen(disk)
    assert values_of(again) == expected(10)
    assert again.epochs.entries == log.epochs.entries == ((0, 0), (1, 3), (2, 6), (3, 9))
    assert again.last_append_timestamp == 90
    assert again.flushed_offset == 10, "the other record says so"
    disk.remove("/17.offsets")
    neither = reopen(disk)
    assert neither.flushed_offset == 0, "nobody knows what was synced"
    assert neither.flush_due
    assert neither.flush() == 10


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"JSLC 1 00000000\n{}\n",
        LogCheckpoint(recovery_point=4).to_bytes("18"),  # of another stream
    ],
)
def test_checkpoint_that_cannot_be_believed_is_as_if_absent(
    disk: MemoryDisk, content: bytes
) -> None:
    make(disk).close(clean=True)
    disk.put("/17/checkpoint", content)
    log = reopen(disk, clean=True)
    assert (log.offline_reason, values_of(log)) == ("", expected(10))
    assert log.epochs.latest_epoch == 3


def test_epochs_of_the_checkpoint_are_held_against_the_batches_that_are_scanned(
    disk: MemoryDisk,
) -> None:
    make(disk, flush=True)
    wrong = LogCheckpoint(recovery_point=8, epochs=((0, 0), (1, 3), (7, 8)))
    disk.put("/17/checkpoint", wrong.to_bytes("17"))
    assert reopen(disk).epochs.entries == ((0, 0), (1, 3), (2, 8), (3, 9))


@pytest.mark.parametrize("content", [None, b"", b"JSLI", b"\0" * 500])
@pytest.mark.parametrize("clean", [True, False])
def test_missing_short_or_odd_indexes_are_rebuilt(
    disk: MemoryDisk, content: bytes | None, clean: bool
) -> None:
    make(disk).close(clean=True)
    for name in list(disk.files("/17")):
        if name.endswith(".index"):
            if content is None:
                disk.remove(f"/17/{name}")
            else:
                disk.put(f"/17/{name}", content)
    log = reopen(disk, clean=clean)
    assert values_of(log) == expected(10)
    assert [log.offset_for_timestamp(i * 10) for i in range(10)] == [(i, i // 3) for i in range(10)]


def test_index_of_another_log_is_rebuilt_even_where_its_name_and_length_fit(
    disk: MemoryDisk,
) -> None:
    make(disk).close(clean=True)
    # The same first offset and the same length, but fewer and larger batches.
    other = CommitLog.open(disk, "/18", LogConfig(index_interval_bytes=1), clean=False)
    size = disk.size(FIRST)
    while size:
        value = b"x" * (size - LENGTH) if size < 3 * LENGTH else b"y" * 120
        filler = fitting(size) if size < 3 * LENGTH else batch(value)
        other.append(filler, leader_epoch=0, timestamp_us=0)
        size -= filler.length
    other.close(clean=True)
    assert disk.size("/18/00000000000000000000.log") == disk.size(FIRST)
    disk.put(FIRST.replace(".log", ".index"), disk.read_file("/18/00000000000000000000.index"))
    log = reopen(disk, clean=True)
    for offset in (3, 1, 2, 0):
        slice_ = log.read(offset, 1, 10)
        assert slice_ is not None
        assert slice_.base_offset == offset


def fitting(length: int) -> EncodedBatch:
    """A batch of exactly that length."""
    for size in range(length):
        found = batch(b"z" * size)
        if found.length == length:
            return found
    raise AssertionError(f"no batch has {length} bytes")


def test_leftover_of_an_interrupted_atomic_write_is_removed(disk: MemoryDisk) -> None:
    make(disk)
    disk.put("/17/checkpoint.tmp", b"half")
    reopen(disk)
    assert "checkpoint.tmp" not in disk.files("/17")


def test_files_of_other_origin_are_left_alone(disk: MemoryDisk) -> None:
    make(disk)
    for name in ("notes.txt", "5.log", "0000000000000000000x.log", "99999999999999999999.log"):
        disk.put(f"/17/{name}", b"mine")
    assert values_of(reopen(disk)) == expected(10)
    assert disk.read_file("/17/5.log") == b"mine"


def test_recovered_log_is_not_flushed_until_it_is_flushed(disk: MemoryDisk) -> None:
    make(disk, 10)
    log = reopen(disk)
    assert (log.log_end_offset, log.flushed_offset) == (10, 0)
    log.flush()
    lost = disk.power_failed(lambda n: 0)
    assert values_of(reopen(lost)) == expected(10)


def test_folder_of_a_process_that_died_when_it_had_just_made_it_is_flushed_with_the_log(
    disk: MemoryDisk,
) -> None:
    disk.make_directory("/17")
    found = disk.killed()
    make(found, 10, flush=True)
    lost = found.power_failed(lambda n: 0)
    assert values_of(reopen(lost)) == expected(10)


def test_flush_covers_sealed_segments_and_new_names(disk: MemoryDisk) -> None:
    make(disk, 10, flush=True)
    lost = disk.power_failed(lambda n: 0)
    log = reopen(lost)
    assert (log.offline_reason, values_of(log)) == ("", expected(10))
