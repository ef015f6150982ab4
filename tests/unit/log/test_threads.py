"""What other threads may do while the loop thread appends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from jetstream_protocol.batch import iterate
from jetstream_protocol.errors import JetstreamError, OffsetOutOfRangeError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.log_start import delete_segments_before

LENGTH = batch(b"0000").length


@pytest.fixture(autouse=True)
def threads_take_turns_often() -> Iterator[None]:
    """More interleavings; and nobody waits 5 ms for each turn of a thread that never blocks."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(50e-6)
    yield
    sys.setswitchinterval(before)


class Reader(threading.Thread):
    """Runs a function; `finish` waits for it and raises what it raised."""

    def __init__(self, function: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._function()
        except BaseException as error:  # noqa: BLE001  # handed to the test's own thread
            self._error = error

    def finish(self) -> None:
        self.join(timeout=60)
        assert not self.is_alive()
        if self._error is not None:
            raise self._error


def test_readers_see_every_record_whole_and_in_order_while_the_log_grows(tmp_path: Path) -> None:
    disk = OsDisk(descriptors_max=2)
    config = LogConfig(segment_bytes=20 * LENGTH, index_interval_bytes=3 * LENGTH)
    log = CommitLog.open(disk, str(tmp_path / "17"), config, clean=False)
    total = 1500

    def read(bytes_max: int) -> None:
        offset = 0
        while offset < total:
            slice_ = log.read(offset, bytes_max, log.log_end_offset)
            if slice_ is None:
                continue
            for found in iterate(log.pread(slice_)):
                assert found.values() == [b"%04d" % offset]
                offset += 1
            assert offset == slice_.next_offset

    readers = [Reader(partial(read, size)) for size in (0, 500, 1 << 20)]
    for number in range(total):
        log.append(batch(b"%04d" % number), leader_epoch=number // 100, timestamp_us=number)
    for reader in readers:
        reader.finish()
    disk.close()


def test_reader_overtaken_by_retention_is_out_of_range_and_nothing_worse(tmp_path: Path) -> None:
    disk = OsDisk(descriptors_max=2)
    config = LogConfig(segment_bytes=10 * LENGTH, index_interval_bytes=LENGTH)
    log = CommitLog.open(disk, str(tmp_path / "17"), config, clean=False)
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            with suppress(OffsetOutOfRangeError):
                slice_ = log.read(log.log_start_offset, 1 << 20, log.log_end_offset)
                for found in iterate(log.pread(slice_) if slice_ is not None else b""):
                    assert found.values() == [b"%04d" % found.header.base_offset]

    readers = [Reader(read) for _ in range(2)]
    try:
        for number in range(1500):
            log.append(batch(b"%04d" % number), leader_epoch=1, timestamp_us=number)
            if number % 25 == 0:
                delete_segments_before(log, number - 15)
    finally:
        done.set()
    for reader in readers:
        reader.finish()
    disk.close()


@pytest.mark.parametrize(
    "look",
    [lambda log: log.read(0, 1, 1), lambda log: log.damage.segment_of(1)],
    ids=["read", "segment_of"],
)
def test_a_reset_leaves_no_moment_at_which_another_thread_fails(
    look: Callable[[CommitLog], object],
) -> None:
    """Such as the thread of retention, which looks at the segments of a log that is begun anew."""
    log = CommitLog.open(MemoryDisk(), "/17", LogConfig(), clean=False)
    log.append(batch(b"0000"), leader_epoch=1, timestamp_us=0)
    done = threading.Event()

    def look_again() -> None:
        while not done.is_set():
            with suppress(JetstreamError):
                look(log)

    threads = [Reader(look_again) for _ in range(2)]
    try:
        for _ in range(3000):
            log.reset(0)
            log.append(batch(b"0000"), leader_epoch=1, timestamp_us=0)
    finally:
        done.set()
    for thread in threads:
        thread.finish()


class HeldDisk(FaultyDisk):
    """The first fsync of a segment waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.begun = threading.Event()
        self.go = threading.Event()

    def fsync(self, path: str) -> None:
        self.begun.set()
        assert self.go.wait(timeout=10)
        super().fsync(path)


def test_truncation_waits_for_a_running_flush_and_takes_back_what_it_flushed(
    tmp_path: Path,
) -> None:
    disk = HeldDisk()
    log = CommitLog.open(disk, str(tmp_path / "17"), clean=False)
    for number in range(10):
        log.append(batch(b"%04d" % number), leader_epoch=1, timestamp_us=0)
    flusher = threading.Thread(target=log.flush, daemon=True)
    flusher.start()
    assert disk.begun.wait(timeout=10)
    truncation = threading.Thread(target=log.truncate, args=(4,), daemon=True)
    truncation.start()
    truncation.join(timeout=0.05)
    assert truncation.is_alive()
    assert log.log_end_offset == 10
    disk.go.set()
    flusher.join(timeout=10)
    truncation.join(timeout=10)
    assert (log.log_end_offset, log.flushed_offset) == (4, 4)
