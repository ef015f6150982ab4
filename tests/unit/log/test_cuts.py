"""Slices that were chosen before their log was cut and grew anew."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_protocol.batch import BatchHeader, encode
from jetstream_protocol.errors import CorruptBatchError, UnavailableError
from jetstream_protocol.record_filter import RecordFilter
from jetstream_server.log.commit_log import CommitLog, LogConfig, LogSlice
from jetstream_server.log.damage import view
from jetstream_server.log.disk import OsDisk
from jetstream_server.log.inspection import BadRange
from jetstream_server.log.segment import Segment
from jetstream_server.log.slice_filter import SliceFilter
from tests.support.log_batches import stamped, values_of

END = 6


@pytest.fixture
def log(tmp_path: Path) -> Iterator[CommitLog]:
    """Six records, in a batch each."""
    disk = OsDisk()
    (tmp_path / "17").mkdir()
    log = CommitLog.open(disk, str(tmp_path / "17"), clean=False)
    grow(log, epoch=1)
    yield log
    disk.close()


def grow(log: CommitLog, epoch: int) -> None:
    """Up to offset END, with values of always the same length."""
    for offset in range(log.log_end_offset, END):
        log.append_replica(stamped(offset, b"of epoch %d" % epoch, epoch=epoch))


def chosen(log: CommitLog, offset: int, end: int) -> LogSlice:
    found = log.read(offset, 1 << 20, end)
    assert found is not None
    assert (found.base_offset, found.next_offset) == (offset, end)
    return found


def test_a_slice_is_gone_once_its_log_is_cut_below_its_end_and_not_before(log: CommitLog) -> None:
    below, above, across = chosen(log, 0, 3), chosen(log, 3, END), chosen(log, 1, 4)
    before = log.pread(below)
    log.truncate(3)
    grow(log, epoch=2)
    again = chosen(log, 3, END)
    log.truncate(5)
    grow(log, epoch=3)
    assert [each.is_gone for each in (below, above, across, again)] == [False, True, True, True]
    assert log.pread(below) == before
    for gone in (above, across, again):
        with pytest.raises(UnavailableError, match="cut"):
            log.pread(gone)
    assert values_of(log) == [b"of epoch 1"] * 3 + [b"of epoch 2"] * 2 + [b"of epoch 3"]


def test_a_part_of_a_slice_is_gone_as_the_slice_is(log: CommitLog) -> None:
    found = chosen(log, 0, END)
    step = SliceFilter(found, log.pread(found), RecordFilter(">", None), 1 << 20, True, None)
    list(step.steps())
    (kept,) = step.kept
    log.truncate(3)
    grow(log, epoch=2)
    assert kept.is_gone


def test_a_slice_of_a_segment_that_was_removed_is_not_read_from_its_successor(
    log: CommitLog,
) -> None:
    log.configure(LogConfig(segment_bytes=1))
    log.truncate(4)
    grow(log, epoch=2)
    found, first = chosen(log, 5, END), chosen(log, 0, 4)
    log.truncate(4)
    grow(log, epoch=3)
    assert found.is_gone
    assert chosen(log, 5, END).path == found.path
    assert not first.is_gone
    log.reset(0)
    grow(log, epoch=4)
    assert first.is_gone


def test_what_an_inspection_found_in_a_segment_that_was_cut_meanwhile_is_not_marked(
    log: CommitLog,
) -> None:
    damage = log.damage
    (segment,) = damage.segments()
    seen = view(segment)
    log.truncate(2)
    grow(log, epoch=2)
    bad = BadRange(0, 3, 4, 10, 20, "it was just being written")
    assert segment.size == seen.size
    assert not damage.mark(segment, seen, [bad])
    assert damage.mark(segment, view(segment), [bad])


def test_a_cut_at_a_bad_range_cuts_it_off_and_one_inside_of_it_is_refused(log: CommitLog) -> None:
    (segment,) = log.damage.segments()
    seen = view(segment)
    second, fourth = (segment.locate(offset)[0] for offset in (2, 4))
    log.damage.mark(segment, seen, [BadRange(0, 2, 4, second, fourth, "rot")])
    with pytest.raises(CorruptBatchError, match="rot"):
        log.truncate(3)
    assert (log.log_end_offset, log.lost_range) == (END, (2, 4))
    assert log.truncate(2) == 2
    assert log.lost_range is None
    assert segment.size == second


def test_a_cut_where_a_gap_ends_keeps_a_bad_range_before_it(log: CommitLog) -> None:
    after = encode([b"after a gap"], b"a.b", after_gap=True)
    after.stamp(END + 2, 1, 0)
    log.append_replica(after.to_bytes(), gaps_below=END + 2)
    (segment,) = log.damage.segments()
    begins_at, gap_at = (segment.locate(offset)[0] for offset in (END - 1, END + 2))
    bad = BadRange(0, END - 1, END, begins_at, gap_at, "rot")
    log.damage.mark(segment, view(segment), [bad])
    assert log.truncate(END + 2) == END
    assert log.lost_range == (END - 1, END)


def test_a_segment_that_was_cut_and_filled_again_is_as_old_as_its_newest_record(
    log: CommitLog,
) -> None:
    """Retention by age would remove newer records for the sake of one that was cut off."""
    log.seal()
    assert [span.newest_us for span in log.sealed_spans()] == [0]
    log.truncate(3)
    log.append_replica(stamped(3, b"newer", epoch=2, timestamp=1_000_000))
    log.seal()
    assert [span.newest_us for span in log.sealed_spans()] == [1_000_000]


def test_a_time_that_was_looked_up_while_the_segment_was_cut_is_not_kept(
    log: CommitLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.seal()
    headers = Segment.headers

    def cut_after(self: Segment, start: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
        yield from headers(self, start, end)
        if log.log_end_offset == END:
            log.truncate(3)  # As the loop's thread may, while retention's thread looks.

    monkeypatch.setattr(Segment, "headers", cut_after)
    list(log.sealed_spans())
    monkeypatch.undo()
    assert log.log_end_offset == 3
    log.append_replica(stamped(3, b"newer", epoch=2, timestamp=1_000_000))
    log.seal()
    assert [span.newest_us for span in log.sealed_spans()] == [1_000_000]
