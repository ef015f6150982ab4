"""Killing the process, or the power, in the middle of any change to the disk.

A short history of operations runs against a disk that dies at its N-th change. Then:

* after a kill the next process finds everything written; after a power failure what was synced,
  and any part of the rest (tests/support/log_disk.py says which parts);
* the log opens; it holds what the history left before or after the operation that was
  interrupted, or, where a truncation was, something in between: never a batch that was not
  appended, never a gap; nothing below the flushed offset is missing;
* after a kill it is never taken for corrupt, and goes on;
* what it remembers of producers lets none of their batches in twice, and none past a gap.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetstream_protocol.batch import encode
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.log_batches import batch, read_all
from tests.support.log_disk import Killed, MemoryDisk
from tests.support.log_producers import check_producers, next_of
from tests.support.log_start import advance_log_start

CONFIG = LogConfig(segment_bytes=400, index_interval_bytes=150)
BOOT = "the boot"
Step = tuple[str, int]


@dataclass(frozen=True)
class State:
    """What a log holds: (base offset, a mark only this batch has) of each batch, and its start."""

    batches: tuple[tuple[int, bytes], ...] = ()
    log_start: int = 0
    log_end: int = 0
    flushed: int = 0


@dataclass
class History:
    """Runs operations and notes what the log must hold before and after the current one."""

    disk: MemoryDisk
    before: State = field(default_factory=State)
    after: State = field(default_factory=State)
    current: str = ""
    appended: int = 0

    def run(self, steps: list[Step]) -> None:
        self.log = CommitLog.open(self.disk, "/17", CONFIG, clean=False, boot_id=BOOT)
        for name, argument in steps:
            self.current = name
            self.before = self.after
            getattr(self, name)(argument)
            assert (self.log.log_start_offset, self.log.log_end_offset) == (
                self.after.log_start,
                self.after.log_end,
            )
        self.current = ""
        self.before = self.after

    def append(self, size: int) -> None:
        self.appended += 1
        mark = b"%06d" % self.appended
        end = self.before.log_end
        self.after = replace(
            self.before, batches=(*self.before.batches, (end, mark)), log_end=end + 2
        )
        epoch = max(self.log.epochs.latest_epoch, 0) + (size % 5 == 0)
        produced = encode([mark, b"x" * size], b"a.b", **next_of(self.log, size % 2))
        self.log.append(produced, leader_epoch=epoch, timestamp_us=self.appended)
        self.log.note_end()

    def flush(self, _: int) -> None:
        self.after = replace(self.before, flushed=self.before.log_end)
        self.log.flush()

    def seal(self, _: int) -> None:
        self.log.seal()

    def truncate(self, part: int) -> None:
        start, end = self.before.log_start, self.before.log_end
        target = start + (end - start) * part // 100
        kept = tuple(b for b in self.before.batches if b[0] + 2 <= target)
        new_end = target if target == end else target - target % 2
        self.after = State(kept, min(start, new_end), new_end, min(self.before.flushed, new_end))
        self.log.truncate(target)

    def advance(self, part: int) -> None:
        start, end = self.before.log_start, self.before.log_end
        target = start + (end - start) * part // 100
        flushed = max(self.before.flushed, end if target > self.before.flushed else 0)
        self.after = replace(self.before, log_start=target, flushed=flushed)
        advance_log_start(self.log, target)

    def reset(self, offset: int) -> None:
        offset += offset % 2
        self.after = State((), offset, offset, offset)
        self.log.reset(offset)

    def restart(self, clean: int) -> None:
        self.after = self.before
        if clean:
            self.after = replace(self.before, flushed=self.before.log_end)
            self.log.close(clean=True)
        self.before = self.after
        self.log = CommitLog.open(self.disk, "/17", CONFIG, clean=bool(clean), boot_id=BOOT)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 250)),
        st.tuples(st.just("append"), st.integers(0, 250)),
        st.tuples(st.just("append"), st.integers(0, 250)),
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("advance"), st.integers(0, 100)),
        st.tuples(st.just("reset"), st.integers(0, 50)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
    ),
    max_size=14,
)


def holds(log: CommitLog) -> tuple[tuple[int, bytes], ...]:
    found = read_all(log)
    marks = tuple((b.header.base_offset, b.values()[0] or b"") for b in found)
    for one, following in pairwise(found):
        assert one.header.next_offset == following.header.base_offset
    return marks


def check_found(log: CommitLog, history: History) -> None:
    """What was found is what was before or after, or something allowed between."""
    check_producers(log)
    before, after = history.before, history.after
    found = holds(log)
    whole = after.batches if len(after.batches) > len(before.batches) else before.batches
    visible = tuple(b for b in whole if b[0] + 2 > log.log_start_offset)
    if history.current == "reset":
        # Everything was to go. What is left is a prefix, and the leader asks for a reset again.
        assert found in (visible[: len(found)], ())
        return
    assert found == visible[: len(found)], "a prefix of what was appended"
    first = min(before.log_start, after.log_start)
    # The exact start is lost when the crash came between removing segments and recording it.
    assert first - 1 <= log.log_start_offset <= max(before.log_start, after.log_start)
    assert log.log_end_offset >= min(before.flushed, after.flushed), "flushed is flushed"


def ask_again(log: CommitLog, history: History) -> None:
    """A reset to an earlier offset whose mark was written in part leaves a log that says that it
    lacks its beginning. The leader asks for the reset again."""
    if history.current == "reset" and log.lacks_beginning:
        assert log.offline_reason
        log.reset(0)


def crash(history_steps: list[Step], at: Callable[[int], int]) -> History:
    """Run the steps on a disk that dies in the middle of the change that `at` picks."""
    rehearsal = History(MemoryDisk())
    rehearsal.run(history_steps)
    history = History(MemoryDisk())
    history.disk.crash_after = at(rehearsal.disk.operations + 1)
    try:
        history.run(history_steps)
    except Killed:
        pass
    return history


@given(steps=steps, data=st.data())
def test_kill_at_any_point(steps: list[Step], data: st.DataObject) -> None:
    history = crash(steps, lambda n: data.draw(st.integers(0, n - 1), label="dies at"))
    found = history.disk.killed()
    log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id=BOOT)
    ask_again(log, history)
    assert (log.offline_reason, log.incomplete_reason) == ("", "")
    check_found(log, history)
    if history.current in ("", "append", "flush", "seal", "restart"):
        assert log.log_end_offset in (history.before.log_end, history.after.log_end)
    held = holds(log)
    log.append(batch(b"on", b"we go"), leader_epoch=999, timestamp_us=0)
    again = CommitLog.open(found.killed(), "/17", CONFIG, clean=False, boot_id=BOOT)
    assert (again.offline_reason, again.incomplete_reason) == ("", "")
    assert holds(again) == (*held, (log.log_end_offset - 2, b"on"))


def test_kill_at_every_point_of_a_reset_to_the_front() -> None:
    steps: list[Step] = [("reset", 1), ("reset", 0)]
    rehearsal = History(MemoryDisk())
    rehearsal.run(steps)
    for dies_at in range(rehearsal.disk.operations):
        found = crash(steps, partial(min, dies_at)).disk.killed()
        log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id=BOOT)
        # It never vouches for a log that neither of them left.
        assert log.lacks_beginning or log.log_end_offset in (0, 2)


def test_power_failure_at_every_point_of_a_reset_to_the_front() -> None:
    steps: list[Step] = [("append", 0), ("append", 0), ("reset", 1), ("reset", 0)]
    rehearsal = History(MemoryDisk())
    rehearsal.run(steps)
    for dies_at in range(rehearsal.disk.operations):
        for left in product((0, 1), repeat=4):
            choices = iter(left)
            history = crash(steps, partial(min, dies_at))
            found = history.disk.power_failed(lambda n, each=choices: min(next(each, 0), n - 1))
            log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id="another boot")
            ask_again(log, history)
            check_found(log, history)


@given(steps=steps, data=st.data())
def test_power_failure_at_any_point(steps: list[Step], data: st.DataObject) -> None:
    history = crash(steps, lambda n: data.draw(st.integers(0, n - 1), label="dies at"))
    found = history.disk.power_failed(lambda n: data.draw(st.integers(0, n - 1)))
    log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id="another boot")
    ask_again(log, history)
    check_found(log, history)
    if log.offline_reason:
        # A later segment kept batches and an earlier one lost some: that looks like corruption,
        # and only records that were never flushed can be concerned.
        assert "a valid batch follows" in log.offline_reason
        log.salvage()
    held = holds(log)
    log.append(batch(b"on", b"we go"), leader_epoch=999, timestamp_us=0)
    log.flush()
    found = found.power_failed(lambda n: 0)
    again = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id="a third")
    assert again.offline_reason == ""
    assert holds(again) == (*held, (log.log_end_offset - 2, b"on"))


@given(steps=steps, data=st.data())
def test_power_failure_during_recovery(steps: list[Step], data: st.DataObject) -> None:
    history = crash(steps, lambda n: data.draw(st.integers(0, n - 1), label="dies at"))
    found = history.disk.power_failed(lambda n: data.draw(st.integers(0, n - 1)))
    found.crash_after = data.draw(st.integers(0, 12), label="dies again at")
    try:
        CommitLog.open(found, "/17", CONFIG, clean=False, boot_id="another boot").close(clean=False)
    except Killed:
        pass
    found = found.power_failed(lambda n: data.draw(st.integers(0, n - 1)))
    log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id="a third")
    check_found(log, history)


LONG: list[Step] = [("append", 40)] * 12


@pytest.mark.parametrize(
    "history",
    [
        [*LONG, ("truncate", 10)],
        [*LONG, ("flush", 0), ("truncate", 30), *LONG],
        [*LONG, ("restart", 1), ("truncate", 0), *LONG[:3], ("restart", 0)],
        [*LONG, ("advance", 90), *LONG[:3]],
        [*LONG, ("flush", 0), ("advance", 100), *LONG[:3], ("restart", 1), ("seal", 0)],
        [*LONG, ("flush", 0), ("reset", 7), *LONG[:3]],
        [("reset", 7), *LONG[:3], ("flush", 0), ("restart", 1)],
    ],
    ids=lambda steps: "-".join(dict.fromkeys(name for name, _ in steps)),
)
def test_kill_at_every_point_of_a_long_operation(history: list[Step]) -> None:
    rehearsal = History(MemoryDisk())
    rehearsal.run(history)
    for at in range(rehearsal.disk.operations + 1):
        killed = crash(history, lambda n, at=at: at)  # type: ignore[misc]
        for found, boot_id in (
            (killed.disk.killed(), BOOT),
            (killed.disk.power_failed(lambda n: 0), "another boot"),
        ):
            log = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id=boot_id)
            assert (log.offline_reason, log.incomplete_reason) == ("", "")
            check_found(log, killed)


def purged(disk: MemoryDisk) -> CommitLog:
    """A log of several segments. Those below offset 12 left it, but their files are still there."""
    log = CommitLog.open(disk, "/17", CONFIG, clean=False, boot_id=BOOT)
    for at in range(10):
        log.append(batch(b"%06d" % at, b"x" * 40), leader_epoch=1, timestamp_us=0)
        log.note_end()
    log.flush()
    log.begin_advance(12)
    return log


def close_cleanly(log: CommitLog) -> None:
    log.close(clean=True)


def fail_and_salvage(log: CommitLog) -> None:
    log.health.fail("a disk failed")
    log.salvage()


@pytest.mark.parametrize("end", [close_cleanly, fail_and_salvage])
@pytest.mark.parametrize("draw", [0, 1, 2, 3, 4, 5, 6, 7])
def test_kill_at_every_point_of_removing_what_a_purge_has_left(
    end: Callable[[CommitLog], None], draw: int
) -> None:
    rehearsal = MemoryDisk()
    log = purged(rehearsal)
    begun_at = rehearsal.operations
    end(log)
    assert not [name for name in rehearsal.files("/17") if name < "00000000000000000012"]
    for at in range(begun_at, rehearsal.operations + 1):
        disk = MemoryDisk()
        log = purged(disk)
        disk.crash_after = at
        with suppress(Killed):
            end(log)
        dice = Random(draw)
        for found, boot_id in (
            (disk.killed(), BOOT),
            (disk.power_failed(dice.randrange), "another boot"),
        ):
            again = CommitLog.open(found, "/17", CONFIG, clean=False, boot_id=boot_id)
            assert (again.offline_reason, again.incomplete_reason) == ("", "")
            assert again.log_start_offset in (0, 12)
            kept = tuple((base, b"%06d" % (base // 2)) for base in (12, 14, 16, 18))
            assert holds(again)[-4:] == kept
