"""Any one file of a log damaged in any one way, after its process was killed or stopped.

The log is made by random appends, flushes, seals, retention, compaction, truncations and restarts,
as a stream that flushes before it acknowledges or as one that does not. Then one file, or the whole
folder, is lost, cut short, filled with zeros or has a bit flipped, and the log is opened again in
the same boot of the machine. Claims:

* a log that is believed (`judge`) begins where it began, reaches at least to what was acknowledged,
  and gives what it gave, or says that it cannot: it never gives other bytes;
* a log that lacks any of that is not believed, and takes no append: no offset is given twice;
* without damage it is believed;
* a state file that the device refuses to read at one start, and gives again at a later one, when it
  may not fit the log any more, costs no record and vouches for none.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from jetstream_protocol.batch import encode, iterate
from jetstream_protocol.errors import CorruptBatchError, RecordsDamagedError, StorageError
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.replication.core.restart_trust import RunRecord, judge
from tests.support.compacting import compact
from tests.support.examples import scaled
from tests.support.log_batches import batch
from tests.support.log_disk import FaultyDisk, MemoryDisk
from tests.support.log_start import advance_log_start

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=200)
BOOT = "the boot"
Step = tuple[str, int]


class History:
    """A log, and how far it was acknowledged."""

    def __init__(self, *, flushes_first: bool) -> None:
        self.disk = MemoryDisk()
        self.flushes_first = flushes_first
        self.acknowledged = 0
        self.clean = False
        self.log = self._open()

    def _open(self) -> CommitLog:
        return CommitLog.open(self.disk, "/17", CONFIG, clean=self.clean, boot_id=BOOT)

    def run(self, steps: list[Step]) -> None:
        for number, (name, argument) in enumerate(steps):
            getattr(self, name)(argument, number)

    def append(self, size: int, number: int) -> None:
        epoch = max(self.log.epochs.latest_epoch, 0) + (size % 5 == 0)
        value = encode([b"v" * size], b"a.b", keys=[b"%d" % (size % 3)])
        self.log.append(value, leader_epoch=epoch, timestamp_us=number)
        if not self.flushes_first:
            self.log.note_end()
            self.acknowledged = self.log.log_end_offset

    def flush(self, _: int, number: int) -> None:
        self.acknowledged = self.log.flush()

    def seal(self, _: int, number: int) -> None:
        self.log.seal()

    def advance(self, part: int, number: int) -> None:
        start, end = self.log.log_start_offset, self.acknowledged
        if start < end:
            advance_log_start(self.log, start + (end - start) * part // 100)

    def compact(self, _: int, number: int) -> None:
        compact(self.disk, self.log, wall_us=number)

    def truncate(self, part: int, number: int) -> None:
        start, end = self.log.log_start_offset, self.log.log_end_offset
        self.log.truncate(start + (end - start) * part // 100)
        self.acknowledged = min(self.acknowledged, self.log.log_end_offset)

    def reset(self, offset: int, number: int) -> None:
        self.log.reset(offset)
        self.acknowledged = offset

    def restart(self, clean: int, number: int) -> None:
        if clean:
            self.log.close(clean=True)
            self.acknowledged = self.log.log_end_offset
        self.clean = bool(clean)
        self.log = self._open()
        self.acknowledged = max(self.acknowledged, self.log.flushed_offset)


appends = st.tuples(st.just("append"), st.integers(0, 250))
steps = st.lists(
    st.one_of(
        appends, appends, appends, appends, appends, appends,
        st.tuples(st.just("flush"), st.just(0)),
        st.tuples(st.just("seal"), st.just(0)),
        st.tuples(st.just("advance"), st.integers(0, 100)),
        st.tuples(st.just("compact"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100)),
        st.tuples(st.just("reset"), st.integers(0, 9)),
        st.tuples(st.just("restart"), st.integers(0, 1)),
    ),
    min_size=5, max_size=40,
)  # fmt: skip


@dataclass(frozen=True)
class Content:
    """What a log gives to its readers, batch by batch."""

    log_start_offset: int
    log_end_offset: int
    batches: dict[int, tuple[int, bytes]]
    """Next offset and body by base offset."""


def content_of(log: CommitLog) -> tuple[Content, list[int]]:
    """And the offsets at which it said that it cannot."""
    batches: dict[int, tuple[int, bytes]] = {}
    refused = []
    offset = log.log_start_offset
    while offset < log.log_end_offset:
        try:
            slice_ = log.read(offset, 1, log.log_end_offset)
            assert slice_ is not None
            for found in iterate(log.pread(slice_), file=slice_.path):
                batches[found.header.base_offset] = (found.header.next_offset, bytes(found.body))
            offset = slice_.next_offset
        except (CorruptBatchError, RecordsDamagedError):
            refused.append(offset)
            offset += 1
    return Content(log.log_start_offset, log.log_end_offset, batches), refused


def is_believed(log: CommitLog) -> bool:
    record = RunRecord(("first",), BOOT).of_new_run("second", BOOT)
    trust = judge(record, "first", {17: log.offline_reason or log.incomplete_reason})
    return trust.trusted and not trust.distrusted


def damage(disk: MemoryDisk, data: st.DataObject) -> bool:
    """Damage one file; returns whether bytes of it are gone, rather than other ones."""
    names = [f"/17/{name}" for name in disk.files("/17")] if disk.exists("/17") else []
    path = data.draw(st.sampled_from([*names, "/17.offsets", "/17"]), label="path")
    if path == "/17":
        for name in names:
            disk.remove(name)
        if disk.exists("/17"):
            disk.remove_directory("/17")
        return True
    if not disk.exists(path):
        return False
    content = bytearray(disk.read_file(path))
    how = data.draw(st.sampled_from(["lost", "cut", "zeroed", "flipped"]), label="how")
    if how == "lost":
        disk.remove(path)
    elif content:
        at = data.draw(st.integers(0, len(content) - 1), label="at")
        if how == "cut":
            del content[at:]
        elif how == "zeroed":
            end = data.draw(st.integers(at + 1, len(content)), label="to")
            content[at:end] = bytes(end - at)
        else:
            content[at] ^= 1 << data.draw(st.integers(0, 7), label="bit")
        disk.put(path, bytes(content))
    return how in ("lost", "cut")


def check(before: Content, acknowledged: int, log: CommitLog, *, is_gone: bool) -> None:
    after, refused = content_of(log) if not log.is_lost else (Content(0, 0, {}), [])
    for base_offset, found in after.batches.items():
        if base_offset in before.batches:
            assert found == before.batches[base_offset], "other bytes than were stored"
        else:
            assert base_offset >= acknowledged, "what was not there"
    if is_believed(log):
        assert after.log_start_offset == before.log_start_offset
        assert after.log_end_offset >= acknowledged
        for base_offset, (next_offset, _) in before.batches.items():
            if next_offset <= acknowledged and base_offset not in after.batches:
                # Rot in what was flushed long ago is found when it is read, here and by the scrub.
                assert not is_gone, "a file that is gone or short is noticed at once"
                assert set(range(base_offset, next_offset)) & set(refused), "silently shorter"
    if log.offline_reason:
        try:
            log.append(batch(b"next"), leader_epoch=999, timestamp_us=0)
        except StorageError:
            return
        raise AssertionError("a damaged log took an append")
    assert log.append(batch(b"next"), leader_epoch=999, timestamp_us=0) >= acknowledged


def opened(disk: MemoryDisk, *, clean: bool) -> CommitLog:
    return CommitLog.open(disk, "/17", CONFIG, clean=clean, boot_id=BOOT)


@given(steps=steps, flushes_first=st.booleans(), clean=st.booleans(), data=st.data())
@settings(max_examples=scaled(400))
def test_no_damage_to_any_one_file_is_believed_or_gives_an_offset_twice(
    steps: list[Step], flushes_first: bool, clean: bool, data: st.DataObject
) -> None:
    history = History(flushes_first=flushes_first)
    history.run(steps)
    if clean:
        history.log.close(clean=True)
        history.acknowledged = history.log.log_end_offset
    disk = history.disk.killed()
    log = opened(disk.killed(), clean=clean)
    assert is_believed(log), "without damage"
    before, refused = content_of(log)
    assert not refused
    is_gone = damage(disk, data)
    check(before, history.acknowledged, opened(disk, clean=clean), is_gone=is_gone)


@given(steps=steps, flushes_first=st.booleans(), data=st.data())
@settings(deadline=None)
def test_a_second_start_believes_no_more_than_the_first(
    steps: list[Step], flushes_first: bool, data: st.DataObject
) -> None:
    """The first one dies before it could tell anybody."""
    history = History(flushes_first=flushes_first)
    history.run(steps)
    disk = history.disk.killed()
    before, _ = content_of(opened(disk.killed(), clean=False))
    is_gone = damage(disk, data)
    first = opened(disk, clean=False)
    second = opened(disk.killed(), clean=False)
    assert is_believed(second) == is_believed(first)
    check(before, history.acknowledged, second, is_gone=is_gone)


@given(
    steps=steps,
    cut=st.integers(0, 100),
    later=steps,
    name=st.sampled_from(["checkpoint", "compaction"]),
    clean=st.booleans(),
    data=st.data(),
)
@settings(max_examples=scaled(200), deadline=None)
def test_a_state_file_that_is_refused_once_costs_nothing(
    steps: list[Step], cut: int, later: list[Step], name: str, clean: bool, data: st.DataObject
) -> None:
    history = History(flushes_first=data.draw(st.booleans()))
    history.run([*[("append", 99)] * 7, ("seal", 0), ("flush", 0), ("compact", 0), *steps])
    if clean:
        history.log.close(clean=True)
    history.disk = history.disk.killed()
    before, _ = content_of(opened(history.disk.killed(), clean=clean))
    disk = FaultyDisk(history.disk)
    disk.fail("read_file", f"/17/{name}", errno.EIO)
    history.log = CommitLog.open(disk, "/17", CONFIG, clean=clean, boot_id=BOOT)
    disk.heal()
    assert is_believed(history.log)
    assert content_of(history.log) == (before, [])
    check_restart(history, clean=False)
    history.truncate(cut, 0)
    check_restart(history, clean=False)
    history.run(later)
    if data.draw(st.booleans()):
        history.log.close(clean=True)
        check_restart(history, clean=True)
    else:
        check_restart(history, clean=False)


def check_restart(history: History, *, clean: bool) -> None:
    """Compare the log with what another start makes of it."""
    log, again = history.log, opened(history.disk.killed(), clean=clean)
    assert is_believed(again)
    assert content_of(again) == content_of(log)
    assert again.compaction.state == log.compaction.state
