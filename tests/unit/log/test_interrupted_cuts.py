"""A process dies while it cuts its log, at any step of the disk."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_protocol.types import MonotonicUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.compacting import compact
from tests.support.log_batches import batch, stamped, values_of
from tests.support.log_disk import Killed, MemoryDisk

LENGTH = batch(b"00").length
Made = tuple[MemoryDisk, CommitLog]


def keyed(n: int) -> EncodedBatch:
    block = b"NATS/1.0\r\nNats-Msg-Id: id %02d\r\n\r\n" % n
    return encode([b"x"], b"s", keys=[b"always the same"], header_blocks=[block])


def opened(disk: MemoryDisk, segment_bytes: int, boot_id: str = "one boot") -> CommitLog:
    config = LogConfig(segment_bytes=segment_bytes, index_interval_bytes=100)
    return CommitLog.open(
        disk, "/17", config, clean=False, boot_id=boot_id, duplicate_window_us=10**9
    )


def steps_of_a_cut(make: Callable[[], Made], offset: int) -> range:
    disk, log = make()
    before = disk.operations
    log.truncate(offset)
    return range(disk.operations - before)


def cut_and_killed(made: Made, offset: int, step: int) -> MemoryDisk:
    disk, log = made
    disk.crash_after = disk.operations + step
    with pytest.raises(Killed):
        log.truncate(offset)
    return disk


# What de-duplication remembers.


def compacted() -> Made:
    """Twelve records of one key. The first ones are gone, and their message ids are known."""
    disk = MemoryDisk()
    log = opened(disk, 3 * keyed(0).length)
    for n in range(12):
        log.append(keyed(n), leader_epoch=1, timestamp_us=n, now_us=MonotonicUs(n))
        log.note_end()
        if n == 6:
            log.flush()
            assert compact(disk, log) is not None
    log.flush()
    assert not log.offline_reason
    assert values_of(log) == [b"x"] * 7
    return disk, log


@pytest.mark.parametrize("step", steps_of_a_cut(compacted, 8))
@pytest.mark.parametrize("is_power_failure", [False, True])
def test_no_message_id_is_forgotten_though_compaction_has_removed_its_record(
    step: int, is_power_failure: bool
) -> None:
    disk = cut_and_killed(compacted(), 8, step)
    disk = disk.power_failed(lambda n: n - 1) if is_power_failure else disk.killed()
    log = opened(disk, 3 * keyed(0).length)
    assert not log.offline_reason
    known = [log.producers.offset_of(b"s", b"id %02d" % n, MonotonicUs(50)) for n in range(12)]
    assert known[:8] == list(range(8))
    assert all(offset in (None, n) for n, offset in enumerate(known))


# What was cut off.


def of_two_epochs(later_epoch: int) -> Made:
    disk = MemoryDisk()
    log = opened(disk, 4 * LENGTH)
    for n in range(12):
        log.append(batch(b"%02d" % n), leader_epoch=1 if n < 6 else later_epoch, timestamp_us=n)
        log.note_end()
    log.flush()
    return disk, log


@pytest.mark.parametrize("step", steps_of_a_cut(lambda: of_two_epochs(1), 6))
@pytest.mark.parametrize("later_epoch", [1, 3])
def test_what_was_cut_off_does_not_come_back_with_a_later_power_failure(
    step: int, later_epoch: int
) -> None:
    """later_epoch 3: what is cut off is of a leader that the next one, of epoch 2, never heard of
    (as in KIP-279). A segment that came back would fit after what was copied since."""
    for seed in range(20):
        disk = cut_and_killed(of_two_epochs(later_epoch), 6, step).killed()
        log = opened(disk, 4 * LENGTH)
        log.truncate(6)
        copied = 1 + seed % 2
        for n in range(6, 6 + copied):
            log.append_replica(stamped(n, b"new%d" % n, epoch=2, timestamp=n))
            log.note_end()
        # Of the bytes any part was written back; of the folder only what was synced.
        bytes_kept = Random(seed).randrange
        disk = disk.power_failed(lambda n: bytes_kept(n) if n > LENGTH // 2 else 0)  # noqa: B023
        log = opened(disk, 4 * LENGTH, "another boot")
        assert log.offline_reason == ""
        expected = [b"%02d" % n for n in range(6)] + [b"new%d" % n for n in range(6, 6 + copied)]
        found = values_of(log)
        assert found == expected[: len(found)]
        with suppress(Killed):
            log.close(clean=True)
