"""What a table knows by reading its stream from the start on, and whether it missed a deletion.
Pure.

Compaction removes a tombstone once readers have had the grace time to see it. Whoever reads on from
before it, later, would keep the deleted key for ever. So each answer says below which offset
tombstones may be gone from that leader's log. If one may be that was not read, the stream is read
from the start again.

What a leader removes within the grace time after a build began deletes nothing that the build has
read: compaction had come past it before, and removed the records of its key. Of another leader's
log that is not known, as each is compacted by itself.
"""

from __future__ import annotations

from typing import Any

from jetstream_client.reading.messages import LogView, Messages


class Build:
    """rows: by key. position: up to where records are applied, exclusive. begun: when the first
    records were asked for, by a clock that counts suspended time."""

    def __init__(self, begun: float, whole_from: int = 0) -> None:
        """whole_from: what another build has read already."""
        self.rows: dict[Any, Any] = {}
        self.position = 0
        self.begun = begun
        self._first: LogView | None = None
        self._gone_below = 0
        self._whole_from = whole_from

    @property
    def has_answers(self) -> bool:
        return self._first is not None

    @property
    def is_whole(self) -> bool:
        """Whether it has every key. Before, compaction may have removed a record that it would have
        read for one that it has not read yet."""
        return self.position >= self._whole_from

    def take(self, messages: Messages) -> bool:
        """Take an answer into account, before its records are applied. Returns whether tombstones
        may be gone that it has not read."""
        first, last = messages.log_views[0], messages.log_views[-1]
        was_whole = self.is_whole
        if self._first is None:
            self._first, self._gone_below = first, first.gone_below
            self._need(messages.high_watermark)
        elif not was_whole and last.leader_epoch != self._first.leader_epoch:
            self._need(messages.high_watermark)
        elif not was_whole:
            self._need(messages.compacted_below)
        return last.gone_below > max(self.position, self._gone_below)

    def _need(self, offset: int) -> None:
        self._whole_from = max(self._whole_from, offset)

    def is_unharmed(self, messages: Messages, now: float, grace: float) -> bool:
        """Whether nothing is missed all the same. grace: seconds for which the stream's tombstones
        stay."""
        last = messages.log_views[-1]
        is_one_leader = self._first is not None and last.leader_epoch == self._first.leader_epoch
        if not is_one_leader or self.is_whole or now - self.begun >= grace:
            return False
        self._gone_below = last.gone_below
        return True
