"""What is held against the logs of a compacted stream.

1. A record is missing from a log only where a later one of its key is committed, or where it is a
   tombstone whose time is over: since this replica has had it and has had nothing older of its
   key, the grace time has passed.
2. Below its high watermark every log says of each key what all that was committed says: it holds
   its last record; or that one was a tombstone, and the log holds nothing of the key before it.
3. What is left is where it was, as it was, in batches that are what they were.

A leader that has restarted, or begun its log anew, since a record of it was removed does not know
its message id: a repetition is stored anew.

Of a key of which a lossy election has lost a record nothing is required until another is committed:
what that record superseded may be gone. Nor of a key whose records are all in front of the log of
who was elected: a follower that still has them also has what was never committed there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from jetstream_protocol.batch import Batch, EncodedBatch
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.metadata.state.streams import StreamMetadata
from jetstream_server.replication.replica import Replica
from tests.simulation.checker import Checker
from tests.simulation.log_reading import batches_of, folder_of
from tests.simulation.process import Process
from tests.simulation.shadows import Entry
from tests.simulation.world import Violation, World

_NUMBER = re.compile(rb"\r\nNumber: (\d+)\r\n")
SPAN = 40
"""So many publishes are about the same few keys, which then fall silent."""


def key_of(number: int) -> int:
    """A third of all are about keys that never fall silent."""
    if number % 3 == 0:
        return number % 7
    return 100 + 4 * (number // SPAN) + number % 4


def is_tombstone(number: int) -> bool:
    """If it is a message; producers' batches have values only."""
    return number % 5 in (1, 2)


class Record:
    """One record of a node's log. since_us: when it came there. folder: the log's."""

    __slots__ = ("folder", "key", "number", "since_us")

    def __init__(self, number: int, since_us: int, folder: object) -> None:
        self.number = number
        self.key = key_of(number)
        self.since_us = since_us
        self.folder = folder

    def is_same(self, other: Record) -> bool:
        """A log that was removed with its folder may come back in the place of the next one."""
        return self.number == other.number and self.folder is other.folder


class Held:
    """The records of one node's log."""

    def __init__(self) -> None:
        self.records: dict[int, Record] = {}
        self.by_key: dict[int, dict[int, None]] = {}
        """The offsets of each key's."""
        self.removed: dict[int, Record] = {}
        """By compaction, or with the whole log; a power failure may bring them back."""
        self.dropped: dict[int, None] = {}
        """Offsets of those that were removed since the log was opened, or begun anew."""
        self.superseded_at: dict[int, dict[int, int]] = {}
        """By key and offset: when compaction last removed one that a later one superseded."""
        self.checked_to = 0

    def add(self, offset: int, record: Record) -> None:
        self.records[offset] = record
        self.by_key.setdefault(record.key, {})[offset] = None

    def remove(self, offset: int) -> Record:
        record = self.records.pop(offset)
        del self.by_key[record.key][offset]
        return record

    def cut(self, end_offset: int) -> None:
        for offset in [at for at in self.records if at >= end_offset]:
            self.remove(offset)
        self.removed = {at: record for at, record in self.removed.items() if at < end_offset}
        self.dropped = {at: None for at in self.dropped if at < end_offset}
        self.checked_to = min(self.checked_to, end_offset)

    def emptied(self) -> Held:
        """What is left of it: nothing, but a power failure may bring all of it back."""
        held = Held()
        held.removed, held.superseded_at = self.removed | self.records, self.superseded_at
        return held

    def within(self, start_offset: int, end_offset: int) -> list[int]:
        return [at for at in self.records if start_offset <= at < end_offset]


class CompactingChecker(Checker):
    """Shadows hold every batch as it was appended; those that compaction removed are missing."""

    def __init__(self, world: World, nodes: int, grace_us: int) -> None:
        super().__init__(world, nodes)
        self._grace_us = grace_us
        self._held = [Held() for _ in range(nodes)]
        self._committed_of: dict[int, list[tuple[int, int]]] = {}
        """Offset and number of each key's committed records, in order."""
        self._uncertain: dict[int, None] = {}
        self._tombstones: dict[int, None] = {}
        self._apart: dict[int, None] = {}
        """Nodes that have not been heard to agree with their leader since a lossy election."""

    # What logs hold.

    def reopened(self, node_id: int, log: CommitLog) -> None:
        shadow, before = self._shadows[node_id], self._held[node_id]
        batches = batches_of(log)
        entries = [self._original(node_id, batch) for batch in batches]
        shadow.opened(log)
        is_damaged = shadow.suspect or bool(log.offline_reason)
        if not is_damaged and shadow.entries and shadow.end_offset > log.log_end_offset:
            raise Violation(f"node {node_id} lost what it held although only its process died")
        self._check_start(node_id, log)
        shadow.begin(log, entries)
        for entry in entries:
            shadow.append(entry)
        self._held[node_id] = held = Held()
        held.superseded_at, held.removed = before.superseded_at, before.removed
        self._hold(node_id, log, batches)
        for offset, record in held.records.items():
            for known in (before.records.get(offset), before.removed.get(offset)):
                if known is not None and record.is_same(known):
                    record.since_us = known.since_us
                    break

    def leader_appended(
        self, process: Process, replica: Replica, base_offset: int, batch: EncodedBatch
    ) -> None:
        super().leader_appended(process, replica, base_offset, batch)
        entry = self._shadows[process.node_id].entries[-1]
        folder = folder_of(replica.log)
        for offset, number in self._origin_records(entry):
            self._held[process.node_id].add(offset, Record(number, self._world.now, folder))

    def follow(self, node_id: int, log: CommitLog) -> None:
        self.truncated(node_id, log)
        shadow = self._shadows[node_id]
        if log.log_end_offset > shadow.end_offset:
            batches = batches_of(log, shadow.end_offset)
            for batch in batches:
                shadow.append(self._original(node_id, batch))
            self._hold(node_id, log, batches)

    def truncated(self, node_id: int, log: CommitLog) -> None:
        is_empty = log.log_start_offset == log.log_end_offset
        if is_empty:
            self._held[node_id] = self._held[node_id].emptied()
        elif log.log_end_offset < self._shadows[node_id].end_offset:
            self._held[node_id].cut(log.log_end_offset)
        super().truncated(node_id, log)

    def emptied(self, node_id: int) -> None:
        self._held[node_id] = self._held[node_id].emptied()
        super().emptied(node_id)

    def _hold(self, node_id: int, log: CommitLog, batches: Iterable[Batch]) -> None:
        held, folder = self._held[node_id], folder_of(log)
        for batch in batches:
            for offset, number in zip(batch.offsets(), self._numbers_of(batch), strict=True):
                held.add(offset, Record(number, self._world.now, folder))

    def _original(self, node_id: int, batch: Batch) -> Entry:
        """The batch as its leader appended it; what is left of it is where it was."""
        header = batch.header
        origin = self._origins.get((header.leader_epoch, header.base_offset))
        if origin is None or origin.entry.next_offset != header.next_offset:
            raise Violation(f"node {node_id} holds {header}, which no leader appended")
        if origin.producer != (header.producer_id, header.producer_sequence):
            raise Violation(f"node {node_id} holds {header}; it was of producer {origin.producer}")
        records = zip(
            batch.offsets(), batch.keys(), batch.values(), self._numbers_of(batch), strict=True
        )
        for offset, key, value, number in records:
            is_itself = origin.ids[offset - header.base_offset] == number
            is_null = number in self._tombstones
            if not is_itself or key != b"%d" % key_of(number) or (value is None) != is_null:
                raise Violation(f"node {node_id} holds {number} at {offset}: {key!r}, {value!r}")
        return origin.entry

    def _numbers_of(self, batch: Batch) -> tuple[int, ...]:
        """A tombstone has its number in a header."""
        numbers = []
        for value, block in zip(batch.values(), batch.header_blocks(), strict=True):
            if value is not None:
                numbers.append(int(value))
                continue
            match = _NUMBER.search(block or b"")
            assert match is not None
            numbers.append(int(match[1]))
            self._tombstones[numbers[-1]] = None
        return tuple(numbers)

    def _origin_records(self, entry: Entry) -> Iterable[tuple[int, int]]:
        ids = self._origins[entry.leader_epoch, entry.base_offset].ids
        return enumerate(ids, entry.base_offset)

    # What is committed.

    def _commit(self, node_id: int, high_watermark: int, log_start: int) -> None:
        end = self.committed_end
        super()._commit(node_id, high_watermark, log_start)
        for entry in self._committed_from(end):
            for offset, number in self._origin_records(entry):
                key = key_of(number)
                self._committed_of.setdefault(key, []).append((offset, number))
                self._uncertain.pop(key, None)

    def _is_forgotten(self, node_id: int, offset: int, log_start: int) -> bool:
        held = self._held[node_id]
        is_held = offset in held.records or offset in held.dropped
        return super()._is_forgotten(node_id, offset, log_start) or not is_held

    def _committed_from(self, offset: int) -> list[Entry]:
        found = []
        for entry in reversed(self.committed):
            if entry.base_offset < offset:
                break
            found.append(entry)
        return found[::-1]

    def _forget(self, entry: Entry) -> None:
        super()._forget(entry)
        for _, number in self._origin_records(entry):
            self._committed_of[key_of(number)].pop()
            self._uncertain[key_of(number)] = None

    def _count_again(self, entry: Entry) -> None:
        super()._count_again(entry)
        for offset, number in self._origin_records(entry):
            self._committed_of.setdefault(key_of(number), []).append((offset, number))

    def _settle(self, after: StreamMetadata) -> None:
        super()._settle(after)
        for key, known in self._committed_of.items():
            if known and known[-1][0] < self._begun_at:
                self._uncertain[key] = None

    def _elected_uncleanly(self, after: StreamMetadata) -> None:
        before = self._lost_at_epoch
        super()._elected_uncleanly(after)
        if self._lost_at_epoch != before:
            self._apart = dict.fromkeys(
                node for node in range(len(self._held)) if node != after.leader
            )

    def _agree(self, node_id: int, high_watermark: int) -> None:
        if high_watermark > self.committed_end:
            raise Violation(f"node {node_id} takes {high_watermark} for committed; it is not")
        if high_watermark <= self._begun_at:
            return
        held = self._shadows[node_id].ends.get(high_watermark)
        known = self._committed_before(high_watermark)
        if held is not None and held != known:
            raise Violation(f"node {node_id} holds {held} where {known} is committed")

    def _is_shown(self, known: Entry, shown: Entry) -> bool:
        """Compaction leaves a batch's place."""
        return known[:3] == shown[:3]

    def _is_gap(self, position: int, shown: Entry) -> bool:
        return shown.next_offset <= position

    # What is left.

    def high_watermark_rose(self, process: Process, replica: Replica) -> None:
        super().high_watermark_rose(process, replica)
        held = self._held[process.node_id]
        if replica.stream.leader_epoch < self._lost_at_epoch:
            return
        self._apart.pop(process.node_id, None)
        for entry in self._committed_from(held.checked_to):
            if entry.next_offset <= replica.high_watermark:
                for _, number in self._origin_records(entry):
                    self._check_key(process.node_id, replica, key_of(number))
        held.checked_to = replica.high_watermark

    def swapped(self, node_id: int, replica: Replica, base_offset: int, next_offset: int) -> None:
        """Compaction has put another segment in the place of the one of [base, next)."""
        held, log = self._held[node_id], replica.log
        before = {at: held.remove(at) for at in held.within(base_offset, next_offset)}
        batches = batches_of(log, max(base_offset, log.log_start_offset), next_offset)
        for batch in batches:
            self._original(node_id, batch)
        self._hold(node_id, log, batches)
        for offset, record in before.items():
            if offset in held.records:
                held.records[offset].since_us = record.since_us
                continue
            held.removed[offset] = record
            held.dropped[offset] = None
            if offset >= log.log_start_offset and node_id not in self._apart:
                self._check_removal(node_id, replica, offset, record)
        if node_id in self._apart:
            return
        for key in dict.fromkeys(record.key for record in before.values()):
            self._check_key(node_id, replica, key)

    def _check_removal(self, node_id: int, replica: Replica, offset: int, record: Record) -> None:
        held, key, now = self._held[node_id], record.key, self._world.now
        known = self._committed_of.get(key, [])
        later = [at for at, _ in known if offset < at < replica.high_watermark]
        # Never committed, and in front of where the winner of an election begins: given up.
        was_given_up = not known and offset < self._begun_at
        if later or was_given_up or key in self._uncertain:
            held.superseded_at.setdefault(key, {})[offset] = now
            return
        if record.number not in self._tombstones:
            raise Violation(f"node {node_id} has removed the last record of key {key}, at {offset}")
        self._world.count("tombstone removed")
        superseded_at = held.superseded_at.get(key, {})
        deleted = (at_us for at, at_us in superseded_at.items() if at < offset)
        since = max([record.since_us, *deleted])
        if now - since < self._grace_us:
            raise Violation(
                f"node {node_id} has removed the tombstone of key {key} at {offset} {now - since} "
                f"µs after it, or what it deleted, could be read; grace is {self._grace_us}"
            )

    def _check_key(self, node_id: int, replica: Replica, key: int) -> None:
        """Whether a reader of this log ends with what is true of the key."""
        log, known = replica.log, self._committed_of.get(key)
        if not known or key in self._uncertain:
            return
        offset, number = known[-1]
        offsets = self._held[node_id].by_key.get(key, {})
        if not log.log_start_offset <= offset < replica.high_watermark or offset in offsets:
            return
        if number not in self._tombstones:
            raise Violation(f"node {node_id} lacks the last record of key {key}, at {offset}")
        older = [at for at in offsets if log.log_start_offset <= at < offset]
        if older:
            raise Violation(
                f"node {node_id} holds records of key {key} at {older} and lacks the tombstone at "
                f"{offset}, which deletes them"
            )

    def check_at_rest(self, node_id: int, replica: Replica) -> None:
        """Every key, and that what is in the files is what was noted here."""
        log, held = replica.log, self._held[node_id]
        self._check_start(node_id, log)
        found = {
            offset: number
            for batch in batches_of(log)
            for offset, number in zip(batch.offsets(), self._numbers_of(batch), strict=True)
        }
        start = log.log_start_offset
        noted = {at: record.number for at, record in held.records.items() if at >= start}
        if noted != {at: number for at, number in found.items() if at >= start}:
            raise Violation(f"node {node_id} holds {found}, not {noted}")
        for key in self._committed_of:
            self._check_key(node_id, replica, key)
