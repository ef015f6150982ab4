"""Keeps the indexes of subjects up to date: reads what they do not know yet, in the background.

One replica at a time, one step in a worker thread at a time: a node that starts reads the logs of
all streams that have such an index. A leader's index notes what is appended by itself; a follower's
is brought up to what is committed in each round.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from jetstream_protocol.errors import JetstreamError, RecordsDamagedError, StorageError
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.clocks import MonotonicClock
from jetstream_server.log.encryption import CannotDecryptError
from jetstream_server.log.subject_index import SubjectIndex
from jetstream_server.replication import subjects
from jetstream_server.replication.listeners import RoleListener
from jetstream_server.replication.replica import Replica

ROUND_SECONDS: Final = 0.25
STEPS_PER_TURN: Final = 64
"""Of one replica in one round, so that a long log does not keep others waiting: 16 MiB."""
FORGET_US: Final = 60_000_000
"""Interval at which subjects without a record are looked for; 0.2 s for a million."""
OTHERS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of the indexes of all streams without `key: subject` together: publishers begin them."""
FULL_US: Final = 600_000_000
"""After this time it is tried again to index a stream that had too many subjects."""

logger = structlog.get_logger("jetstream.replication")


class Indexing(RoleListener):
    """Call `close` at the end. It runs while a replica here has an index."""

    def __init__(self, *, monotonic_clock: MonotonicClock) -> None:
        self._monotonic_clock = monotonic_clock
        self._tracked: dict[Replica, None] = {}
        self._forget_at_us: dict[Replica, int] = {}
        self._full_since_us: dict[Replica, int] = {}
        self._suspected: dict[Replica, int] = {}
        """The last place of each that could not be read."""
        self._others: dict[Replica, int] = {}
        """The memory of the indexes of streams without `key: subject`."""
        self._others_bytes = 0
        self._running: asyncio.Task[None] | None = None

    async def close(self) -> None:
        await end_tasks(self._running)

    def track(self, replica: Replica) -> None:
        """Bring the index of a replica up to date from now on."""
        self._tracked[replica] = None
        if self._running is None or self._running.done():
            self._running = run_in_background(self._run(), "indexes of subjects")

    def role_changed(self, replica: Replica) -> None:
        """An index that only this leadership has needed goes with it."""
        if replica.closed or (replica.leadership is None and not subjects.is_configured(replica)):
            replica.log.subjects = None
            self._tracked.pop(replica, None)
            self._forget_at_us.pop(replica, None)
            self._full_since_us.pop(replica, None)
            self._suspected.pop(replica, None)
            self._others_bytes -= self._others.pop(replica, 0)
        elif replica.log.subjects is not None:
            self.track(replica)

    async def _run(self) -> None:
        while self._tracked:
            for replica in tuple(self._tracked):
                await self._bring_up(replica)
                self._limit_others(replica)
            await asyncio.sleep(ROUND_SECONDS)

    async def _bring_up(self, replica: Replica) -> None:
        """Read what the index does not know yet, or a part of it."""
        for _ in range(STEPS_PER_TURN):
            index = replica.log.subjects
            if index is None or replica.closed or replica.unreadable_reason:
                return
            if index.is_full:
                self._try_again(replica, index)
                return
            if not await self._step(replica, index):
                break
        if self._forget(replica):
            await asyncio.sleep(0)  # Those of many streams are due at once: not in one turn.

    def _limit_others(self, replica: Replica) -> None:
        """Give the largest index up if together they take too much."""
        index = replica.log.subjects
        if index is None or replica not in self._tracked or subjects.is_configured(replica):
            return
        self._note_size(replica, index)
        if self._others_bytes > OTHERS_BYTES_MAX:
            largest = max(self._others, key=self._others.__getitem__)
            if (index := largest.log.subjects) is not None:
                index.give_up()
                self._note_size(largest, index)
                logger.warning("too_many_subjects", stream=largest.stream.full_name)

    def _note_size(self, replica: Replica, index: SubjectIndex) -> None:
        self._others_bytes += index.size_bytes - self._others.get(replica, 0)
        self._others[replica] = index.size_bytes

    async def _step(self, replica: Replica, index: SubjectIndex) -> bool:
        """Read a step. Returns whether there was one."""
        limit = subjects.limit_of(replica)
        index.skip_to(replica.log.log_start_offset)
        if index.reached >= limit:
            return False
        cuts = index.cuts
        try:
            found = await asyncio.to_thread(
                subjects.read_step, replica, index.reached, subjects.STEP_BYTES, limit
            )
        except JetstreamError as error:
            # Tried again in the next round.
            self._suspect(replica, index.reached, error)
            logger.debug("subjects_not_read", stream=replica.stream.full_name, why=error.message)
            return False
        if found is None or not index.take(found, cuts):
            return False
        if index.reached >= limit:
            self._read_rest(replica, index)
        if index.is_full:
            logger.warning("too_many_subjects", stream=replica.stream.full_name)
        return True

    def _suspect(self, replica: Replica, offset: int, error: JetstreamError) -> None:
        """Have damage inspected that is not known, once for each place: known damage is repaired,
        or passed over."""
        is_known = not isinstance(error, StorageError) or isinstance(
            error, RecordsDamagedError | CannotDecryptError
        )
        if not is_known and self._suspected.get(replica) != offset:
            self._suspected[replica] = offset
            replica.suspect(offset, error)

    @staticmethod
    def _read_rest(replica: Replica, index: SubjectIndex) -> None:
        """Read what was appended meanwhile, in this turn of the loop: in a thread the index of a
        busy leader would never reach the log end, from where on appends are noted."""
        index.steps_at_once = 0
        with suppress(JetstreamError):  # The next round says why.
            subjects.catch_up(replica, index)

    def _forget(self, replica: Replica) -> bool:
        """Note what is committed. Returns whether subjects without a record were looked for."""
        index, now_us = replica.log.subjects, self._monotonic_clock()
        if index is None:
            return False
        index.steps_at_once = 0
        index.commit(replica.high_watermark)
        if now_us < self._forget_at_us.setdefault(replica, now_us + FORGET_US):
            return False
        self._forget_at_us[replica] = now_us + FORGET_US
        subjects.forget_gone(replica)
        return True

    def _try_again(self, replica: Replica, index: SubjectIndex) -> None:
        now_us = self._monotonic_clock()
        if now_us >= self._full_since_us.setdefault(replica, now_us) + FULL_US:
            del self._full_since_us[replica]
            index.begin(replica.log.log_start_offset)
