"""The batch that a leader has just appended, while its followers are notified of it.

A follower that lacks nothing else is sent it from memory, in a frame that is made once for all of
them. Everybody else reads it from the segment file, as ever. Nothing is kept: see Replica.append.
"""

from __future__ import annotations

from jetstream_protocol import frames
from jetstream_protocol.batch import EncodedBatch
from jetstream_protocol.frames import Kind
from jetstream_server.replication.core.fixed_layout import encode_answer
from jetstream_server.replication.core.leader import LeaderState
from jetstream_server.replication.core.messages import FetchRequest, LeaderSnapshot

NEWEST_BYTES_MAX = 32 * 1024
"""A longer batch is sent from its file, without a copy."""


class Newest:
    """One batch. base_offset: its first."""

    __slots__ = ("_batch", "_frame", "_last_epoch", "_snapshot", "base_offset")

    def __init__(self, base_offset: int, batch: EncodedBatch) -> None:
        self.base_offset = base_offset
        self._batch = batch
        self._last_epoch: int | None = None
        self._frame = b""
        self._snapshot: LeaderSnapshot | None = None

    def answer(
        self, leadership: LeaderState, request: FetchRequest
    ) -> tuple[LeaderSnapshot, bytes] | None:
        """The leader's state, and the frame with the batch for a follower at `base_offset`; None:
        its log differs, or the batch has to be read from its file. Raises the errors of
        `LeaderState.check`."""
        batch = self._batch
        if not batch.is_as_stored or batch.length > NEWEST_BYTES_MAX:
            return None
        leadership.check(request)
        if leadership.compare(request) is not None:
            return None
        snapshot = self._snapshot
        if snapshot is None or request.last_epoch != self._last_epoch:
            snapshot = self._snapshot = leadership.snapshot
            self._last_epoch = request.last_epoch
            head = encode_answer(request, snapshot, batch.length)
            prefix = frames.encode(Kind.FIXED_RECORDS, 0, head, batch.length)
            self._frame = b"".join((prefix, batch.header, batch.body))
        return snapshot, self._frame
