"""The flusher's threads in simulated time: what log/flusher.py does, one flush of a log after the
other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetstream_protocol.errors import StorageError
from jetstream_server.log.commit_log import CommitLog
from jetstream_server.log.flusher import THREADS, OnFlushed

if TYPE_CHECKING:
    from tests.simulation.process import Process


class SimulatedFlusher:
    """One process's."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._queued: dict[CommitLog, dict[OnFlushed, None]] = {}
        self._busy: dict[CommitLog, None] = {}

    def request(self, log: CommitLog, on_flushed: OnFlushed) -> None:
        self._queued.setdefault(log, {})[on_flushed] = None
        self._begin()

    def _begin(self) -> None:
        """The first waiting log that no thread is flushing, if there is a thread for it."""
        log = next((log for log in self._queued if log not in self._busy), None)
        if log is None or len(self._busy) == THREADS:
            return
        self._busy[log] = None
        process = self.process
        world = process.world
        delay = world.between(100, 2_000) + process.cluster.faults.scenario.flush_delay_us(process)
        if world.chance(process.cluster.profile.slow_flushes):
            delay += world.between(0, 1_500_000)
        # Who asks from now on is served by the next flush.
        world.later(delay, process.loop, self._flush, log, self._queued.pop(log))

    def _flush(self, log: CommitLog, callbacks: dict[OnFlushed, None]) -> None:
        """What is appended from now on is not flushed; who asked hears of it a while later."""
        process = self.process
        world, result = process.world, _flushed(log)
        delay = world.between(3, 40) + process.cluster.faults.scenario.flush_told_late_us(process)
        if world.chance(0.1):
            delay += world.between(0, 20_000)
        world.later(delay, process.loop, self._tell, log, result, callbacks)

    def _tell(
        self, log: CommitLog, result: int | StorageError, callbacks: dict[OnFlushed, None]
    ) -> None:
        self.process.loop.enter(_deliver, log, result, callbacks)
        del self._busy[log]
        self._begin()

    def close(self) -> None:
        """What is queued is flushed, as the real one waits for."""
        while self._queued:
            log = next(iter(self._queued))
            _deliver(log, _flushed(log), self._queued.pop(log))


def _flushed(log: CommitLog) -> int | StorageError:
    try:
        return log.flush()
    except StorageError as error:
        return error


def _deliver(log: CommitLog, result: int | StorageError, callbacks: dict[OnFlushed, None]) -> None:
    for on_flushed in callbacks:
        on_flushed(log, result)
