"""Which records a consumer has returned, and which of them count as done.

A record is done once the next one is asked for: its handling may fail until then. Nothing is noted
per record: of the records of one fetch, all before the last one returned are done.
"""

from __future__ import annotations

from jetstream_client.reading.messages import Messages


class Progress:
    """Follows one consumer, which says where it is (`position`, the next offset to hand out)."""

    __slots__ = ("_asks", "_by_record", "_current", "_end", "_floor")

    def __init__(self) -> None:
        self._floor = 0  # all below is done
        self._end = (0, -1)  # where the last fetch ended, and the leader epoch of its last record
        self._current: Messages | None = None  # what is being handed out
        self._by_record = False
        self._asks = True

    def begin(self, offset: int, last_epoch: int = -1) -> None:
        """At the start, and where it is sent elsewhere."""
        self._floor = offset
        self._end = (offset, last_epoch)
        self._current = None
        self._asks = True

    def asks(self, position: int, *, exhausted: bool = True) -> None:
        """The consumer is asked for more: all that was handed out is done. exhausted: nothing of
        the last fetch is left, so that what it passed over is done, too."""
        current = self._current
        if current is not None and exhausted:
            self._end = (current.next_offset, current.last_epoch)
            self._floor = current.next_offset
            self._current = None
        elif current is not None:
            self._floor = max(self._floor, position)
        self._asks = True

    def gets(self, messages: Messages, *, by_record: bool) -> None:
        """It hands these out: one by one, or all at once."""
        self._current = messages
        self._by_record = by_record
        self._asks = False

    def resumes(self) -> None:
        """It goes on with what it had been handing out."""
        self._asks = False

    def says_done(self, offset: int) -> None:
        """The caller says that all records below are done."""
        self._floor = max(self._floor, offset)

    def done(self, position: int) -> int:
        """The offset below which everything is done."""
        if self._asks or not self._by_record:
            return self._floor
        return max(self._floor, position - 1)

    def epoch_before(self, offset: int) -> int:
        """Leader epoch of the record before `offset`; -1: not known."""
        end, epoch = self._end
        if offset == end:
            return epoch
        current = self._current
        if current is None or offset > current.next_offset:
            return -1
        found = -1
        for chunk in current.chunks:
            if chunk.batch.header.base_offset >= offset:
                break
            found = chunk.batch.header.leader_epoch
        return found
