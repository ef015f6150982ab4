"""Compaction of a log in the test's own thread: what the server spreads over processes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from jetstream_protocol.batch import Batch
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.compaction.rewrite_pass import Done, Mapped, Rewritten, Task, run
from jetstream_server.log.compaction.state import CompactionState
from jetstream_server.log.disk import Disk
from tests.support.log_batches import read_all

_TOKENS = count()
GRACE_US = 1_000


def compact(
    disk: Disk,
    log: CommitLog,
    *,
    wall_us: int = 0,
    grace_us: int = GRACE_US,
    keys_max: int | None = None,
    kept_base_offsets: frozenset[int] = frozenset(),
    removable_below: int | None = None,
) -> Done | None:
    """One pass over everything sealed and flushed; None: there is nothing. removable_below: of
    tombstones; None: those that have had their grace time."""
    found = list(
        steps(
            disk, log, wall_us=wall_us, grace_us=grace_us, keys_max=keys_max,
            kept_base_offsets=kept_base_offsets, removable_below=removable_below,
        )
    )  # fmt: skip
    return found[-1] if found else None


def steps(
    disk: Disk,
    log: CommitLog,
    *,
    wall_us: int = 0,
    grace_us: int = GRACE_US,
    keys_max: int | None = None,
    kept_base_offsets: frozenset[int] = frozenset(),
    removable_below: int | None = None,
) -> Iterator[Done | None]:
    """The same, stopping after each step."""
    sources = log.compaction.sources(log.flushed_offset)
    if not sources:
        return
    if removable_below is None:
        removable_below = log.compaction.state.tombstones_below(wall_us, grace_us)
    task = log.compaction.plan(
        sources,
        token=str(next(_TOKENS)),
        tombstones_below=removable_below,
        kept_base_offsets=kept_base_offsets,
    )
    if keys_max is not None:
        task = replace(task, keys_max=keys_max)
    task = Task.from_dict(task.to_dict())
    log.compaction.begin(task)
    end = 0
    for step in run(disk, task, lambda length: None, log.encryption):
        match step:
            case Mapped(end_offset):
                end = end_offset
            case Rewritten():
                assert log.compaction.swap(task, step)
            case Done():
                log.compaction.finish(
                    task, finished(log.compaction.state, task, step, end, wall_us, grace_us)
                )
                yield step
                return
        yield None


def finished(
    state: CompactionState, task: Task, done: Done, end_offset: int, wall_us: int, grace_us: int
) -> CompactionState:
    return replace(
        state.after_pass(end_offset, wall_us, grace_us, swept_below=task.tombstones_below),
        tombstones=done.tombstones,
        undecrypted=done.undecrypted,
    )


Record = tuple[int, bytes | None, bytes | None]
"""Offset, key, value."""


def records(log: CommitLog, start: int | None = None) -> list[Record]:
    return [record for batch in read_all(log, start=start) for record in rows(batch)]


def rows(batch: Batch) -> list[Record]:
    return list(zip(batch.offsets(), batch.keys(), batch.values(), strict=True))


def table(found: list[Record]) -> dict[bytes, bytes]:
    """What a reader ends with: the last value of each key that was not deleted."""
    values: dict[bytes, bytes] = {}
    for _, key, value in found:
        if key is not None and value is None:
            values.pop(key, None)
        elif key is not None and value is not None:
            values[key] = value
    return values
