"""Compaction of a log: what readers meet while segments are swapped, and what a death leaves."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from jetstream_protocol.batch import encode
from jetstream_protocol.errors import StorageError, UnavailableError
from jetstream_protocol.logfiles.verify import verify
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.compaction.rewrite_pass import (
    KEYS_MAX,
    Done,
    Mapped,
    Rewritten,
    Task,
    run,
)
from jetstream_server.log.compaction.state import PASSES_MAX, CompactionState
from jetstream_server.log.disk import Disk, OsDisk
from tests.support.compacting import GRACE_US, compact, records, steps, table
from tests.support.log_disk import FaultyDisk, Killed, MemoryDisk
from tests.support.log_start import advance_log_start

CONFIG = LogConfig(segment_bytes=1000)


def keyed_log(disk: Disk, directory: str = "/17", rounds: int = 12, keys: int = 3) -> CommitLog:
    """Every key once in each round, a batch for each; all sealed and flushed."""
    log = CommitLog.open(disk, directory, CONFIG, clean=False)
    fill(log, rounds, keys)
    return log


def fill(log: CommitLog, rounds: int, keys: int = 3) -> None:
    for number in range(rounds):
        for key in range(keys):
            put(log, b"key%d" % key, b"%d" % number)
    log.seal()
    log.flush()


def put(log: CommitLog, key: bytes, value: bytes | None) -> int:
    return log.append(encode([value], b"s", keys=[key]), leader_epoch=0, timestamp_us=0)


def memory_disk() -> MemoryDisk:
    return MemoryDisk()


def test_a_death_at_any_step_leaves_the_log_before_or_after_it() -> None:
    """Killed, or without power: nothing is lost, no temporary file stays, and the next pass ends
    what this one began."""
    after = 0
    while True:
        disk = memory_disk()
        log = keyed_log(disk)
        expected = table(records(log))
        disk.crash_after = disk.operations + after
        try:
            compact(disk, log)
        except Killed:
            pass
        else:
            break
        for left in (
            disk.killed(),
            disk.power_failed(lambda n: 0),
            disk.power_failed(lambda n: n - 1),
        ):
            again = CommitLog.open(left, "/17", CONFIG, clean=False)
            assert again.offline_reason == ""
            assert again.log_end_offset == 36
            assert table(records(again)) == expected
            assert not [name for name in left.list_directory("/17") if name.endswith(".tmp")]
            again.flush()
            compact(left, again)
            assert table(records(again)) == expected
            assert len(records(again)) == 3
        after += 1
    assert after > 20


@pytest.mark.parametrize("operation", ["create", "write", "fsync", "rename", "remove"])
def test_a_disk_that_fails_during_a_pass_loses_nothing(operation: str) -> None:
    disk = FaultyDisk(memory_disk())
    log = keyed_log(disk)
    expected = table(records(log))
    disk.fail(operation, ".tmp" if operation != "remove" else ".index", errno.EIO)
    with pytest.raises((OSError, StorageError)):
        compact(disk, log)
    disk.heal()
    assert table(records(log)) == expected
    again = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert again.offline_reason == ""
    assert table(records(again)) == expected


def test_a_slice_chosen_before_a_swap_is_not_read_from_the_file_after_it(tmp_path: Path) -> None:
    disk = OsDisk()
    (tmp_path / "17").mkdir()
    log = keyed_log(disk, str(tmp_path / "17"))
    chosen = log.read(0, 10_000, log.log_end_offset)
    assert chosen is not None
    with open(chosen.path, "rb") as opened:
        before = log.pread(chosen)
        compact(disk, log)
        assert os.pread(opened.fileno(), chosen.length, chosen.position) == before
    assert chosen.is_gone
    with pytest.raises(UnavailableError, match="compacted"):
        log.pread(chosen)
    again = log.read(0, 10_000, log.log_end_offset)
    assert again is not None
    assert not again.is_gone
    assert len(log.pread(again)) == again.length < chosen.length
    disk.close()


def test_verify_finds_a_compacted_log_sound(tmp_path: Path) -> None:
    disk = OsDisk()
    folder = tmp_path / "17"
    log = keyed_log(disk, str(folder))
    compact(disk, log)
    log.close(clean=True)
    assert list(verify(folder)) == []
    disk.close()


def test_a_clean_log_is_left_alone() -> None:
    disk = FaultyDisk(memory_disk())
    log = keyed_log(disk)
    compact(disk, log)
    disk.calls.clear()
    done = compact(disk, log)
    assert done is not None
    assert (done.records_removed, done.bytes_before) == (0, done.bytes_after)
    assert [path for operation, path in disk.calls if operation in ("create", "rename")] == []


def test_a_map_that_is_full_leaves_the_rest_to_later_passes() -> None:
    disk = memory_disk()
    log = keyed_log(disk, keys=5)
    ends = []
    for _ in range(40):
        compact(disk, log, keys_max=2)
        ends.append(log.compaction.state.cleaned_to)
    assert ends[0] == 2
    assert ends == sorted(ends)
    assert ends[-1] == log.log_end_offset
    assert len(records(log)) == 5
    assert KEYS_MAX >= 1_000_000


def test_what_is_not_sealed_or_not_flushed_stays() -> None:
    disk = memory_disk()
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert log.compaction.sources(0) == ()
    for _ in range(30):
        put(log, b"k", b"v")
    assert log.compaction.sources(log.flushed_offset) == ()
    log.flush()
    sources = log.compaction.sources(log.flushed_offset)
    assert sources[-1].next_offset < log.log_end_offset
    assert log.compaction.sources(sources[0].next_offset - 1) == ()
    assert log.compaction.sources(sources[0].next_offset) == sources[:1]
    compact(disk, log)
    kept = [offset for offset, _, _ in records(log)]
    assert kept == [sources[-1].next_offset - 1, *range(sources[-1].next_offset, 30)]


def test_a_tombstone_stays_for_the_grace_time_after_it_was_first_compacted() -> None:
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    put(log, b"key1", None)
    fill(log, 3, keys=1)
    at = [offset for offset, _, value in records(log) if value is None]
    compact(disk, log, wall_us=10**9)  # However old it is.
    assert [offset for offset, _, value in records(log) if value is None] == at
    assert log.compaction.state.tombstones == 1
    compact(disk, log, wall_us=10**9 + GRACE_US - 1)
    assert [offset for offset, _, value in records(log) if value is None] == at
    compact(disk, log, wall_us=10**9 + GRACE_US)
    assert [key for _, key, _ in records(log)] == [b"key2", b"key0"]
    assert log.compaction.state.tombstones == 0


def test_that_tombstones_may_be_gone_is_known_before_the_first_is() -> None:
    """A death in the middle of a pass must not hide it from the followers."""
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    put(log, b"key1", None)
    fill(log, 1, keys=1)
    compact(disk, log, wall_us=1)
    swept = log.compaction.state.cleaned_to
    under_way = steps(disk, log, wall_us=1 + GRACE_US)
    next(under_way)  # The keys are mapped; nothing is swapped.
    again = CommitLog.open(disk.killed(), "/17", CONFIG, clean=False)
    assert again.tombstones_gone_below == swept
    assert again.compaction.committed_below == swept
    assert again.compaction.state.swept_below == 0


def test_what_is_appended_where_a_power_failure_took_the_end_is_not_committed() -> None:
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    end = log.log_end_offset
    for number in range(9):
        put(log, b"key0", b"%d" % number)
    log.compaction.note_committed(log.log_end_offset)
    disk = disk.power_failed(lambda count: 0)
    shorter = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert shorter.log_end_offset == end, "what was not flushed is gone"
    fill(shorter, 9)
    again = CommitLog.open(disk.killed(), "/17", CONFIG, clean=False)
    assert again.log_end_offset > log.log_end_offset
    assert again.compaction.committed_below == end


def test_a_state_that_is_lost_costs_time_and_no_tombstone() -> None:
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    put(log, b"key1", None)
    fill(log, 1, keys=1)
    compact(disk, log, wall_us=1)
    log.close(clean=True)
    disk.write("/17/compaction", 10, [b"rot"])
    again = CommitLog.open(disk, "/17", CONFIG, clean=True)
    known = again.compaction.state
    assert (known.cleaned_to, known.passes) == (0, ())
    compact(disk, again, wall_us=1 + GRACE_US)
    assert None in [value for _, _, value in records(again)]
    compact(disk, again, wall_us=1 + 2 * GRACE_US)
    assert None not in [value for _, _, value in records(again)]


def test_what_a_repair_brought_back_has_a_grace_time_of_its_own() -> None:
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    tombstone = put(log, b"key1", None)
    fill(log, 1, keys=1)
    compact(disk, log, wall_us=1)
    log.compaction.note_repaired(3)
    compact(disk, log, wall_us=1 + GRACE_US)
    assert (tombstone, b"key1", None) in records(log)
    assert log.tombstones_gone_below <= 3
    compact(disk, log, wall_us=1 + 2 * GRACE_US)
    assert None not in [value for _, _, value in records(log)]


def test_what_a_repair_brought_back_does_not_count_as_swept() -> None:
    """With no tombstone left, the next pass removes those below what was swept."""
    disk = memory_disk()
    log = keyed_log(disk, rounds=3)
    put(log, b"key1", None)
    fill(log, 1, keys=1)
    compact(disk, log, wall_us=1)
    compact(disk, log, wall_us=1 + GRACE_US)
    before = log.compaction.state
    assert (before.tombstones, before.swept_below) == (0, log.log_end_offset)
    log.compaction.note_repaired(3)
    assert log.compaction.state.swept_below == 3


def test_a_log_that_is_cut_during_a_pass_takes_nothing_more_of_it() -> None:
    disk = memory_disk()
    log = keyed_log(disk)
    under_way = steps(disk, log)
    next(under_way)  # The keys are mapped.
    log.truncate(1)
    fill(log, 12)
    expected = records(log)
    with pytest.raises(AssertionError):  # The swap says no.
        next(under_way)
    assert records(log) == expected
    assert log.compaction.state.cleaned_to <= 1


def test_what_is_fetched_again_after_damage_is_not_clean() -> None:
    disk = memory_disk()
    log = keyed_log(disk)
    compact(disk, log)
    assert log.compaction.state.cleaned_to == 36
    log.close(clean=False)
    for name in disk.list_directory("/17"):
        if name.endswith(".log"):
            disk.remove(f"/17/{name}")
    again = CommitLog.open(disk, "/17", CONFIG, clean=False)
    assert again.offline_reason
    again.salvage()
    assert again.compaction.state.cleaned_to == 0
    fill(again, 12)
    compact(disk, again)
    assert len(records(again)) == 3


def test_a_swap_that_comes_too_late_is_discarded() -> None:
    disk = memory_disk()
    log = keyed_log(disk)
    task = log.compaction.plan(
        log.compaction.sources(log.flushed_offset), token="t", tombstones_below=0,
        kept_base_offsets=frozenset(),
    )  # fmt: skip
    found = list(run(disk, task, lambda length: None))
    assert isinstance(found[0], Mapped)
    assert isinstance(found[-1], Done)
    advance_log_start(log, log.log_end_offset)
    for step in found:
        if isinstance(step, Rewritten):
            assert not log.compaction.swap(task, step)
    assert not [name for name in disk.list_directory("/17") if name.endswith(".tmp")]


def test_what_a_failed_pass_left_is_removed() -> None:
    disk = memory_disk()
    log = keyed_log(disk)
    tasks = [
        log.compaction.plan(
            log.compaction.sources(log.flushed_offset), token=token, tombstones_below=0,
            kept_base_offsets=frozenset(),
        )
        for token in ("1", "2")
    ]  # fmt: skip
    for task in tasks:
        list(run(disk, task, lambda length: None))
    log.compaction.discard(tasks[0])
    left = [name for name in disk.list_directory("/17") if name.endswith(".tmp")]
    assert left
    assert all(".2.tmp" in name for name in left)


def test_a_task_is_the_same_after_the_pipe() -> None:
    log = keyed_log(memory_disk())
    task = log.compaction.plan(
        log.compaction.sources(36), token="t", tombstones_below=0,
        kept_base_offsets=frozenset({3, 1, 400}),
    )  # fmt: skip
    assert task.kept_base_offsets == (1, 3)
    assert Task.from_dict(task.to_dict()) == task


def test_passes_are_remembered_as_long_as_they_matter() -> None:
    state = CompactionState()
    for now in range(1, 200):
        state = state.after_pass(now * 10, now, 1_000_000, swept_below=0)
        assert len(state.passes) <= PASSES_MAX
        assert state.passes[-1] == (now, now * 10)
    assert state.tombstones_below(1_000_199, 1_000_000) == 1990
    before = [state.tombstones_below(1_000_000 + at, 1_000_000) for at in range(200)]
    assert before == sorted(before)
    assert all(end <= at * 10 for at, end in enumerate(before)), "never before its time"
    later = state.after_pass(5000, 2_000_000, 1_000_000, swept_below=0)
    assert later.passes == ((199, 1990), (2_000_000, 5000))
    assert later.cut_to(100).passes == ((199, 100), (2_000_000, 100))


def test_what_a_pass_has_swept_stays_swept_when_the_next_one_removes_no_tombstones() -> None:
    state = CompactionState().after_pass(10, 1, 5, swept_below=8)
    assert state.after_pass(20, 2, 5, swept_below=0).swept_below == 8
    assert state.after_pass(20, 2, 5, swept_below=9).swept_below == 9
    assert state.cut_to(3).after_pass(20, 2, 5, swept_below=0).swept_below == 3


class PausedDisk(MemoryDisk):
    """Lets the test in while the compaction's state is being written."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] | None = None

    def mutex(self) -> AbstractContextManager[object]:
        return threading.Lock()

    def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None and path.endswith("compaction"):
            meanwhile()
        super().write_atomic(path, data, durable=durable)


@pytest.mark.parametrize("ends", [False, True])
def test_a_leadership_that_begins_while_the_state_is_written_has_the_last_word(
    ends: bool,
) -> None:
    disk = PausedDisk()
    log = keyed_log(disk)
    log.compaction.note_copied_under(1_000)
    end = log.log_end_offset
    task = log.compaction.plan(
        log.compaction.sources(end), token="1", tombstones_below=0, kept_base_offsets=frozenset()
    )
    leading = threading.Thread(target=log.compaction.lead_from, args=(end,))

    def lead() -> None:
        leading.start()
        leading.join(0.1)  # It has to wait.

    if ends:
        log.compaction.begin(task)
        disk.meanwhile = lead
        state = log.compaction.state.after_pass(end, 1, 0, swept_below=0)
        log.compaction.finish(task, state)
    else:
        disk.meanwhile = lead
        log.compaction.begin(task)
    leading.join()
    assert log.copied_under == end
    assert CommitLog.open(disk, "/17", CONFIG, clean=True).copied_under == end


def test_a_pass_over_a_log_that_was_cut_since_does_not_begin() -> None:
    log = keyed_log(memory_disk())
    task = log.compaction.plan(
        log.compaction.sources(log.log_end_offset), token="1", tombstones_below=0,
        kept_base_offsets=frozenset(),
    )  # fmt: skip
    log.truncate(10)
    with pytest.raises(UnavailableError, match="cut"):
        log.compaction.begin(task)
    assert log.committed_below <= log.log_end_offset


@pytest.mark.parametrize("is_begun", [False, True])
def test_no_tombstone_goes_while_a_kill_would_bring_back_what_it_deleted(is_begun: bool) -> None:
    """The first segments are out of the log, and their files are still there."""
    disk = memory_disk()
    log = CommitLog.open(disk, "/17", CONFIG, clean=False)
    put(log, b"key1", b"deleted")
    fill(log, 4)
    put(log, b"key1", None)
    fill(log, 4, keys=1)
    before = table(records(log))
    bound = log.log_end_offset
    under_way = steps(disk, log, removable_below=bound)
    if is_begun:
        next(under_way)
    log.begin_advance(log.compaction.sources(bound)[1].base_offset)
    with suppress(UnavailableError):
        assert list(under_way) == []
    again = CommitLog.open(disk.killed(), "/17", CONFIG, clean=False)
    assert again.log_start_offset == 0
    assert table(records(again)) == before
    log.finish_advance()
    assert compact(disk, log, removable_below=bound) is not None
