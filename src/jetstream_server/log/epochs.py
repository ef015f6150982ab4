"""Where each leader epoch of a log begins.

Entries (leader epoch, start offset), strictly growing in both. A leader adds its entry at the log
end before it appends anything or answers a fetch. A follower adds the epochs of the batches that it
appends. An entry becomes durable with the epoch's first batch; recovery reads it from there. An
epoch without a batch needs no entry. (What it is worth in an unclean election is noted elsewhere:
`CommitLog.note_epoch`.)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

UNDEFINED = -1


class EpochEnd(NamedTuple):
    """The epoch that was found, and its exclusive end. Both are -1 when it is not known."""

    leader_epoch: int
    end_offset: int


class LeaderEpochCache:
    """Leader epochs and their start offsets, sorted, in memory. The checkpoint keeps a copy."""

    __slots__ = ("_entries", "latest_epoch")

    def __init__(self, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._entries: list[tuple[int, int]] = list(entries)
        self.latest_epoch = UNDEFINED
        """The newest epoch; -1 when the log has none."""
        self._changed()

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """(leader epoch, start offset), oldest first."""
        return tuple(self._entries)

    def _changed(self) -> None:
        self.latest_epoch = self._entries[-1][0] if self._entries else UNDEFINED

    def assign(self, leader_epoch: int, start_offset: int) -> None:
        """Begin `leader_epoch` at `start_offset`. Drops entries that are not smaller in both."""
        if leader_epoch == self.latest_epoch and start_offset >= self._entries[-1][1]:
            return
        entries = self._entries
        while entries and (entries[-1][0] >= leader_epoch or entries[-1][1] >= start_offset):
            entries.pop()
        entries.append((leader_epoch, start_offset))
        self._changed()

    def epoch_at(self, offset: int) -> int:
        """The epoch of the record at `offset`; -1 before the first."""
        entries = self._entries
        if entries and entries[-1][1] <= offset:  # Nearly always.
            return entries[-1][0]
        at = bisect_right(entries, offset, key=lambda entry: entry[1])
        return entries[at - 1][0] if at else UNDEFINED

    def begin_at_or_after(self, leader_epoch: int, offset: int) -> bool:
        """Whether all known epochs are newer than `leader_epoch`, and begin at or after
        `offset`."""
        if not self._entries:
            return False
        epoch, start_offset = self._entries[0]
        return epoch > leader_epoch and start_offset >= offset

    def end_offset_for(self, leader_epoch: int, log_end_offset: int) -> EpochEnd:
        """Where the newest epoch that is not above `leader_epoch` ends (references of KIP-279).

        An epoch newer than all known is undefined. One older than all known ends where the
        oldest known begins.
        """
        entries = self._entries
        if entries and leader_epoch == entries[-1][0]:
            return EpochEnd(leader_epoch, log_end_offset)
        above = bisect_right(entries, leader_epoch, key=lambda entry: entry[0])
        if above == len(entries):
            return EpochEnd(UNDEFINED, UNDEFINED)
        end = entries[above][1]
        return EpochEnd(entries[above - 1][0] if above else leader_epoch, end)

    def end_of(self, leader_epoch: int, log_end_offset: int) -> int:
        """The end of the records of `leader_epoch` and older epochs."""
        above = bisect_right(self._entries, leader_epoch, key=lambda entry: entry[0])
        return self._entries[above][1] if above < len(self._entries) else log_end_offset

    def truncate_from_end(self, log_end_offset: int) -> None:
        """Forget epochs that begin at or after the new log end."""
        while self._entries and self._entries[-1][1] >= log_end_offset:
            self._entries.pop()
        self._changed()

    def truncate_from_start(self, log_start_offset: int) -> None:
        """Forget epochs that end before the new log start. The epoch of the record right before the
        start stays, so that a log that ends there can be compared with this one."""
        above = bisect_right(self._entries, log_start_offset - 1, key=lambda entry: entry[1])
        if above:
            del self._entries[: above - 1]  # The newest one stays.
