"""What other threads may do while the loop thread appends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jetstream_protocol.batch import EncodedBatch, encode, iterate
from jetstream_protocol.errors import JetstreamError, OffsetOutOfRangeError
from jetstream_protocol.types import MonotonicUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.producers import Producers
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
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
        assert self.go.wait(timeout=60)
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
    assert disk.begun.wait(timeout=60)
    truncation = threading.Thread(target=log.truncate, args=(4,), daemon=True)
    truncation.start()
    truncation.join(timeout=0.05)
    assert truncation.is_alive()
    assert log.log_end_offset == 10
    disk.go.set()
    flusher.join(timeout=60)
    truncation.join(timeout=60)
    assert (log.log_end_offset, log.flushed_offset) == (4, 4)


@pytest.mark.parametrize("copies", [False, True])
def test_a_flush_beside_an_append_leaves_no_message_id_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: bool
) -> None:
    """The loop's thread may lose the interpreter at any time; here right before or after an id is
    noted. The flusher's thread flushes then, and saves what is remembered."""
    folder = str(tmp_path / "17")

    def with_id(n: int) -> EncodedBatch:
        block = b"NATS/1.0\r\nNats-Msg-Id: id %d\r\n\r\n" % n
        return encode([b"x"], b"s", header_blocks=[block])

    def opened(disk: OsDisk) -> CommitLog:
        # Each batch fills a segment: each flush writes a checkpoint.
        config = LogConfig(segment_bytes=with_id(0).length)
        return CommitLog.open(disk, folder, config, clean=False, duplicate_window_us=10**9)

    def append(n: int) -> None:
        batch = with_id(n)
        if copies:
            batch.stamp(n, 1, n)
            log.append_replica(batch.to_bytes(), leader_epoch=1, now_us=MonotonicUs(n))
        else:
            log.append(batch, leader_epoch=1, timestamp_us=n, now_us=MonotonicUs(n))

    disk = OsDisk()
    log = opened(disk)
    for n in range(3):
        append(n)
        log.flush()
    method = "note_all" if copies else "note"
    note = getattr(Producers, method)

    def flush_and_note(self: Producers, *arguments: Any) -> None:
        if self is log.producers:
            log._noting.__exit__(None, None, None)
            Reader(log.flush).finish()
            log._noting.__enter__()
        note(self, *arguments)

    monkeypatch.setattr(Producers, method, flush_and_note)
    append(3)
    monkeypatch.undo()
    log.flush()
    assert log.flushed_offset == 4
    disk.close()  # Killed.
    log = opened(OsDisk())
    assert log.log_end_offset == 4
    known = [log.producers.offset_of(b"s", b"id %d" % n, MonotonicUs(4)) for n in range(4)]
    assert known == [0, 1, 2, 3]


class OpensSlowly(OsDisk):
    """A reader opens the segment right before it is removed, and goes on when it was made anew."""

    def __init__(self) -> None:
        super().__init__()
        self.read: Callable[[], None] | None = None
        self._is_open, self._may_go_on = threading.Event(), threading.Event()
        self._reader: Reader | None = None

    def _open_file(self, path: str) -> int:
        fd = super()._open_file(path)
        if isinstance(threading.current_thread(), Reader):
            self._is_open.set()
            assert self._may_go_on.wait(60)
        return fd

    def remove(self, path: str) -> None:
        if self.read is not None and path.endswith(".log"):
            self._reader, self.read = Reader(self.read), None
            assert self._is_open.wait(60)
        super().remove(path)

    def create(self, path: str) -> None:
        super().create(path)
        if self._reader is not None and path.endswith(".log"):
            self._may_go_on.set()
            self._reader.finish()


def test_what_is_appended_after_a_reset_is_in_the_file_whoever_opened_the_old_one(
    tmp_path: Path,
) -> None:
    """Otherwise it would be written to a file without a name, and be gone when that is closed."""
    disk, folder = OpensSlowly(), tmp_path / "17"
    log = CommitLog.open(disk, str(folder), clean=False)
    for n in range(3):
        log.append(batch(b"%04d" % n), leader_epoch=1, timestamp_us=n)
    log.flush()
    old = log.read(0, 1 << 20, 3)
    assert old is not None
    disk.close()  # As if other files had taken its place in the cache.

    def read() -> None:
        with suppress(JetstreamError):
            log.pread(old)

    disk.read = read
    log.reset(0)
    for n in range(2):
        log.append(batch(b"%04d" % n), leader_epoch=2, timestamp_us=10 + n)
    assert log.flush() == 2
    disk.close()
    again = CommitLog.open(OsDisk(), str(folder), clean=False)
    assert (again.offline_reason, again.log_end_offset) == ("", 2)


class RemovingDisk(MemoryDisk):
    """Runs `meanwhile` once, while the offsets or the checkpoint are synced."""

    meanwhile: Callable[[], None] | None = None

    def fsync(self, path: str) -> None:
        if self.meanwhile is not None and path.endswith("checkpoint.tmp"):
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        super().fsync(path)


def test_a_start_that_rises_while_files_are_removed_is_recorded_before_its_files_go() -> None:
    """A kill would leave a log that has lost its beginning."""
    step = 0
    while True:
        disk = RemovingDisk()
        config = LogConfig(segment_bytes=2 * LENGTH, index_interval_bytes=LENGTH)
        log = CommitLog.open(disk, "/17", config, clean=False)
        for n in range(10):
            log.append(batch(b"%04d" % n), leader_epoch=1, timestamp_us=n)
            log.note_end()
            log.flush()
        log.begin_advance(2)
        disk.meanwhile = partial(log.begin_advance, 6)
        disk.crash_after = disk.operations + step
        killed = False
        try:
            log.finish_advance()
        except Killed:
            killed = True
        log = CommitLog.open(disk.killed(), "/17", config, clean=False)
        assert (log.offline_reason, log.lacks_beginning) == ("", False)
        if not killed:
            break
        step += 1
    assert step > 5
