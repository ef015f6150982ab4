"""Has the events about cursors put into the stream of activity, on the node that leads `__cursors`.

    committed event in `__cursors` ─> NoteCursors (metadata) ─> the event's record is deleted

**safety** An event's record is deleted only once the metadata has the event. A new leader finds the
records in its log and goes on; the metadata takes no event twice (metadata/state/activity.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import structlog

from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.types import LeaderEpoch
from jetstream_server.background import run_in_background
from jetstream_server.cursors.events import Event
from jetstream_server.cursors.table import CursorTable, Outcome, Write
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.metadata.state.activity import NOTED_MAX
from jetstream_server.metadata.state.commands import NoteCursors
from jetstream_server.metadata.state.outbox import EVENTS_MAX, Outbox

NOTED_BYTES = 128 * 1024
"""Approximate bytes of the events of one command, far from the greatest length of a command."""
OUTBOX_MAX = EVENTS_MAX // 10
"""With so many events in the outbox, those about cursors wait in `__cursors`. So at most OUTBOX_MAX
- 1 + NOTED_MAX of them lie there when `__activity` takes no more, and the rest is for others."""
RETRY_SECONDS = 0.5

logger = structlog.get_logger("jetstream.cursors")


class EventTeller:
    """Part of one leadership of `__cursors`. `start` it once the table is loaded, and `end` it."""

    def __init__(
        self,
        table: CursorTable,
        write: Callable[[Sequence[Write]], Awaitable[list[Outcome]]],
        metadata: RaftMetadataLog,
    ) -> None:
        self._table = table
        self._write = write
        self._metadata = metadata
        self._more = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._telling = run_in_background(self._tell(), "telling of cursors")

    def look(self) -> None:
        """Look for events: something was committed."""
        if self._table.events(1, 0):
            self._more.set()

    def end(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None

    async def _tell(self) -> None:
        reason = ""
        self.look()
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                while events := self._table.events(NOTED_MAX, NOTED_BYTES):
                    await self._note(events)
                reason = ""
            except JetstreamError as error:
                if error.message != reason:
                    reason = error.message
                    logger.warning("cursor_events_not_noted", reason=reason)
                await asyncio.sleep(RETRY_SECONDS)
                self.look()

    async def _note(self, events: Sequence[Event]) -> None:
        """Delete the events that the metadata has. If it has none, have all of them put there
        first. Raises the errors of proposing and of writing: what was done may be done again."""
        outbox = self._metadata.registry.activity
        noted = [event for event in events if is_noted(event, outbox)]
        if not noted:
            if len(outbox.events) >= OUTBOX_MAX:
                await asyncio.sleep(RETRY_SECONDS)
                return
            await self._metadata.propose(
                NoteCursors(
                    leader_epoch=LeaderEpoch(events[0].leader_epoch),
                    offsets=tuple(event.offset for event in events),
                    events=tuple(event.text for event in events),
                )
            )
            noted = list(events)
        await self._write([Write(event.key, None) for event in noted])


def is_noted(event: Event, outbox: Outbox) -> bool:
    """Whether the metadata has the event. It may have it and this node not know yet."""
    return (event.leader_epoch, event.offset) <= outbox.cursors_noted
