"""Spans from the append of a message to its commit, for messages whose trace is recorded.

Used only if tracing is on (docs/operations/tracing.md). The object that makes and sends spans is
passed in (node/tracing.py): nothing here depends on OpenTelemetry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from jetstream_protocol.traces import TraceParent, sampled_in

PER_APPEND_MAX = 100
"""Upper bound on the spans of one append."""
WAITING_MAX = 1000
"""Upper bound on the spans of one stream that wait for a commit."""

EndSpan = Callable[[str], None]
"""Ends a span. Its argument: why nothing was committed; "" if it was."""


class SpanSource(Protocol):
    def begin(
        self, parent: TraceParent, stream: str, offset: int, leader_epoch: int
    ) -> EndSpan | None:
        """Begin the span of one message; None: this second has had enough spans."""


class CommitSpans:
    """The spans of one leadership. Commits go from the lowest offset on."""

    __slots__ = ("_leader_epoch", "_source", "_stream", "_waiting")

    def __init__(self, source: SpanSource, stream: str, leader_epoch: int) -> None:
        self._source = source
        self._stream = stream
        self._leader_epoch = leader_epoch
        self._waiting: deque[tuple[int, EndSpan]] = deque()

    def appended(self, header_blocks: Sequence[bytes], base_offset: int) -> None:
        """Begin spans for messages that were appended from `base_offset` on."""
        room = min(PER_APPEND_MAX, WAITING_MAX - len(self._waiting))
        if room <= 0:
            return
        for position, parent in sampled_in(header_blocks, room):
            offset = base_offset + position
            end = self._source.begin(parent, self._stream, offset, self._leader_epoch)
            if end is None:
                return
            self._waiting.append((offset, end))

    def committed(self, high_watermark: int) -> None:
        while self._waiting and self._waiting[0][0] < high_watermark:
            self._waiting.popleft()[1]("")

    def dropped(self) -> None:
        """End all spans, because the leadership has ended: another leader may commit the
        messages."""
        while self._waiting:
            self._waiting.popleft()[1]("the leadership ended before the commit")
