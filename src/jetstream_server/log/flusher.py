"""Group commit: one thread that syncs logs, one fsync for all that queued up behind it.

While a log's fsync runs, further requests for that log wait together; the next fsync covers them
all, since it begins after they were appended. Logs take turns in the order of their first
request. Results are handed to the loop through `call_soon_threadsafe`, in order.

A failure is handed on like a success and never retried here: the log is offline by then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from jetstream_protocol.errors import InternalError, StorageError, UnavailableError
from jetstream_server.log.commit_log import CommitLog

OnFlushed = Callable[[CommitLog, int | StorageError], None]
"""Called on the loop with the log and its flushed offset, or with why it cannot be flushed."""

CallSoonThreadsafe = Callable[..., object]
"""`loop.call_soon_threadsafe`: takes a function and its arguments."""


class Flusher:
    """Owns its thread from construction to `close`."""

    def __init__(
        self, call_soon_threadsafe: CallSoonThreadsafe, *, name: str = "jetstream-flusher"
    ) -> None:
        self._call_soon_threadsafe = call_soon_threadsafe
        self._wakeup = threading.Condition()
        # Both dictionaries are used as sets that keep their order.
        self._queued: dict[CommitLog, dict[OnFlushed, None]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def request(self, log: CommitLog, on_flushed: OnFlushed) -> None:
        """Flush what `log` holds now. A callback queued twice for one flush is called once.

        Raises UnavailableError after `close`, InternalError when the thread died of a bug: an
        acknowledgement that waits for it would wait for ever.
        """
        with self._wakeup:
            if self._closing:
                raise UnavailableError("the flusher is closed: the server is stopping")
            if not self._thread.is_alive():
                raise InternalError("the flusher thread has died; its log line says why")
            callbacks = self._queued.get(log)
            if callbacks is None:
                self._queued[log] = {on_flushed: None}
                self._wakeup.notify()
            else:
                callbacks[on_flushed] = None

    def close(self) -> None:
        """Flush what is queued, then end the thread. Blocks until that is done."""
        with self._wakeup:
            self._closing = True
            self._wakeup.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wakeup:
                while not self._queued and not self._closing:
                    self._wakeup.wait()
                if not self._queued:
                    return
                log = next(iter(self._queued))
                callbacks = self._queued.pop(log)
            result: int | StorageError
            try:
                result = log.flush()
            except StorageError as error:
                result = error
            self._call_soon_threadsafe(_deliver, log, result, callbacks)


def _deliver(log: CommitLog, result: int | StorageError, callbacks: dict[OnFlushed, None]) -> None:
    for on_flushed in callbacks:
        on_flushed(log, result)
