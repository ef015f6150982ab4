"""The same cluster with a compacted stream: every replica compacts its log, step by step, between
all the other faults.

What the checker holds against the logs then: a batch may have lost records, or be gone, but only
for a later committed record of the same key; what is left is where it was, and the last committed
record of each key is on every replica.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jetstream_protocol.errors import (
    CorruptBatchError,
    StorageError,
    StorageFullError,
    UnavailableError,
)
from jetstream_protocol.types import StreamId
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.compaction_pass import Done, Mapped, Rewritten, run
from jetstream_server.replication.replica import Replica
from tests.simulation.checker import Checker, Entry, _batches_of, _entries_of
from tests.simulation.cluster import Cluster
from tests.simulation.world import Violation, World

if TYPE_CHECKING:
    from tests.simulation.process import Process

KEYS = 7
EACH_US = 250_000
GRACE_US = 10**12
"""There are no tombstones here; their rules have a model of their own."""


def key_of(number: int) -> int:
    return number % KEYS


class CompactedCluster(Cluster):
    """Draws as its seed does without compaction, until the first pass."""

    def __init__(self, seed: int, *, tracing: bool = False) -> None:
        super().__init__(seed, tracing=tracing)
        self.checker = CompactingChecker(self.world, self.profile.nodes)
        stream = self.metadata.registry.streams[self.stream_id]
        self.checker.stream_changed(stream, stream)
        self._tokens = 0

    def _create(self) -> StreamId:
        stream_id = super()._create()
        command = {"op": "alter_stream", "stream_id": stream_id, "stream_epoch": 0}
        self.metadata.apply({**command, "config": {"compact": True}})
        return stream_id

    def keys(self, numbers: Sequence[int]) -> list[bytes | None] | None:
        return [b"%d" % key_of(number) for number in numbers]

    def header_blocks(self, ids: list[int]) -> list[bytes] | None:
        return [b"NATS/1.0\r\nJetstream-Key: %d\r\n\r\n" % key_of(number) for number in ids]

    def run(self) -> None:
        self.world.at(500_000, None, self._compact_somewhere)
        super().run()

    def _compact_somewhere(self) -> None:
        world = self.world
        world.later(world.between(10_000, EACH_US), None, self._compact_somewhere)
        machine = self.machines[world.between(0, len(self.machines) - 1)]
        process = machine.process
        if process is None or process.replica is None or process.replica.log.offline_reason:
            return
        world.later(0, process, self._begin, process, process.replica)

    def _begin(self, process: Process, replica: Replica) -> None:
        log = replica.log
        try:
            if self.world.chance(0.5):
                log.roll()
            self._step(process, self._pass(process, replica))
        except StorageFullError:
            pass
        except StorageError as error:
            process.fail(error)

    def _step(self, process: Process, steps: Iterator[None]) -> None:
        """One step, and later the next: a process may die, or its log be cut, between them."""
        try:
            next(steps)
        except (StopIteration, StorageFullError, CorruptBatchError):
            return
        except UnavailableError:
            self.world.count("compaction of a log that was cut")
        except OSError:
            self.world.count("compaction failed")
        except StorageError as error:
            process.fail(error)
        else:
            self.world.later(self.world.between(100, 100_000), process, self._step, process, steps)

    def _pass(self, process: Process, replica: Replica) -> Iterator[None]:
        log, world = replica.log, self.world
        sources = log.compaction.sources(self.bound_of(replica))
        if not sources:
            return
        self._tokens += 1
        task = log.compaction.plan(
            sources, token=f"t{self._tokens}", now_us=world.now, grace_us=GRACE_US,
            kept_base_offsets=log.producers.kept_base_offsets(),
        )  # fmt: skip
        log.compaction.begin(task)
        yield
        end_offset = 0
        for step in run(process.machine.disk, task, lambda length: None):
            match step:
                case Mapped(end_offset):
                    pass
                case Rewritten():
                    world.count("segment compacted" if log.compaction.swap(task, step) else "late")
                case Done():
                    state = log.compaction.state.after_pass(end_offset, world.now, GRACE_US)
                    log.compaction.finish(task, replace(state, tombstones=step.tombstones))
                    world.count("log compacted")
            yield

    def bound_of(self, replica: Replica) -> int:
        """**safety** Only what is committed."""
        return min(replica.high_watermark, replica.log.flushed_offset)


class CompactingChecker(Checker):
    """Shadows hold every batch as it was appended; those that compaction removed are missing."""

    def __init__(self, world: World, nodes: int) -> None:
        super().__init__(world, nodes)
        self._latest: dict[int, int] = {}
        """By key: the highest offset that was ever committed, also if it was lost since."""

    def reopened(self, node_id: int, log: CommitLog) -> None:
        shadow = self._shadows[node_id]
        entries = [self._original(node_id, entry) for entry in _entries_of(log)]
        is_damaged = shadow.suspect or bool(log.offline_reason)
        if not is_damaged and shadow.entries and shadow.end_offset > log.log_end_offset:
            raise Violation(f"node {node_id} lost what it held although only its process died")
        shadow.clear(log.log_start_offset)
        for entry in entries:
            shadow.append(entry)

    def follow(self, node_id: int, log: CommitLog) -> None:
        self.truncated(node_id, log)
        shadow = self._shadows[node_id]
        if log.log_end_offset > shadow.end_offset:
            for entry in _entries_of(log, shadow.end_offset):
                shadow.append(self._original(node_id, entry))

    def _original(self, node_id: int, entry: Entry) -> Entry:
        """The batch as its leader appended it."""
        origin = self._origins.get((entry.leader_epoch, entry.base_offset))
        if origin is None or origin.entry.next_offset != entry.next_offset:
            raise Violation(f"node {node_id} holds {entry}, which no leader appended")
        return origin.entry

    def _commit(self, node_id: int, high_watermark: int) -> None:
        end = self.committed_end
        super()._commit(node_id, high_watermark)
        for entry in reversed(self.committed):
            if entry.base_offset < end:
                break
            ids = self._origins[entry.leader_epoch, entry.base_offset].ids
            for offset, number in enumerate(ids, entry.base_offset):
                key = key_of(number)
                self._latest[key] = max(self._latest.get(key, -1), offset)

    def _agree(self, node_id: int, high_watermark: int) -> None:
        if high_watermark > self.committed_end:
            raise Violation(f"node {node_id} takes {high_watermark} for committed; it is not")
        held = self._shadows[node_id].ends.get(high_watermark)
        known = self._committed_before(high_watermark)
        if held is not None and held != known:
            raise Violation(f"node {node_id} holds {held} where {known} is committed")

    def check_contents(self, log: CommitLog) -> None:
        found: dict[int, int] = {}
        for batch in _batches_of(log):
            for offset, value, key in zip(
                batch.offsets(), batch.values(), batch.keys(), strict=True
            ):
                number = int(value or b"")
                found[number] = offset
                if key != b"%d" % key_of(number) or self._offsets.get(number) != offset:
                    raise Violation(f"publish {number} is at {offset}, with key {key!r}")
        for number, offset in self._offsets.items():
            superseded = self._latest[key_of(number)] > offset
            if offset >= log.log_start_offset and number not in found and not superseded:
                raise Violation(f"publish {number}, the last of its key, is not at {offset}")
