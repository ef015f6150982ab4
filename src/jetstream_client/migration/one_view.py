"""Whether what was copied of a compacted stream is what a reader would see at one moment.

Compaction removes a record once a later one of its key is committed. If the later one is after the
end of a copy, and compaction was faster than the copying, the copy has neither. So a copy ends
where no record before its end can have been removed for a later one.

Compaction also removes tombstones, once readers have had the grace time to see them. Whoever copied
a record before that, and goes on later, would bring a deleted key back.

All that compaction did before a leadership began it did for records that were committed then. So a
copy of one leader's log has to know only how far that leader's own compaction has come since; after
a change of the leader it goes on to the end of what is committed.
"""

from __future__ import annotations

import time

from jetstream_client.clients.blocking_client import Client
from jetstream_client.reading.batches import FetchedBatches
from jetstream_client.values.types import StreamDescription
from jetstream_protocol.errors import OffsetOutOfRangeError, PreconditionFailedError


class OneView:
    """Make it before the first record is copied; `end` says whether enough is copied.

    stream: as described before the copy's end was asked for. offset: where the copying begins.
    gone_below: if records before it were copied earlier, the offset below which no tombstone can be
    missing after them; None: there are none.

    Raises PreconditionFailedError, as `end` does, if tombstones may be missing.
    """

    def __init__(
        self, client: Client, stream: StreamDescription, offset: int, gone_below: int | None
    ) -> None:
        self._client = client
        self._stream = stream
        self._leader_epoch = stream.leader_epoch
        self._has_one_leader = True
        self._is_whole = gone_below is None
        self._begun = time.monotonic()
        gone = self._view(offset).tombstones_gone_below
        self.gone_below = gone if gone_below is None else gone_below
        """The offset below which tombstones were gone before anything was copied."""
        self._check_tombstones(gone)

    def end(self, offset: int) -> int:
        """Before which offset the copy must end, if everything before `offset` is copied; `offset`:
        it is complete."""
        seen = self._view(offset)
        below = seen.compacted_below
        if below is None:
            if not self._stream.compact and self._stream.compaction is None:
                return offset
            below = self._cleaned_to()
        if seen.leader_epoch != self._leader_epoch:
            self._leader_epoch, self._has_one_leader = seen.leader_epoch, False
            below = max(below, self._client.offset_at(self._stream, "latest"))
        self._check_tombstones(seen.tombstones_gone_below)
        return max(offset, below)

    def _view(self, offset: int) -> FetchedBatches:
        """What compaction has done to the leader's log by now."""

        def fetched(at: int) -> FetchedBatches:
            return self._client.fetch_batches(self._stream, at, max_bytes=1, encrypted=True)

        try:
            return fetched(offset)
        except OffsetOutOfRangeError as error:
            return fetched(error.high_watermark)  # Every server answers so.

    def _cleaned_to(self) -> int:
        """What a leader of an earlier release says: a pass that has not ended is not in it."""
        compaction = self._client.describe_stream(self._stream).compaction
        return 0 if compaction is None else compaction.cleaned_to

    def _check_tombstones(self, gone_below: int) -> None:
        if gone_below <= self.gone_below:
            return
        grace = self._stream.tombstone_grace
        # What was removed by now had been compacted for the grace time: before a copy so short
        # began, the records that it deleted were gone.
        is_short = time.monotonic() - self._begun < grace
        if self._is_whole and self._has_one_leader and is_short:
            return
        raise PreconditionFailedError(
            f"compaction has removed tombstones of {self._stream.full_name} below offset "
            f"{gone_below} since records before them were copied: what they deleted would come "
            "back; begin another backup in another folder, and back up more often than the "
            f"stream's tombstone_grace ({grace:g} s), or set that longer"
        )
