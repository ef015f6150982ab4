"""CommitLog held against a plain list, through every operation and restart."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from jetstream_protocol.batch import EncodedBatch, encode, iterate
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    FencedEpochError,
    OffsetOutOfRangeError,
)
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.log_disk import MemoryDisk
from tests.support.log_start import advance_log_start, delete_segments_before


@dataclass(frozen=True)
class Stored:
    """One batch of the list."""

    base_offset: int
    next_offset: int
    epoch: int
    timestamp: int
    length: int
    body: bytes


def make_batch(records: int, size: int) -> EncodedBatch:
    return encode([b"%d" % size * size for _ in range(records)], b"a.b")


RECORDS = st.integers(1, 5)
SIZES = st.integers(0, 60)


class LogModel(RuleBasedStateMachine):
    """`stored`, `log_start`, `log_end`, `epoch` and `clock` are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.stored: list[Stored] = []
        self.log_start = 0
        self.log_end = 0
        self.epoch = 0
        self.clock = 0

    @initialize(
        segment_bytes=st.integers(200, 1500),
        interval=st.integers(1, 600),
        age=st.one_of(st.none(), st.integers(1, 50)),
    )
    def open(self, segment_bytes: int, interval: int, age: int | None) -> None:
        self.config = LogConfig(segment_bytes, age, interval)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    # Appending

    @rule(records=RECORDS, size=SIZES, step=st.integers(-20, 30))
    def append(self, records: int, size: int, step: int) -> None:
        batch = make_batch(records, size)
        self.epoch = max(self.epoch, self.log.epochs.latest_epoch)
        wanted = self.clock + step
        # Batches that truncation took away may still hold timestamps back, or not.
        expected = max(wanted, self.log.last_append_timestamp)
        base = self.log.append(batch, leader_epoch=self.epoch, timestamp_us=wanted)
        assert base == self.log_end
        self.clock = max(self.clock, expected)
        self._note(batch, self.epoch, expected)

    @rule(
        batches=st.lists(st.tuples(RECORDS, SIZES, st.integers(0, 30)), max_size=8),
        epochs=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    )
    def append_replica(self, batches: list[tuple[int, int, int]], epochs: list[int]) -> None:
        data, clock, offset = b"", self.clock, self.log_end
        appended = []
        epoch = max(self.epoch, self.log.epochs.latest_epoch)
        for (records, size, step), grows in zip(batches, epochs, strict=False):
            batch = make_batch(records, size)
            clock += step
            epoch += grows
            batch.stamp(offset, epoch, clock)
            offset += records
            data += batch.to_bytes()
            appended.append((batch, epoch, clock))
        self.log.append_replica(data, leader_epoch=epoch)
        for one in appended:
            self._note(*one)
            self.epoch, self.clock = one[1], one[2]

    def _note(self, batch: EncodedBatch, epoch: int, timestamp: int) -> None:
        end = self.log_end + batch.record_count
        body = batch.body[: batch.length]
        self.stored.append(Stored(self.log_end, end, epoch, timestamp, batch.length, body))
        self.log_end = end

    @rule(gap=st.sampled_from([-1, 1, 5]), records=RECORDS)
    def refuse_what_does_not_continue(self, gap: int, records: int) -> None:
        batch = make_batch(records, 3)
        epoch = max(self.epoch, self.log.epochs.latest_epoch)
        if self.log_end + gap >= 0:
            batch.stamp(self.log_end + gap, epoch, self.clock)
            with pytest.raises(DivergedError):
                self.log.append_replica(batch.to_bytes())
        batch.stamp(self.log_end, epoch, self.clock)
        with pytest.raises(CorruptBatchError):
            self.log.append_replica(batch.to_bytes()[:-8])

    @rule(by=st.integers(1, 3))
    def start_epoch(self, by: int) -> None:
        self.epoch = max(self.epoch, self.log.epochs.latest_epoch) + by
        self.log.start_epoch(self.epoch)
        assert self.log.epochs.latest_epoch == self.epoch
        with pytest.raises(FencedEpochError):
            self.log.start_epoch(self.epoch - 1)

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @rule()
    def flush(self) -> None:
        assert self.log.flush() == self.log_end

    # Removing

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        offset = self.log_start + round((self.log_end - self.log_start) * part)
        dropped = [b for b in self.stored if b.next_offset > offset]
        end = dropped[0].base_offset if dropped else self.log_end
        assert self.log.truncate(offset) == end
        self.stored = [b for b in self.stored if b.next_offset <= offset]
        self.log_end = end
        self.log_start = min(self.log_start, end)

    @rule(part=st.floats(0, 1))
    def advance_log_start(self, part: float) -> None:
        offset = self.log_start + round((self.log_end - self.log_start) * part)
        advance_log_start(self.log, offset)
        self._started_at(offset)

    @rule(part=st.floats(0, 1.2))
    def delete_segments_before(self, part: float) -> None:
        offset = self.log_start + round((self.log_end - self.log_start) * part)
        start = delete_segments_before(self.log, offset)
        assert self.log_start <= start <= max(offset, self.log_start)
        self._started_at(start)

    def _started_at(self, offset: int) -> None:
        self.log_start = offset

    @precondition(lambda self: self.log_end > 30)
    @rule(offset=st.integers(0, 200))
    def reset(self, offset: int) -> None:
        self.log.reset(offset)
        self.stored = []
        self.log_start = self.log_end = offset

    # Restarting

    @rule()
    def restart_cleanly(self) -> None:
        self.log.close(clean=True)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=True)
        assert self.log.flushed_offset == self.log_end

    @rule()
    def restart_after_a_clean_close_without_its_marker(self) -> None:
        self.log.close(clean=True)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @rule()
    def restart_after_a_kill(self) -> None:
        self.disk = self.disk.killed()
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @rule()
    def restart_after_a_power_failure(self) -> None:
        self.log.flush()
        self.disk = self.disk.power_failed(lambda n: 0)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    # Reading

    @rule(
        at=st.floats(0, 1), limit=st.floats(0, 1), bytes_max=st.sampled_from([0, 200, 700, 1 << 20])
    )
    def read(self, at: float, limit: float, bytes_max: int) -> None:
        offset = self.log_start + round((self.log_end - self.log_start) * at)
        limit_offset = self.log_start + round((self.log_end - self.log_start) * limit)
        slice_ = self.log.read(offset, bytes_max, limit_offset)
        readable = [
            b for b in self.stored if b.next_offset > offset and b.next_offset <= limit_offset
        ]
        if slice_ is None:
            assert not readable or offset >= limit_offset
            return
        found = list(iterate(self.log.pread(slice_)))
        bodies = [b.body for b in readable][: len(found)]
        assert [b.body for b in found] == [
            body[: len(b.body)] for b, body in zip(found, bodies, strict=True)
        ]
        assert slice_.base_offset == readable[0].base_offset
        assert slice_.next_offset == readable[len(found) - 1].next_offset
        assert len(found) == 1 or slice_.length <= bytes_max
        if len(found) < len(readable):
            following = readable[len(found)]
            next_slice = self.log.read(following.base_offset, 0, limit_offset)
            assert next_slice is not None
            fits = slice_.length + following.length <= bytes_max
            assert not fits or next_slice.path != slice_.path, "it stops early only at a segment"

    @rule(outside=st.integers(1, 50))
    def refuse_reads_outside(self, outside: int) -> None:
        for offset in (self.log_start - outside, self.log_end + outside):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.read(offset, 100, self.log_end)

    @rule(timestamp=st.integers(-10, 400))
    def find_time(self, timestamp: int) -> None:
        visible = [b for b in self.stored if b.next_offset > self.log_start]
        expected = next(
            (
                (max(b.base_offset, self.log_start), b.epoch)
                for b in visible
                if b.timestamp >= timestamp
            ),
            None,
        )
        assert self.log.offset_for_timestamp(timestamp) == expected

    # What always holds

    @invariant()
    def positions_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.offline_reason == ""
        assert self.log.log_start_offset == self.log_start
        assert self.log.log_end_offset == self.log_end
        assert self.log_start <= self.log.flushed_offset <= self.log_end
        newest = self.stored[-1].timestamp if self.stored else 0
        assert newest <= self.log.last_append_timestamp <= self.clock

    @invariant()
    def the_newest_batches_are_where_they_are(self) -> None:
        """They are found without a read, unless something moved them."""
        if not hasattr(self, "log"):
            return
        for batch in self.stored[-6:]:
            for offset in range(max(batch.base_offset, self.log_start), batch.next_offset):
                for bytes_max in (batch.length, 1 << 20):
                    slice_ = self.log.read(offset, bytes_max, self.log_end)
                    assert slice_ is not None
                    assert slice_.base_offset == batch.base_offset

    @invariant()
    def epochs_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        for batch in self.stored:
            if batch.base_offset >= self.log_start:
                assert self.log.epochs.epoch_at(batch.base_offset) == batch.epoch

    def teardown(self) -> None:
        if hasattr(self, "log"):
            offset, found = self.log_start, []
            while (slice_ := self.log.read(offset, 500, self.log_end)) is not None:
                found += list(iterate(self.log.pread(slice_)))
                offset = slice_.next_offset
            visible = [b for b in self.stored if b.next_offset > self.log_start]
            assert [b.header.base_offset for b in found] == [b.base_offset for b in visible]
            assert [b.header.append_timestamp for b in found] == [b.timestamp for b in visible]


TestLogModel = LogModel.TestCase
