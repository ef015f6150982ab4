"""Compaction against a dict: whatever was appended, cut, killed and compacted, in any order, a
reader from the start ends with exactly the last value of each key."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from jetstream_protocol.batch import Flags, encode, iterate
from jetstream_server.log.commit_log import CommitLog, LogConfig
from tests.support.compacting import (
    GRACE_US,
    Record,
    compact,
    records,
    rows,
    steps,
    table,
)
from tests.support.log_batches import read_all
from tests.support.log_disk import Killed, MemoryDisk

KEYS = st.one_of(st.none(), st.sampled_from([b"", b"a", b"b", b"c", b"long" * 20, b"long" * 21]))
VALUES = st.one_of(st.none(), st.sampled_from([b"", b"1", b"22", b"x" * 100]))
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)


class Compacted(RuleBasedStateMachine):
    """`appended` is every record ever; `batches` every batch's header as it was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.disk.make_directory("/17")
        self.appended: list[Record] = []
        self.headers: dict[int, tuple[int, int, int, int, int]] = {}
        self.clock = 0
        self.epoch = 0
        self.sequence = -1
        self.reader: tuple[int, int, list[Record]] | None = None

    @initialize(
        segment_bytes=st.integers(200, 1500), interval=st.integers(1, 600), keys=st.integers(1, 9)
    )
    def open(self, segment_bytes: int, interval: int, keys: int) -> None:
        self.keys_max = keys
        self.config = LogConfig(segment_bytes, None, interval)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @rule(
        batches=st.lists(ROWS, min_size=1, max_size=8), keyed=st.sampled_from([True] * 4 + [False]),
        columns=st.sampled_from([0, Flags.HEADERS, Flags.SUBJECT_COLUMN, Flags.TIMESTAMPS, 1023]),
        compression=st.sampled_from([0, 0, Flags.ZSTD, Flags.LZ4]), producer=st.booleans(),
    )  # fmt: skip
    def append(
        self, batches: list[Any], keyed: bool, columns: int, compression: int, producer: bool
    ) -> None:
        for entries in batches:
            count = len(entries)
            keys = [key if keyed else None for key, _ in entries]
            values = [value for _, value in entries]
            self.clock += 1
            self.sequence += producer
            number = (7, self.sequence) if producer else (-1, -1)
            subjects = [b"s%d" % index for index in range(count)]
            batch = encode(
                values,
                subjects if columns & Flags.SUBJECT_COLUMN else b"s",
                keys=keys if keyed else None,
                header_blocks=[b"NATS/1.0\r\n\r\n"] * count if columns & Flags.HEADERS else None,
                timestamps=list(range(count)) if columns & Flags.TIMESTAMPS else None,
                compression=int(compression),
                producer_id=number[0],
                producer_sequence=number[1],
            )
            base = self.log.append(batch, leader_epoch=self.epoch, timestamp_us=self.clock)
            self.appended += zip(range(base, base + count), keys, values, strict=True)
            self.headers[base] = (self.epoch, self.clock, count - 1, *number)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule(pause=st.sampled_from([0, 1, GRACE_US]))
    def compact(self, pause: int) -> None:
        self.clock += pause
        self.log.flush()
        compact(self.disk, self.log, now_us=self.clock, keys_max=self.keys_max,
                kept_base_offsets=self.log.producers.kept_base_offsets())  # fmt: skip

    @rule(pause=st.sampled_from([0, GRACE_US]), after=st.integers(0, 40), power=st.booleans(),
          data=st.data())  # fmt: skip
    def die_while_compacting(self, pause: int, after: int, power: bool, data: Any) -> None:
        self.clock += pause
        self.log.flush()
        self.disk.crash_after = self.disk.operations + after
        try:
            for _ in steps(self.disk, self.log, now_us=self.clock, keys_max=self.keys_max,
                           kept_base_offsets=self.log.producers.kept_base_offsets()):  # fmt: skip
                pass
        except Killed:
            if power:
                self.disk = self.disk.power_failed(lambda n: data.draw(st.integers(0, n - 1)))
            else:
                self.disk = self.disk.killed()
            self._reopen()
        self.disk.crash_after = None

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        """As an unclean election may. What superseded a record may go, and it does not come back:
        from here on, what is left counts."""
        start = self.log.log_start_offset
        before = records(self.log)
        end = self.log.truncate(start + round((self.log.log_end_offset - start) * part))
        self.appended = [record for record in before if record[0] < end]
        assert records(self.log) == self.appended
        left = {batch.header.base_offset for batch in read_all(self.log)}
        self.headers = {base: header for base, header in self.headers.items() if base in left}
        self.reader = None

    @rule(bytes_max=st.sampled_from([1, 300]))
    def begin_reading(self, bytes_max: int) -> None:
        """Somebody begins to read from the start, and reads a little."""
        found, self.reader = self.log.read(0, bytes_max, self.log.log_end_offset), None
        if found is not None:
            seen = [row for batch in iterate(self.log.pread(found)) for row in rows(batch)]
            self.reader = (self.clock, found.next_offset, seen)

    @rule()
    def read_on(self) -> None:
        """Within the grace time, it ends with what it would have had without compaction."""
        if self.reader is not None and self.clock - self.reader[0] < GRACE_US:
            _, offset, seen = self.reader
            assert table(seen + records(self.log, offset)) == table(self.appended)

    @rule()
    def restart(self) -> None:
        self.log.close(clean=True)
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=True)

    @rule()
    def kill(self) -> None:
        self.disk = self.disk.killed()
        self._reopen()

    def _reopen(self) -> None:
        self.log = CommitLog.open(self.disk, "/17", self.config, clean=False)

    @invariant()
    def a_reader_ends_with_the_last_value_of_each_key(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.offline_reason == ""
        found = records(self.log)
        assert table(found) == table(self.appended)
        appended = {record[0]: record for record in self.appended}
        assert all(appended[record[0]] == record for record in found), "nothing ever changes"
        left = {record[0] for record in found}
        assert all(r[0] in left for r in self.appended if r[1] is None), "keyless records stay"
        last = {record[1]: record[0] for record in self.appended if record[1] is not None}
        values = {record[0] for record in self.appended if record[2] is not None}
        assert all(at in left for at in last.values() if at in values), "last values stay"

    @invariant()
    def batches_keep_what_identifies_them(self) -> None:
        if not hasattr(self, "log"):
            return
        first_of_epochs: dict[int, int] = {}
        for base, header in sorted(self.headers.items()):
            first_of_epochs.setdefault(header[0], base)
        found = {batch.header.base_offset: batch for batch in read_all(self.log)}
        for base, batch in found.items():
            batch.check_columns()
            h = batch.header
            assert self.headers[base] == (
                h.leader_epoch, h.append_timestamp, h.last_offset_delta, h.producer_id,
                h.producer_sequence,
            )  # fmt: skip
        assert set(first_of_epochs.values()) <= set(found), "epochs begin where they began"
        produced = [base for base, header in sorted(self.headers.items()) if header[3] == 7]
        assert set(produced[-5:]) <= set(found), "a producer's last five batches stay"
        for offset in range(self.log.log_end_offset):
            slice_ = self.log.read(offset, 1, self.log.log_end_offset)
            assert slice_ is not None
            assert slice_.next_offset > offset


TestCompacted = Compacted.TestCase
TestCompacted.settings = settings(max_examples=150, stateful_step_count=20)


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), VALUES), max_size=40))
@settings(max_examples=50)
def test_what_is_clean_has_each_key_once(given_rows: list[tuple[bytes, bytes | None]]) -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = CommitLog.open(disk, "/17", LogConfig(segment_bytes=400), clean=False)
    for key, value in given_rows:
        log.append(encode([value], b"s", keys=[key]), leader_epoch=0, timestamp_us=0)
    log.roll()
    log.flush()
    compact(disk, log)
    keys = [key for _, key, _ in records(log)]
    assert len(keys) == len(set(keys)) == len({key for key, _ in given_rows})
    compact(disk, log, now_us=GRACE_US)
    assert {key for _, key, _ in records(log)} == set(table(records(log)))
