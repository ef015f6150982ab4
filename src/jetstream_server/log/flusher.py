"""Group commit: a few threads sync logs. One fsync of a log serves all requests that wait for it.

While a log's fsync runs, further requests for that log wait together. The next fsync covers all of
them, because it begins after they were appended. One thread at a time flushes a log, and logs take
turns in the order of their first request. There are several threads because file systems commit
many concurrent requests about as fast as one: a thousand logs one after the other would take
seconds. Results reach the loop through `call_soon_threadsafe`; results of one log stay in order.

A flush takes about 200 µs of processor time, whatever it brings. So while MANY_LOGS wait, at most
FLUSHES_PER_SECOND_MAX begin in a second: each then serves more appends, and the rest of the time is
left to taking messages in.

A failure is reported like a success and never retried here: the log is offline by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from jetstream_protocol.errors import InternalError, StorageError, UnavailableError
from jetstream_server.clocks import MonotonicClock, monotonic_clock
from jetstream_server.log.commit_log import CommitLog

OnFlushed = Callable[[CommitLog, int | StorageError], None]
"""Called on the loop with the log and its flushed offset, or with the error."""

CallSoonThreadsafe = Callable[..., object]
"""`loop.call_soon_threadsafe`: takes a function and its arguments."""


THREADS = 4
MANY_LOGS = 64
FLUSHES_PER_SECOND_MAX = 2_000


class Flusher:
    """Owns its threads from construction to `close`."""

    def __init__(
        self,
        call_soon_threadsafe: CallSoonThreadsafe,
        *,
        threads: int = THREADS,
        clock: MonotonicClock = monotonic_clock,
        timed: Callable[[float], object] | None = None,
    ) -> None:
        """timed: called on the flush's thread with the duration of each flush, in seconds."""
        self._clock = clock
        self._timed = timed
        self._call_soon_threadsafe = call_soon_threadsafe
        self._wakeup = threading.Condition()
        # Both dictionaries serve as ordered sets.
        self._queued: dict[CommitLog, dict[OnFlushed, None]] = {}
        self._busy: set[CommitLog] = set()
        self._is_closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name=f"jetstream-flusher-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: CommitLog, on_flushed: OnFlushed) -> None:
        """Flush what `log` holds. A callback queued twice for one flush is called once.

        Raises UnavailableError after `close`. Raises InternalError when a thread has died of a bug:
        the acknowledgement that waits for this flush would never be sent.
        """
        with self._wakeup:
            if self._is_closing.is_set():
                raise UnavailableError("the flusher is closed: the server is stopping")
            if not all(thread.is_alive() for thread in self._threads):
                raise InternalError("a flusher thread has died; its log line says why")
            callbacks = self._queued.get(log)
            if callbacks is None:
                self._queued[log] = {on_flushed: None}
                self._wakeup.notify()
            else:
                callbacks[on_flushed] = None

    def close(self) -> None:
        """Flush what is queued, then end the threads. Blocks until they have ended."""
        with self._wakeup:
            self._is_closing.set()
            self._wakeup.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                log = self._next()
                while log is None:
                    if self._is_closing.is_set() and not self._queued:
                        return
                    self._wakeup.wait()
                    log = self._next()
                callbacks = self._queued.pop(log)
                self._busy.add(log)
            result: int | StorageError
            begun_us = self._clock()
            try:
                result = log.flush()
            except StorageError as error:
                result = error
            self._call_soon_threadsafe(_deliver, log, result, callbacks)
            if self._timed is not None:
                self._timed((self._clock() - begun_us) / 1e6)
            with self._wakeup:
                self._busy.discard(log)
                if self._is_closing.is_set():
                    self._wakeup.notify_all()
                rests = len(self._queued) > MANY_LOGS and not self._is_closing.is_set()
            if rests:
                turn_us = 1_000_000 * len(self._threads) // FLUSHES_PER_SECOND_MAX
                self._is_closing.wait(max(0, begun_us + turn_us - self._clock()) / 1_000_000)

    def _next(self) -> CommitLog | None:
        """The first waiting log that no other thread is flushing. A log that is being flushed stays
        queued for its own thread."""
        return next((log for log in self._queued if log not in self._busy), None)


def _deliver(log: CommitLog, result: int | StorageError, callbacks: dict[OnFlushed, None]) -> None:
    for on_flushed in callbacks:
        on_flushed(log, result)
