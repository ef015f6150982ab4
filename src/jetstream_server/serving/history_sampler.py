"""Takes the samples of a node's history: of the node, of its replicas, and of cursors on the node
that leads them. history.py keeps them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import structlog

from jetstream_server.clocks import WallClock
from jetstream_server.replication.core.counters import Counters
from jetstream_server.replication.replica import Replica
from jetstream_server.serving.grpc.cursor_lags import CursorLag
from jetstream_server.serving.history import EVERY_SECONDS, History

REPLICAS_PER_TURN = 100
"""Less than a millisecond of the event loop."""
CURSORS_EVERY = 4
"""Samples: the lag of a cursor costs a read of its stream's log."""


logger = structlog.get_logger("jetstream.server")


class Replicas(Iterable[Replica], Protocol):
    """The part of ReplicaManager that is needed."""

    gone: Counters


class HistorySampler:
    """disk_free: bytes; None: unknown. cursors: see CursorLags.find."""

    def __init__(
        self,
        history: History,
        replicas: Replicas,
        disk_free: Callable[[], int | None],
        cursors: Callable[[Callable[[str, str], bool]], Awaitable[tuple[list[CursorLag], int]]],
        wall_clock: WallClock,
    ) -> None:
        self.history = history
        self._replicas = replicas
        self._disk_free = disk_free
        self._cursors = cursors
        self._clock = wall_clock
        self._taken = 0

    async def run(self) -> None:
        while True:
            try:
                await self.sample()
            except Exception:  # noqa: BLE001  logged; a gap in the history ends no node
                logger.error("history_sample_failed", trace=traceback.format_exc())
            await asyncio.sleep(EVERY_SECONDS)

    async def sample(self) -> None:
        self.history.begin(self._clock())
        await self._sample_replicas()
        free = self._disk_free()
        if free is not None:
            self.history.put(("node", "disk_free_bytes"), free)
        if self._taken % CURSORS_EVERY == 0:
            await self._sample_cursors()
        self._taken += 1

    async def _sample_replicas(self) -> None:
        history = self.history
        totals = Counters()
        totals.add(self._replicas.gone)
        under_replicated = 0
        for count, replica in enumerate(list(self._replicas), 1):
            stream, log = replica.stream, replica.log
            if replica.leadership is not None:
                under_replicated += len(stream.isr) < len(stream.replicas)
            totals.add(replica.counters)
            history.put_total(("stream", stream.id, "records"), log.log_end_offset)
            history.put_total(("stream", stream.id, "bytes"), replica.counters.bytes_appended)
            history.put(("stream", stream.id, "size_bytes"), log.size_bytes)
            history.put(("stream", stream.id, "isr"), len(stream.isr))
            if count % REPLICAS_PER_TURN == 0:
                await asyncio.sleep(0)
        history.put(("node", "under_replicated"), under_replicated)
        history.put_total(("node", "records"), totals.records_appended)
        history.put_total(("node", "bytes"), totals.bytes_appended)

    async def _sample_cursors(self) -> None:
        """The lag of each cursor; a consumer group has one in each of its streams."""
        found, _ = await self._cursors(lambda name, full_name: True)
        for each in found:
            if each.lag is not None:
                self.history.put(("cursor", each.cursor, each.stream_id, "lag"), each.lag.records)
