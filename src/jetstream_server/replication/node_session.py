"""A node's session as its server sees it: does the lease hold, and who is told when that changes.

    metadata = RaftMetadataLog(…)
    session = NodeSession(metadata)       # before metadata.start(): it rides on the Raft thread
    await metadata.start(); register …
    session.start()

**safety** Ask `lease_holds` before a byte of a publisher is taken in and before one is answered:
it reads the clock, so it is right even just after the process was frozen. `on_lost` comes when the
loop gets round to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import NodeId, StreamId
from jetstream_server.background import run_in_background
from jetstream_server.clocks import session_clock_us
from jetstream_server.metadata.raft import RaftMetadataLog
from jetstream_server.replication.lease import SessionSettings
from jetstream_server.replication.session_driver import SessionDriver
from jetstream_server.replication.session_messages import LogEnd

LOG_ENDS_SECONDS = 0.5
"""Between two looks at which streams wait for an election; only when the metadata changed."""

_log = structlog.get_logger("jetstream.replication")


class NodeSession:
    """See the module. A group of one has no use for a lease: it always holds.

    on_lost, on_regained: called on the loop, in turns; on_regained first, with the first lease.
    """

    def __init__(
        self,
        metadata: RaftMetadataLog,
        settings: SessionSettings | None = None,
        clock_us: Callable[[], int] = session_clock_us,
    ) -> None:
        self.on_lost: Callable[[], None] | None = None
        self.on_regained: Callable[[], None] | None = None
        self._metadata = metadata
        self._clock_us = clock_us
        self._driver = SessionDriver(
            metadata, settings or SessionSettings(), clock_us, self._granted_on_thread
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._looked_at = -1  # the revision of the metadata at which log ends were looked up
        metadata.carry(self._driver)

    @property
    def log_ends(self) -> Mapping[NodeId, Mapping[StreamId, LogEnd]]:
        """As controller: what the nodes have reported of their replicas of leaderless streams."""
        return self._driver.controller.log_ends

    def controller_now_us(self) -> int | None:
        """The controller's clock, off by half a round trip; None before the first grant.

        The one clock that all nodes have in common, as long as the controller is the same.
        """
        ahead_us = self._driver.controller_ahead_us
        return None if ahead_us is None else self._clock_us() + ahead_us

    def lease_holds(self) -> bool:
        if self._driver.leaving:
            return False
        return self._metadata.is_alone or self._driver.lease.holds(self._clock_us())

    def give_up(self) -> None:
        """Ask for no lease any more, and hold none from now on."""
        self._driver.leaving = True

    def start(self, log_ends: Callable[[], tuple[LogEnd, ...]] | None = None) -> None:
        """Begin to tell. log_ends: of this node's replicas of leaderless streams (log_ends.py)."""
        self._loop = asyncio.get_running_loop()
        if log_ends is not None:
            self._reporting = run_in_background(self._report(log_ends), "log end reports")
        self._look()

    def log_ends_changed(self) -> None:
        """There is another log end to tell, although the metadata is as it was."""
        self._looked_at = -1

    async def wait_until_held(self, patience: float) -> None:
        """Return once the lease holds. Raises UnavailableError after `patience` seconds."""
        try:
            async with asyncio.timeout(patience):
                await self._held.wait()
        except TimeoutError:
            raise UnavailableError(
                f"the metadata leader has not granted a session in {patience} s"
            ) from None

    async def close(self) -> None:
        """Tell no more. The session itself ends with the metadata log."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        if self._reporting is not None:
            self._reporting.cancel()
            await asyncio.gather(self._reporting, return_exceptions=True)

    def _granted_on_thread(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Notice that the lease has lapsed or holds again; look again when it would lapse."""
        if self._loop is None:
            return
        holds = self.lease_holds()
        if holds != self._held.is_set():
            if holds:
                self._held.set()
                _log.info("session_held")
            else:
                self._held.clear()
                _log.warning("session_lost", leader=self._metadata.leader)
            callback = self.on_regained if holds else self.on_lost
            if callback is not None:
                callback()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if holds and not self._metadata.is_alone:
            left_us = self._driver.lease.ends_at_us - self._clock_us()
            self._timer = self._loop.call_later(max(0, left_us) / 1e6 + 0.001, self._look)

    async def _report(self, log_ends: Callable[[], tuple[LogEnd, ...]]) -> None:
        while True:
            if self._looked_at != self._metadata.seen_revision or self._driver.log_ends:
                self._looked_at = self._metadata.seen_revision
                found = log_ends()
                if found != self._driver.log_ends:
                    self._driver.log_ends = found
            await asyncio.sleep(LOG_ENDS_SECONDS)
