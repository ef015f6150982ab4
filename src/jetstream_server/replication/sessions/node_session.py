"""A node's session as its server sees it: whether the lease holds, and callbacks when that changes.

    metadata = RaftMetadataLog(…)
    session = NodeSession(metadata)       # before metadata.start(): it runs on the Raft thread
    await metadata.start(); register …
    session.start()

**safety** Check `lease_holds` before a byte of a publisher is taken in and before one is answered:
it reads the clock, so it is right even just after the process was frozen. `changed` is called
when the loop has time for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import structlog

from jetstream_protocol.errors import UnavailableError
from jetstream_protocol.types import BootUs, NodeId, StreamId
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import BootClock, boot_clock
from jetstream_server.metadata.client.raft_metadata_log import RaftMetadataLog
from jetstream_server.replication.sessions.driver import SessionDriver
from jetstream_server.replication.sessions.lease import SessionSettings
from jetstream_server.replication.sessions.session_messages import LogEnd

LOG_ENDS_SECONDS = 0.5
"""Pause between checks for streams that wait for an election, when the metadata has changed."""

logger = structlog.get_logger("jetstream.replication")


class NodeSession:
    """See the module. A group of one needs no lease: `lease_holds` is always true."""

    def __init__(
        self,
        metadata: RaftMetadataLog,
        settings: SessionSettings | None = None,
        boot_clock: BootClock = boot_clock,
    ) -> None:
        self._changed: Callable[[], None] | None = None
        self._metadata = metadata
        self._boot_clock = boot_clock
        self._driver = SessionDriver(
            metadata, settings or SessionSettings(), boot_clock, self._granted_on_thread
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._held = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._reporting: asyncio.Task[None] | None = None
        self._looked_at = -1  # the metadata revision of the last check of log ends
        metadata.attach(self._driver)

    @property
    def log_ends(self) -> Mapping[NodeId, Mapping[StreamId, LogEnd]]:
        """On the controller: the reports of nodes about their replicas of leaderless streams."""
        return self._driver.controller.log_ends

    def controller_clock(self) -> BootUs | None:
        """The controller's clock, accurate to half a round trip; None before the first grant.

        All nodes share this clock while the controller is the same.
        """
        ahead_us = self._driver.controller_ahead_us
        return None if ahead_us is None else BootUs(self._boot_clock() + ahead_us)

    def lease_holds(self) -> bool:
        if self._driver.leaving:
            return False
        return self._driver.lease.holds(self._boot_clock()) or self._metadata.is_alone

    def give_up(self) -> None:
        """Request no more leases, and hold none from now on."""
        self._driver.leaving = True

    def start(
        self,
        log_ends: Callable[[], tuple[LogEnd, ...]] | None = None,
        *,
        changed: Callable[[], None] | None = None,
    ) -> None:
        """Start the callbacks. log_ends: returns those of this node's replicas of leaderless
        streams (log_ends.py). changed: called on the loop when the lease begins to hold, and when
        it has lapsed."""
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        if log_ends is not None:
            self._reporting = run_in_background(self._report(log_ends), "log end reports")
        self._look()

    def log_ends_changed(self) -> None:
        """Note that a log end has changed although the metadata has not."""
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
        """Stop the callbacks. The session itself ends with the metadata log."""
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
        await end_tasks(self._reporting)

    def _granted_on_thread(self) -> None:
        loop = self._loop
        if loop is not None:
            loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        """Check whether the lease has lapsed or holds again. Checks again when it would lapse."""
        if self._loop is None:
            return
        holds = self.lease_holds()
        if holds != self._held.is_set():
            if holds:
                self._held.set()
                logger.info("session_held")
            else:
                self._held.clear()
                logger.warning("session_lost", leader=self._metadata.leader)
            if self._changed is not None:
                self._changed()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if holds and not self._metadata.is_alone:
            left_us = self._driver.lease.ends_at_us - self._boot_clock()
            self._timer = self._loop.call_later(max(0, left_us) / 1e6 + 0.001, self._look)

    async def _report(self, log_ends: Callable[[], tuple[LogEnd, ...]]) -> None:
        while True:
            if self._looked_at != self._metadata.seen_revision or self._driver.log_ends:
                self._looked_at = self._metadata.seen_revision
                found = log_ends()
                if found != self._driver.log_ends:
                    self._driver.log_ends = found
            await asyncio.sleep(LOG_ENDS_SECONDS)
