"""The index of subjects against a scan: whatever was appended, copied, cut, removed, compacted and
restarted, in any order, it says of each subject what a scan of the log says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from jetstream_protocol.batch import EncodedBatch, encode
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.subject_index import Last, SubjectIndex
from tests.support.compacting import GRACE_US, compact
from tests.support.examples import scaled
from tests.support.log_batches import read_all
from tests.support.log_disk import MemoryDisk
from tests.support.log_start import advance_log_start

SUBJECTS = [b"a", b"a.b", b"b", b"long" * 30, "ü".encode()]
ROWS = st.lists(
    st.tuples(st.sampled_from(SUBJECTS), st.sampled_from([None, b"", b"1", b"x" * 90])),
    min_size=1, max_size=6,
)  # fmt: skip
MUTANT_EXAMPLES = 2000
"""They die within the first few hundred: Hypothesis takes other examples in another company."""
SOON_CAUGHT = 10
"""A seed by which they die within the first few."""


def batch_of(rows: list[tuple[bytes, bytes | None]]) -> EncodedBatch:
    subjects = [subject for subject, _ in rows]
    return encode([value for _, value in rows], subjects, keys=subjects)


def scan(log: CommitLog, end_offset: int) -> dict[bytes, Last]:
    """The last record of each subject below an offset, as the log itself says."""
    found: dict[bytes, Last] = {}
    for batch in read_all(log):
        rows = zip(batch.subjects(), batch.offsets(), batch.values(), strict=True)
        for subject, offset, value in rows:
            if log.log_start_offset <= offset < end_offset:
                found[subject] = Last(offset, value is None)
    return found


def told(log: CommitLog, last: Last | None) -> Last | None:
    """What the callers of an index make of its answer."""
    if last is None or last.offset < log.log_start_offset:
        return None
    return None if last.is_tombstone and last.offset < log.tombstones_gone_below else last


class Indexed(RuleBasedStateMachine):
    """`committed` is the high watermark."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.disk.make_directory("/17")
        self.clock = 0
        self.epoch = 0
        self.committed = 0

    @initialize(segment_bytes=st.integers(300, 2500), interval=st.integers(1, 600))
    def open(self, segment_bytes: int, interval: int) -> None:
        self.config = LogConfig(segment_bytes, None, interval, index_subjects=True)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @property
    def index(self) -> SubjectIndex:
        assert self.log.subjects is not None
        return self.log.subjects

    @rule(batches=st.lists(ROWS, min_size=1, max_size=4))
    def append(self, batches: list[Any]) -> None:
        for rows in batches:
            self.clock += 1
            self.log.append(batch_of(rows), leader_epoch=self.epoch, timestamp_us=self.clock)

    @rule(batches=st.lists(ROWS, min_size=1, max_size=4))
    def append_as_a_follower(self, batches: list[Any]) -> None:
        data, offset = b"", self.log.log_end_offset
        for rows in batches:
            self.clock += 1
            batch = batch_of(rows)
            batch.stamp(offset, self.epoch, self.clock)
            data, offset = data + batch.to_bytes(), offset + len(rows)
        self.log.append_replica(data, leader_epoch=self.epoch)

    @rule(part=st.floats(0, 1))
    def commit(self, part: float) -> None:
        """Batches are committed as a whole."""
        ends = [batch.header.next_offset for batch in read_all(self.log)]
        ends = [end for end in ends if end > self.committed]
        if ends:
            self.committed = ends[min(len(ends) - 1, int(part * len(ends)))]

    @rule(part=st.floats(0, 1))
    def cut_what_is_not_committed(self, part: float) -> None:
        self._cut(self.committed + round((self.log.log_end_offset - self.committed) * part))

    @rule(part=st.floats(0, 1))
    def cut_committed_records(self, part: float) -> None:
        """As an unclean election may."""
        start = self.log.log_start_offset
        self._cut(start + round((self.log.log_end_offset - start) * part))

    def _cut(self, offset: int) -> None:
        self.log.truncate(offset)
        self.epoch += 1
        self.log.start_epoch(self.epoch)
        self.committed = min(self.committed, self.log.log_end_offset)

    @rule(ahead=st.integers(0, 9))
    def reset(self, ahead: int) -> None:
        self.log.reset(self.log.log_end_offset + ahead)
        self.log.start_epoch(self.epoch)
        self.committed = self.log.log_end_offset

    @rule(part=st.floats(0, 1))
    def remove_old_records(self, part: float) -> None:
        start = self.log.log_start_offset
        advance_log_start(self.log, start + round((self.committed - start) * part))

    @rule(pause=st.sampled_from([0, 1, GRACE_US]), seals=st.booleans())
    def compact(self, pause: int, seals: bool) -> None:
        self.clock += pause
        if seals:
            self.log.seal()
        self.log.flush()
        self.committed = self.log.log_end_offset
        compact(self.disk, self.log, wall_us=self.clock)

    @rule()
    def restart(self) -> None:
        self.log.close(clean=True)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=True)

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.killed()
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @rule(meanwhile=st.sampled_from(["nothing", "cut", "cut and append"]), part=st.floats(0, 1))
    def read_a_step(self, meanwhile: str, part: float) -> None:
        """A thread reads; what happens to the log meanwhile, it does not know."""
        self.index.skip_to(self.log.log_start_offset)
        end = self.log.log_end_offset
        if self.index.reached >= end:
            return
        found = self.log.read_subjects(self.index.reached, 300, end)
        cuts = self.index.cuts
        if meanwhile != "nothing":
            self.cut_what_is_not_committed(part)
        if meanwhile == "cut and append":
            self.append_as_a_follower([[(subject, b"other")] for subject in SUBJECTS])
        if found is not None:
            self.index.take(found, cuts)

    @rule()
    def forget_what_is_gone(self) -> None:
        self._catch_up()
        self.index.commit(self.committed)
        self.index.forget(self.log.log_start_offset, self.log.tombstones_gone_below)

    def _catch_up(self, limit: int | None = None) -> None:
        end = self.log.log_end_offset if limit is None else limit
        self.index.skip_to(self.log.log_start_offset)
        while self.index.reached < end:
            found = self.log.read_subjects(self.index.reached, 300, end)
            if found is None:
                break
            assert self.index.take(found, self.index.cuts)

    @invariant()
    def it_knows_nothing_beyond_the_log(self) -> None:
        if hasattr(self, "log"):
            assert self.index.reached <= self.log.log_end_offset

    @invariant()
    def what_it_says_is_what_a_scan_finds(self) -> None:
        """Of the log up to where it has come, and of the whole log once it has read the rest."""
        if not hasattr(self, "log"):
            return
        self._compare(min(self.committed, self.index.reached))

    @rule()
    def it_is_complete_once_all_is_read(self) -> None:
        self._catch_up()
        assert self.index.reached == self.log.log_end_offset
        self._compare(self.committed)

    def _compare(self, committed: int) -> None:
        """Except of subjects with a later record that was not read yet: compaction may have removed
        the one that is known for it."""
        index, log = self.index, self.log
        found = scan(log, log.log_end_offset)
        read = [s for s in SUBJECTS if s not in found or found[s].offset < index.reached]
        for subject in read:
            assert told(log, index.newest(subject)) == told(log, found.get(subject))
        index.commit(committed)
        known = scan(log, max(committed, index.committed_to))
        for subject in read:
            assert told(log, index.last(subject)) == told(log, known.get(subject))


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(max_examples=scaled(40), stateful_step_count=20)

Mutate = Callable[[pytest.MonkeyPatch], None]


def takes_what_was_cut_meanwhile(patch: pytest.MonkeyPatch) -> None:
    take = SubjectIndex.take
    patch.setattr(SubjectIndex, "take", lambda self, found, cuts: take(self, found, self.cuts))


def keeps_what_was_cut(patch: pytest.MonkeyPatch) -> None:
    def only_its_end(self: SubjectIndex, end_offset: int, start_offset: int) -> None:
        self.reached = min(self.reached, end_offset)

    patch.setattr(SubjectIndex, "truncate", only_its_end)


def keeps_committed_records_that_were_cut(patch: pytest.MonkeyPatch) -> None:
    truncate = SubjectIndex.truncate

    def as_if_pending(self: SubjectIndex, end_offset: int, start_offset: int) -> None:
        self.committed_to = min(self.committed_to, end_offset)
        truncate(self, end_offset, start_offset)

    patch.setattr(SubjectIndex, "truncate", as_if_pending)


def tells_what_is_not_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SubjectIndex, "last", SubjectIndex.newest)


@pytest.mark.parametrize(
    "mutate",
    [
        takes_what_was_cut_meanwhile,
        keeps_what_was_cut,
        keeps_committed_records_that_were_cut,
        tells_what_is_not_committed,
    ],
)
def test_an_index_that_breaks_a_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, mutate: Mutate
) -> None:
    mutate(monkeypatch)

    @seed(SOON_CAUGHT)
    class Mutated(Indexed):
        pass

    with pytest.raises(AssertionError):
        run_state_machine_as_test(
            Mutated,
            settings=settings(
                max_examples=MUTANT_EXAMPLES, stateful_step_count=25, phases=[Phase.generate],
                database=None, print_blob=False,
            ),
        )  # fmt: skip
