"""Group commit, with real threads on the real disk."""

from __future__ import annotations

import errno
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_protocol.errors import InternalError, StorageError, UnavailableError
from jetstream_server.clocks import MonotonicUs
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.flusher import FLUSHES_PER_SECOND_MAX, MANY_LOGS, Flusher
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk

Delivered = tuple[CommitLog, int | StorageError]


class GatedDisk(FaultyDisk):
    """Every fsync of a segment waits until it is let through."""

    def __init__(self) -> None:
        super().__init__(OsDisk())
        self.waiting = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def fsync(self, path: str) -> None:
        self.waiting.release()
        assert self.gate.acquire(timeout=60)
        super().fsync(path)

    def await_fsync(self) -> None:
        assert self.waiting.acquire(timeout=60)


class Loop:
    """Runs what the flusher hands over, in order, in the test's own thread."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[object, ...]] = queue.Queue()

    def call_soon_threadsafe(self, *call: object) -> None:
        self.calls.put(call)

    def run_one(self) -> None:
        function, *arguments = self.calls.get(timeout=60)
        assert callable(function)
        function(*arguments)


@pytest.fixture
def gated() -> GatedDisk:
    return GatedDisk()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def flusher(loop: Loop, gated: GatedDisk) -> Iterator[Flusher]:
    """With one thread, which makes the order of events plain."""
    flusher = Flusher(loop.call_soon_threadsafe, threads=1)
    yield flusher
    gated.gate.release(100)
    flusher.close()


def open_log(disk: FaultyDisk, folder: Path, name: str = "17") -> CommitLog:
    return CommitLog.open(disk, str(folder / name), clean=False)


def append(log: CommitLog) -> None:
    log.append(batch(), leader_epoch=1, timestamp_us=0)


def test_one_fsync_serves_all_that_queued_up_after_it(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    log = open_log(gated, tmp_path)
    seen: list[tuple[str, int | StorageError]] = []
    append(log)
    flusher.request(log, lambda log, result: seen.append(("first", result)))
    gated.await_fsync()
    for number in range(50):  # all while the first fsync runs
        append(log)
        flusher.request(log, lambda log, result, n=number: seen.append((f"{n}", result)))  # type: ignore[misc]
    gated.gate.release(2)
    loop.run_one()
    loop.run_one()
    assert seen == [("first", 1), *((f"{n}", 51) for n in range(50))]
    assert gated.count("fsync", ".log") == 2
    assert log.flushed_offset == 51


def test_flush_reports_only_what_was_appended_before_it_began(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    log = open_log(gated, tmp_path)
    results: list[int | StorageError] = []
    append(log)
    flusher.request(log, lambda log, result: results.append(result))
    gated.await_fsync()
    append(log)
    gated.gate.release()
    loop.run_one()
    assert results == [1]
    assert (log.flushed_offset, log.log_end_offset) == (1, 2)


def test_same_callback_queued_twice_is_called_once(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    log = open_log(gated, tmp_path)
    delivered: list[Delivered] = []

    def on_flushed(log: CommitLog, result: int | StorageError) -> None:
        delivered.append((log, result))

    append(log)
    flusher.request(log, on_flushed)
    gated.await_fsync()
    for _ in range(5):
        append(log)
        flusher.request(log, on_flushed)
    gated.gate.release(2)
    loop.run_one()
    loop.run_one()
    assert delivered == [(log, 1), (log, 6)]


def test_logs_take_turns_in_the_order_they_asked(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    logs = [open_log(gated, tmp_path, str(number)) for number in range(4)]
    order: list[int] = []
    for log in logs:
        append(log)
    flusher.request(logs[2], lambda log, result: order.append(2))
    gated.await_fsync()
    for number in (1, 3, 0, 2):
        append(logs[2])
        flusher.request(logs[number], lambda log, result, n=number: order.append(n))  # type: ignore[misc]
    gated.gate.release(5)
    for _ in range(5):
        loop.run_one()
    assert order == [2, 1, 3, 0, 2]


def test_logs_are_flushed_at_once_and_each_by_one_thread_at_a_time(
    tmp_path: Path, gated: GatedDisk, loop: Loop
) -> None:
    flusher = Flusher(loop.call_soon_threadsafe, threads=3)
    logs = [open_log(gated, tmp_path, str(number)) for number in range(2)]
    done: list[tuple[CommitLog, int | StorageError]] = []

    def on_flushed(log: CommitLog, result: int | StorageError) -> None:
        done.append((log, result))

    for log in logs:
        append(log)
        flusher.request(log, on_flushed)
    gated.await_fsync()
    gated.await_fsync()  # Neither waits for the other.
    append(logs[0])
    flusher.request(logs[0], on_flushed)
    assert not gated.waiting.acquire(timeout=0.1), "its fsync has not ended"
    gated.gate.release(3)
    for _ in range(3):
        loop.run_one()
    assert [result for log, result in done if log is logs[0]] == [1, 2]
    assert [result for log, result in done if log is logs[1]] == [1]
    flusher.close()


def test_failed_fsync_is_reported_to_all_and_not_tried_again(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    log, healthy = open_log(gated, tmp_path), open_log(gated, tmp_path, "18")
    results: list[int | StorageError] = []
    append(log)
    append(healthy)
    gated.fail("fsync", "17/00000000000000000000.log", errno.EIO)
    for _ in range(3):
        flusher.request(log, lambda log, result: results.append(result))
    gated.gate.release(10)
    while len(results) < 3:
        loop.run_one()
    assert all(isinstance(result, StorageError) for result in results)
    assert "Input/output error" in log.offline_reason
    gated.heal()
    flusher.request(log, lambda log, result: results.append(result))
    loop.run_one()
    assert isinstance(results[-1], StorageError)
    assert gated.count("fsync", "17/00000000000000000000.log") == 1
    flusher.request(healthy, lambda log, result: results.append(result))
    loop.run_one()
    assert results[3:] == [results[3], 1], "one log's failure is its own"


def test_appends_and_seals_during_a_flush_neither_wait_nor_get_lost(
    tmp_path: Path, gated: GatedDisk, loop: Loop, flusher: Flusher
) -> None:
    length = batch().length
    log = CommitLog.open(gated, str(tmp_path / "17"), LogConfig(2 * length), clean=False)
    done: list[int | StorageError] = []
    append(log)
    flusher.request(log, lambda log, result: done.append(result))
    gated.await_fsync()
    for _ in range(9):  # seals four times, while the fsync is held
        append(log)
    assert (log.log_end_offset, log.flushed_offset, log.segment_count) == (10, 0, 5)
    gated.gate.release(100)
    loop.run_one()
    flusher.request(log, lambda log, result: done.append(result))
    loop.run_one()
    assert done == [1, 10]
    synced = {path for operation, path in gated.calls if operation == "fsync"}
    assert len(synced) == 5, "every sealed segment and the last"


def test_close_flushes_what_is_queued_and_refuses_more(tmp_path: Path, loop: Loop) -> None:
    disk = FaultyDisk(OsDisk())
    log = open_log(disk, tmp_path)
    append(log)
    flusher = Flusher(loop.call_soon_threadsafe)
    flusher.request(log, lambda log, result: None)
    flusher.close()
    assert log.flushed_offset == 1
    with pytest.raises(UnavailableError):
        flusher.request(log, lambda log, result: None)


def test_flushing_under_load_never_reports_an_offset_that_was_not_synced(
    tmp_path: Path, loop: Loop
) -> None:
    disk = FaultyDisk(OsDisk())
    length = batch().length
    log = CommitLog.open(disk, str(tmp_path / "17"), LogConfig(8 * length), clean=False)
    flusher = Flusher(loop.call_soon_threadsafe)
    reported: list[int] = []

    def on_flushed(log: CommitLog, result: int | StorageError) -> None:
        assert isinstance(result, int)
        reported.append(result)

    for number in range(2000):
        append(log)
        flusher.request(log, on_flushed)
        if number % 500 == 499:
            log.truncate(log.log_end_offset - 100)  # waits for a running flush
    flusher.close()
    while not loop.calls.empty():
        loop.run_one()
    assert log.flushed_offset == log.log_end_offset == 1600
    assert reported
    again = CommitLog.open(disk, str(tmp_path / "17"), clean=False)
    assert (again.offline_reason, again.log_end_offset) == ("", 1600)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_flusher_that_died_of_a_bug_takes_no_requests(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Buggy:
        def flush(self) -> int:
            raise RuntimeError("a bug")

    flusher = Flusher(loop.call_soon_threadsafe)
    flusher.request(Buggy(), lambda log, result: None)  # type: ignore[arg-type]
    deadline = time.monotonic() + 60
    while all(thread.is_alive() for thread in flusher._threads):
        assert time.monotonic() < deadline
    log = open_log(FaultyDisk(OsDisk()), tmp_path)
    with pytest.raises(InternalError, match="died"):
        flusher.request(log, lambda log, result: None)
    flusher.close()


def test_while_many_logs_wait_flushes_begin_at_a_measured_pace(
    tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[float] = []
    disk = GatedDisk()
    flusher = Flusher(loop.call_soon_threadsafe, threads=1, clock=lambda: MonotonicUs(0))
    monkeypatch.setattr(flusher._is_closing, "wait", rests.append)
    logs = [open_log(disk, tmp_path, str(number)) for number in range(MANY_LOGS + 3)]
    for log in logs:
        append(log)
        flusher.request(log, lambda log, result: None)
    disk.gate.release(len(logs))
    for _ in logs:
        loop.run_one()
    flusher.close()
    # The first is being flushed when the last is queued; it and the next find more than that left.
    assert rests == [1 / FLUSHES_PER_SECOND_MAX] * 2
    assert all(log.flushed_offset == 1 for log in logs)
