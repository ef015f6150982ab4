"""What the checker knows of batches and of each node's log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jetstream_protocol.batch import BatchHeader, crc32c
from jetstream_server.log.commit_log import CommitLog


class Entry(NamedTuple):
    """One batch of a log."""

    base_offset: int
    next_offset: int
    leader_epoch: int
    body_crc: int


def entry_of(header: BatchHeader, body: bytes) -> Entry:
    """`body` with its padding. The CRC is taken again: nobody's word is believed here."""
    stored = body[: header.body_length]
    return Entry(header.base_offset, header.next_offset, header.leader_epoch, crc32c(stored))


class Origin(NamedTuple):
    """What a batch is, from the leader that made it: the batch before it, and its records."""

    entry: Entry
    before: Entry | None
    ids: tuple[int, ...]
    producer: tuple[int, int]
    """Id and sequence; the id is -1 without one."""
    timestamp: int


class Shadow:
    """What one node's log holds, by the ends of its batches."""

    __slots__ = ("ends", "entries", "is_erased", "is_unread", "marked", "start_offset", "suspect")

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.ends: dict[int, Entry] = {}
        self.start_offset = 0
        self.suspect = False
        """It may have lost something, and has not registered since."""
        self.is_unread = False
        """A start could not open it."""
        self.is_erased = False
        """Its disk was replaced, and it has got nothing since."""
        self.marked: CommitLog | None = None
        """The log, if records of it were marked as damaged when a start read it."""

    def opened(self, log: CommitLog) -> None:
        """A start reads it. Of a log that the start before could not read, the group does not know
        yet what a power failure took; nor what is marked in it."""
        self.marked = log if log.lost_range is not None else None
        self.suspect = self.suspect or self.is_unread or self.is_marked
        self.is_unread = False

    @property
    def is_marked(self) -> bool:
        """Whether its node has known since it started that its disk has lost records of it."""
        if self.marked is not None and self.marked.lost_range is None:
            self.marked = None  # They were repaired, or can be read again.
        return self.marked is not None

    @property
    def end_offset(self) -> int:
        return self.entries[-1].next_offset if self.entries else self.start_offset

    def holds(self, entry: Entry) -> bool:
        """Whether it holds that batch, or begins after it."""
        return self.ends.get(entry.next_offset) == entry or self.start_offset >= entry.next_offset

    def held_of(self, history: list[Entry]) -> list[Entry]:
        """A part of a history up to the last batch of it that it holds. Logs match, so it holds all
        of these, or compaction has removed them."""
        ends = self.ends
        held = (n for n, entry in enumerate(history, 1) if ends.get(entry.next_offset) == entry)
        return history[: max(held, default=0)]

    def append(self, entry: Entry) -> None:
        self.is_erased = False
        self.entries.append(entry)
        self.ends[entry.next_offset] = entry

    def cut(self, end_offset: int) -> None:
        while self.entries and self.entries[-1].next_offset > end_offset:
            del self.ends[self.entries.pop().next_offset]

    def begin(self, log: CommitLog, entries: Sequence[Entry]) -> None:
        """Forget all; what the log holds now are `entries`. If it lacks its beginning, it says that
        it starts earlier."""
        first = entries[0].base_offset if entries else log.log_end_offset
        self.clear(first if log.lacks_beginning else log.log_start_offset)

    def clear(self, start_offset: int) -> None:
        self.entries = []
        self.ends = {}
        self.start_offset = start_offset
