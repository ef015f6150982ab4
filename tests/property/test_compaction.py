"""Compaction against a dict: whatever was appended, cut, killed and compacted, in any order, a
reader from the start ends with exactly the last value of each key."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import Phase, given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from jetstream_protocol.batch import decode_header, encode, iterate
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.logfiles.names import PRODUCERS_NAME
from jetstream_server.log.commit_log import CommitLog, LogConfig
from jetstream_server.log.compaction.rules import Rewriter
from jetstream_server.log.producers import Producers
from tests.support.compacting import (
    GRACE_US,
    Record,
    compact,
    records,
    rows,
    steps,
    table,
)
from tests.support.examples import scaled
from tests.support.log_batches import read_all
from tests.support.log_disk import Killed, MemoryDisk

ALL_KEYS = [b"", b"a", b"b", b"c", b"long" * 20, b"long" * 21]
KEYS = st.one_of(st.none(), st.sampled_from(ALL_KEYS))
VALUES = st.one_of(st.none(), st.sampled_from([b"", b"1", b"22", b"x" * 100]))
ROWS = st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=6)
MUTANT_EXAMPLES = 200
"""They die within the first few."""


class Compacted(RuleBasedStateMachine):
    """`appended` is every record ever; `headers` of every batch that was not cut off, as it was
    appended; `live` by producer the sequences and base offsets of its last five."""

    def __init__(self) -> None:
        super().__init__()
        self.disk = MemoryDisk()
        self.disk.make_directory("/17")
        self.appended: list[Record] = []
        self.headers: dict[int, tuple[int, int, int, int, int]] = {}
        self.clock = 0
        self.epoch = 0
        self.live: dict[int, list[tuple[int, int]]] = {}
        self.producers = [7, 8]
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
        compression=st.sampled_from([0, 0, Flags.ZSTD, Flags.LZ4]),
        producer=st.sampled_from([None, 0, 1]),
    )  # fmt: skip
    def append(
        self,
        batches: list[Any],
        keyed: bool,
        columns: int,
        compression: int,
        producer: int | None,
    ) -> None:
        for entries in batches:
            count = len(entries)
            keys = [key if keyed else None for key, _ in entries]
            values = [value for _, value in entries]
            self.clock += 1
            number = self._next_of(producer)
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
            if producer is not None:
                self.live[number[0]] = [*self.live.get(number[0], []), (number[1], base)][-5:]

    def _next_of(self, producer: int | None) -> tuple[int, int]:
        """Id and sequence of its next batch."""
        if producer is None:
            return -1, -1
        producer_id = self.producers[producer]
        known = self.live.get(producer_id)
        return producer_id, known[-1][0] + 1 if known else 0

    @rule(
        producers=st.lists(st.sampled_from([0, 1]), max_size=8),
        passes=st.integers(1, 6),
        begins_epoch=st.booleans(),
    )
    def overwrite(self, producers: list[int], passes: int, begins_epoch: bool) -> None:
        """Batches of producers, and then every key once more, so that they have nothing left."""
        if begins_epoch:
            self.begin_epoch()
        for producer in producers:
            self.append([[(b"a", b"old")]], True, 0, 0, producer)
        for key in ALL_KEYS:
            self.append([[(key, b"new")]], True, 0, 0, None)
        self.log.seal()
        for _ in range(passes):
            self.compact(0)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1
        self.log.start_epoch(self.epoch)

    @rule()
    def seal(self) -> None:
        self.log.seal()

    @rule(pause=st.sampled_from([0, 1, GRACE_US]))
    def compact(self, pause: int) -> None:
        self.clock += pause
        self.log.flush()
        compact(self.disk, self.log, wall_us=self.clock, keys_max=self.keys_max,
                kept_base_offsets=self.log.producers.kept_base_offsets())  # fmt: skip

    @rule(pause=st.sampled_from([0, GRACE_US]), after=st.integers(0, 40), power=st.booleans(),
          data=st.data())  # fmt: skip
    def die_while_compacting(self, pause: int, after: int, power: bool, data: Any) -> None:
        self.clock += pause
        self.log.flush()
        self.disk.crash_after = self.disk.operations + after
        try:
            for _ in steps(self.disk, self.log, wall_us=self.clock, keys_max=self.keys_max,
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
        self.headers = {base: header for base, header in self.headers.items() if base < end}
        for producer_id, batches in list(self.live.items()):
            self.live[producer_id] = [batch for batch in batches if batch[1] < end]
            if not self.live[producer_id]:
                # How far it had got is not known here any more: it begins anew, as another.
                del self.live[producer_id]
                at = self.producers.index(producer_id)
                self.producers[at] = max(self.producers) + 1
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

    @rule(forgets=st.booleans())
    def kill(self, forgets: bool) -> None:
        """And perhaps lose the file of what publishers may repeat: the batches say the same."""
        self.disk = self.disk.killed()
        if forgets and self.disk.exists(f"/17/{PRODUCERS_NAME}"):
            self.disk.remove(f"/17/{PRODUCERS_NAME}")
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
        found = {batch.header.base_offset: batch for batch in read_all(self.log)}
        for base, batch in found.items():
            batch.check_columns()
            h = batch.header
            assert self.headers[base] == (
                h.leader_epoch, h.append_timestamp, h.last_offset_delta, h.producer_id,
                h.producer_sequence,
            )  # fmt: skip
        assert set(self._first_of_epochs().values()) <= set(found), "epochs begin where they began"
        produced = {base for batches in self.live.values() for _, base in batches}
        assert produced <= set(found), "a producer's last five batches stay"
        for offset in range(self.log.log_end_offset):
            slice_ = self.log.read(offset, 1, self.log.log_end_offset)
            assert slice_ is not None
            assert slice_.next_offset > offset

    @invariant()
    def epochs_begin_where_they_began(self) -> None:
        """Also in a log that was opened again, which knows of them from their first batches."""
        if not hasattr(self, "log"):
            return
        end = self.log.log_end_offset
        begun = [entry for entry in self.log.epochs.entries if entry[1] < end]
        assert begun == list(self._first_of_epochs().items())

    def _first_of_epochs(self) -> dict[int, int]:
        firsts: dict[int, int] = {}
        for base, header in sorted(self.headers.items()):
            firsts.setdefault(header[0], base)
        return firsts

    @invariant()
    def what_producers_may_repeat_is_known(self) -> None:
        """Their last five batches, also in a log that was opened again."""
        if not hasattr(self, "log"):
            return
        known = dict(self.log.producers.image()[0])
        for producer_id, batches in self.live.items():
            assert known[producer_id].last_sequence == batches[-1][0]
            remembered = [batch[:2] for batch in known[producer_id].batches]
            assert remembered[-len(batches) :] == batches


TestCompacted = Compacted.TestCase
TestCompacted.settings = settings(max_examples=scaled(100), stateful_step_count=20)

Mutate = Callable[[pytest.MonkeyPatch], None]


def empties_what_producers_may_repeat(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Producers, "kept_base_offsets", lambda self: frozenset())


def keeps_four_batches_of_each_producer(patch: pytest.MonkeyPatch) -> None:
    def but_the_oldest(self: Producers) -> frozenset[int]:
        each = [producer.batches[-4:] for producer in self._producers.values()]
        return frozenset(stored.base_offset for batches in each for stored in batches)

    patch.setattr(Producers, "kept_base_offsets", but_the_oldest)


def keeps_one_producer_only(patch: pytest.MonkeyPatch) -> None:
    def of_the_last(self: Producers) -> frozenset[int]:
        each = [producer.batches for producer in self._producers.values()][-1:]
        return frozenset(stored.base_offset for batches in each for stored in batches)

    patch.setattr(Producers, "kept_base_offsets", of_the_last)


def empties_where_epochs_begin(patch: pytest.MonkeyPatch) -> None:
    rewrite = Rewriter.rewrite

    def as_if_known(self: Rewriter, data: bytes, *, ends_segment: bool) -> bytes:
        self._leader_epoch = decode_header(data).leader_epoch
        return rewrite(self, data, ends_segment=ends_segment)

    patch.setattr(Rewriter, "rewrite", as_if_known)


def empties_where_segments_end(patch: pytest.MonkeyPatch) -> None:
    rewrite = Rewriter.rewrite

    def as_any(self: Rewriter, data: bytes, *, ends_segment: bool) -> bytes:
        return rewrite(self, data, ends_segment=False)

    patch.setattr(Rewriter, "rewrite", as_any)


@pytest.mark.parametrize(
    "mutate",
    [
        empties_what_producers_may_repeat,
        keeps_four_batches_of_each_producer,
        keeps_one_producer_only,
        empties_where_epochs_begin,
        empties_where_segments_end,
    ],
)
def test_a_compaction_without_this_rule_fails(
    mutate: Mutate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what the machine holds against the log, or by a log that cannot be opened any more."""
    mutate(monkeypatch)
    search = settings(
        max_examples=MUTANT_EXAMPLES, stateful_step_count=20, derandomize=True, database=None,
        phases=[Phase.generate], report_multiple_bugs=False,
    )  # fmt: skip
    with pytest.raises((AssertionError, JetstreamError)):
        run_state_machine_as_test(Compacted, settings=search)  # type: ignore[no-untyped-call]


@given(st.lists(st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), VALUES), max_size=40))
@settings(max_examples=scaled(50))
def test_what_is_clean_has_each_key_once(given_rows: list[tuple[bytes, bytes | None]]) -> None:
    disk = MemoryDisk()
    disk.make_directory("/17")
    log = CommitLog.open(disk, "/17", LogConfig(segment_bytes=400), clean=False)
    for key, value in given_rows:
        log.append(encode([value], b"s", keys=[key]), leader_epoch=0, timestamp_us=0)
    log.seal()
    log.flush()
    compact(disk, log)
    keys = [key for _, key, _ in records(log)]
    assert len(keys) == len(set(keys)) == len({key for key, _ in given_rows})
    compact(disk, log, wall_us=GRACE_US)
    assert {key for _, key, _ in records(log)} == set(table(records(log)))
