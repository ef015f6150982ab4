"""A log of a few records, as the cores see one: no files, nothing but what agreement is about.

The real log is the simulation's part (docs/simulation.md). Epochs are the shipped cache, under the
shipped rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from jetstream_protocol.errors import DivergedError
from jetstream_protocol.logfiles.recorded import LedEpoch
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.epochs import LeaderEpochCache


class Entry(NamedTuple):
    """One record, a batch of its own."""

    leader_epoch: int
    number: int


class Slice(NamedTuple):
    """What `read` found; it carries its records itself."""

    entries: tuple[Entry, ...]


class Record(NamedTuple):
    """What a leader is given to append."""

    number: int
    record_count: int = 1
    length: int = 1


class ModelLog:
    """Offsets begin at 0; the log's start never moves."""

    __slots__ = ("entries", "epochs", "flushed_offset")

    log_start_offset = 0
    offline_reason = ""
    is_damaged = False
    health = SimpleNamespace(has_failed=False)
    lost_range = None
    lacks_beginning = is_lost = is_start_unknown = False
    tombstones_gone_below = copied_under = committed_below = 0
    producers = SimpleNamespace(window_us=0)
    compaction = SimpleNamespace(
        tombstones_gone_below=0,
        note_copied_under=lambda offset: None,
        not_appended=lambda offset: None,
    )

    def __init__(self, entries: Sequence[Entry] = (), flushed_offset: int = 0) -> None:
        self.entries = tuple(entries)
        self.flushed_offset = flushed_offset
        self.epochs = LeaderEpochCache()
        for offset, entry in enumerate(self.entries):
            self.epochs.assign(entry.leader_epoch, offset)

    @property
    def led_epoch(self) -> LedEpoch:
        """A leadership is noted as soon as it begins. A crash forgets it here."""
        return LedEpoch(self.epochs.latest_epoch, 0)

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    def start_epoch(self, leader_epoch: int) -> None:
        CommitLog.start_epoch(cast(CommitLog, self), leader_epoch)

    def append(self, record: Record, *, leader_epoch: int, timestamp_us: int, now_us: int) -> int:
        self.start_epoch(leader_epoch)
        self.entries = (*self.entries, Entry(leader_epoch, record.number))
        return len(self.entries) - 1

    def append_replica(self, data: Any, *, leader_epoch: int, **rest: Any) -> None:
        for entry in data:
            if not self.epochs.latest_epoch <= entry.leader_epoch <= leader_epoch:
                raise DivergedError("an epoch that was not asked for", -1, -1)
            self.epochs.assign(entry.leader_epoch, len(self.entries))
            self.entries = (*self.entries, entry)

    def note_end(self) -> None:
        """What is there is there."""

    def read(self, offset: int, bytes_max: int, limit_offset: int) -> Slice | None:
        """One record at a time: so every partial catch-up is a state of its own."""
        found = self.entries[offset : min(offset + 1, limit_offset)]
        return Slice(found) if found else None

    def truncate(self, offset: int) -> int:
        self.entries = self.entries[:offset]
        self.epochs.truncate_from_end(offset)
        self.flushed_offset = min(self.flushed_offset, offset)
        return offset

    def reset(self, offset: int) -> None:
        assert offset == 0
        self.truncate(0)
        self.epochs = LeaderEpochCache()

    def flush(self) -> None:
        self.flushed_offset = len(self.entries)
