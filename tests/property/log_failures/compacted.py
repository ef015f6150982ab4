"""Passes of compaction over the log, and what they may take out of it.

    Compacting   the driver of a pass: a step at a time, as replication/drivers/compaction.py does
    Rows         what was appended, and which of it is gone

What is promised:

* Whatever is left of a batch has its offsets, epoch, timestamp, keys and values.
* The last record of each key stays, and so does every record that no pass has covered. What was
  seen to be removed rightly may be gone for good, or back after a power failure.
* A tombstone is removed only after its grace time, and with everything older of its key.
* After each recovery the log knows where gaps may lie and tombstones may be missing, and no two
  records of what it takes for clean have the same key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from typing import Any

from jetstream_protocol.batch import Batch
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import JetstreamError, StorageError
from jetstream_protocol.types import WallUs
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.compaction.rewrite_pass import Done, Rewritten, Source, Task
from jetstream_server.log.compaction.worker import messages
from jetstream_server.log.disk import Disk
from tests.support.compacting import finished

GRACE_US = 6
"""Each append takes a microsecond."""
KEYS = (b"a", b"b", b"c", None)
Row = tuple[bytes | None, bytes | None]
"""Key and value."""
Stored = tuple[int, int, bytes]
"""Base offset, next offset and mark of a batch."""


class BrokenPromiseError(AssertionError):
    """The log has not kept one of its promises."""


def mark_of(found: Batch) -> bytes:
    """What no other batch has: it is appended a microsecond after the one before."""
    return b"%06d" % found.header.append_timestamp


@dataclass(frozen=True)
class Content:
    """What a log holds, with what compaction has removed. `batches` may begin before `start`."""

    start: int = 0
    end: int = 0
    batches: tuple[Stored, ...] = ()

    @property
    def seen(self) -> Content:
        """Without the batches that are hidden below the start."""
        return replace(self, batches=tuple(b for b in self.batches if b[1] > self.start))

    def cut(self, offset: int) -> Content:
        """Without the batches that reach beyond `offset`."""
        if offset >= self.end:
            return self
        kept = tuple(each for each in self.batches if each[1] <= offset)
        gone = self.batches[len(kept) :]
        # Nothing could follow after a gap.
        end = kept[-1][1] if kept and gone else gone[0][0] if gone else offset
        return Content(min(self.start, end), end, kept)

    def begins_with(self, found: Content) -> bool:
        """Whether `found` is this, perhaps without its end and with another start."""
        ends = {self.start, self.end, *(end for each in self.batches for end in each[:2])}
        there = [each for each in self.batches if each[1] > found.start]
        return found.end in ends and list(found.batches) == there[: len(found.batches)]

    def holds(self, found: Content) -> bool:
        """Whether `found` is a part of this."""
        at = next((i for i, each in enumerate(self.batches) if each in found.batches), 0)
        return self.batches[at : at + len(found.batches)] == found.batches

    def filled(self, found: Content, below: int) -> Content:
        """`found` with the batches of this that may have been removed from it: those in gaps that
        end at `below` at most."""
        at, batches = found.start, list[Stored]()
        for each in found.batches:
            if at < each[0] <= below:
                batches += [b for b in self.batches if at < b[1] <= each[0]]
            batches.append(each)
            at = each[1]
        return replace(found, batches=tuple(batches))


class Rows:
    """The rows of each batch by its mark. below, tombstones_below: where passes have removed
    records and tombstones, at most. unread: base offsets of batches that cannot be read.
    is_repaired: what was removed may have come back from another replica."""

    def __init__(self) -> None:
        self.appended: dict[bytes, tuple[Row, Row]] = {}
        self.below = self.tombstones_below = 0
        self.unread: set[int] = set()
        self.is_repaired = False
        self._removed: set[tuple[bytes, int]] = set()
        self._superseded: set[tuple[bytes, int]] = set()

    def drawn(self, mark: bytes, dice: Random) -> dict[str, Any]:
        """Keys and values of a new batch."""
        keys = [dice.choice(KEYS), dice.choice(KEYS)]
        values = [mark, bytes(dice.randrange(150))]
        values = [None if dice.random() < 0.25 else value for value in values]
        self.appended[mark] = ((keys[0], values[0]), (keys[1], values[1]))
        return {"values": values, "keys": keys}

    def begun(self, task: Task) -> None:
        self.below = max(self.below, task.sources[-1].next_offset)
        self.tombstones_below = max(self.tombstones_below, task.tombstones_below)

    def copied(self, gap_ends_at: int) -> None:
        """The log is copied from one in which something was removed there."""
        self.below = max(self.below, gap_ends_at)

    def cut_to(self, end: int) -> None:
        """What is after it from now on was not covered by any pass."""
        self.below = min(self.below, end)
        self.tombstones_below = min(self.tombstones_below, end)

    def check(self, content: Content, found: Sequence[Batch]) -> None:
        """found: what is left of `content`."""
        there: dict[int, Row] = {}
        for batch in found:
            base, rows = batch.header.base_offset, self.appended[mark_of(batch)]
            for offset, *row in zip(batch.offsets(), batch.keys(), batch.values(), strict=True):
                check(tuple(row) == rows[offset - base], f"offset {offset} has other bytes")
                there[offset] = rows[offset - base]
        for one, following in pairwise([batch.header for batch in found]):
            is_gap = following.flags & Flags.AFTER_GAP and following.base_offset <= self.below
            is_next = one.next_offset == following.base_offset
            is_unread = following.base_offset - 2 in self.unread
            check(bool(is_next or is_gap or is_unread), "it has a gap")
        if self.below:
            self._check_removed(content, there)

    def _check_removed(self, content: Content, there: dict[int, Row]) -> None:
        rows = [
            (base + index, (mark, index), *self.appended[mark][index])
            for base, _, mark in content.seen.batches
            for index in (0, 1)
        ]
        for offset, row, key, value in rows:
            if offset in there or offset < content.start or offset // 2 * 2 in self.unread:
                continue
            is_dead = value is None and offset < self.tombstones_below
            is_old = any(offset < at < self.below and key == other for at, _, other, _ in rows)
            is_rightly = key is not None and offset < self.below and (is_dead or is_old)
            check(row in self._removed or is_rightly, f"offset {offset} of {key!r} is lost")
            is_superseded = is_old or row in self._superseded
            if value is None and not (self.is_repaired and is_superseded):
                older = [at for at, (other, _) in there.items() if at < offset and other == key]
                check(not older, f"the tombstone {offset} of {older} is removed before them")
            self._removed.add(row)
            if is_old:
                self._superseded.add(row)

    def check_state(self, log: CommitLog, content: Content, found: Sequence[Batch]) -> None:
        """What a recovered log knows of its compaction."""
        state = log.compaction.state
        gaps = [
            following.header.base_offset
            for one, following in pairwise(found)
            if one.header.next_offset < following.header.base_offset
            and following.header.base_offset - 2 not in self.unread
        ]
        check(max(gaps, default=0) <= state.committed_below, f"it does not know of gaps {gaps}")
        known = min(state.committed_below, log.log_end_offset)
        check(known <= self.below, f"it takes what is below {known} for committed")
        there = {offset for batch in found for offset in batch.offsets()}
        for base, _, mark in content.seen.batches:
            if base in self.unread:
                continue
            for index, (key, value) in enumerate(self.appended[mark]):
                is_gone = key is not None and value is None and base + index not in there
                is_known = base + index < max(log.tombstones_gone_below, content.start)
                is_known |= (mark, index) in self._superseded
                check(not is_gone or is_known, f"it takes tombstone {base + index} for there")
        clean = [
            key
            for batch in found
            for offset, key in zip(batch.offsets(), batch.keys(), strict=True)
            if key is not None and log.log_start_offset <= offset < state.cleaned_to
        ]
        check(len(clean) == len(set(clean)), f"below {state.cleaned_to} a key is there twice")


class Compacting:
    """One pass. `step` raises StorageError, and UnavailableError if it is given up."""

    def __init__(
        self, disk: Disk, log: CommitLog, sources: tuple[Source, ...], token: str, wall_us: int
    ) -> None:
        state = log.compaction.state
        self._log = log
        self._wall_us = wall_us
        self._cleaned_to = state.cleaned_to
        self._is_begun = False
        self.has_ended = False
        self.task = log.compaction.plan(
            sources, token=token,
            tombstones_below=state.tombstones_below(WallUs(wall_us), GRACE_US),
            kept_base_offsets=log.producers.kept_base_offsets(),
        )  # fmt: skip
        self._messages: Iterator[dict[str, Any]] = messages(disk, self.task, lambda length: None)

    def step(self) -> None:
        self.has_ended = True  # Unless nothing fails.
        try:
            self.has_ended = self._step()
        except JetstreamError:
            with suppress(StorageError):
                self._log.compaction.discard(self.task)
            raise

    def _step(self) -> bool:
        """Returns whether it was the last one."""
        compaction, task = self._log.compaction, self.task
        if not self._is_begun:
            self._is_begun = True
            compaction.begin(task)
            return False
        message = next(self._messages)
        if "error" in message:
            raise StorageError(message["error"])
        match message.pop("step"):
            case "Mapped":
                self._cleaned_to = message["end_offset"]
            case "Rewritten":
                compaction.swap(task, Rewritten(**message))
            case "Done":
                done, before = Done(**message), compaction.state
                wall_us, end = self._wall_us, self._cleaned_to
                state = finished(before, task, done, end, wall_us, GRACE_US)
                compaction.finish(task, state)
                return True
        return False


def check(is_kept: bool, promise: str) -> None:
    if not is_kept:
        raise BrokenPromiseError(promise)
