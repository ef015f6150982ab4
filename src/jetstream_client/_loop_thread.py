"""An event loop in a thread of its own, for callers without one.

A fork copies the memory but not the thread, so in the child nothing would ever answer. The process
id is remembered, and calls in a child raise at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from jetstream_protocol.errors import InvalidRequestError

_T = TypeVar("_T")

_LOOK_SECONDS = 0.5
"""A signal that comes just before a thread begins to wait does not wake it: Python calls the
handler when the wait ends. So no wait is longer."""


class LoopThread:
    """Started at the first `run`, ended by `close`. Any thread may call; threads do not wait for
    each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._closed = False

    @property
    def is_here(self) -> bool:
        """Whether it is of this process, which is no fork of its own."""
        return os.getpid() == self._process

    @property
    def is_running(self) -> bool:
        """Whether it runs in this process: it was used and is not closed."""
        return self._loop is not None and not self._closed and self.is_here

    def check_caller(self) -> None:
        """Raise InvalidRequestError in the loop's own thread, which cannot wait for itself."""
        if threading.current_thread() is self._thread:
            raise InvalidRequestError(
                "a Client's own thread cannot wait for it: use AsyncClient in coroutines"
            )

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What the coroutine returns or raises. Interrupted (Ctrl-C), it is cancelled."""
        try:
            future = self._submit(coroutine)
        except InvalidRequestError:
            coroutine.close()
            raise
        try:
            while True:
                try:
                    return future.result(_LOOK_SECONDS)
                except TimeoutError:
                    if future.done():
                        return future.result()
        except BaseException:
            # Of the coroutine's own errors this is none of our business; it is done then.
            future.cancel()
            raise

    def post(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine without waiting for it; after `close`, or in a fork, do nothing. Any
        thread may call. Errors are ignored: this is for cleaning up where waiting is impossible, as
        in a finaliser.
        """
        with self._lock:
            if self._loop is not None and self.is_running:
                asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            else:
                coroutine.close()

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        if not self.is_here:
            raise InvalidRequestError(
                "this client was made in another process, of which this one is a fork, and gRPC "
                "does not work in one: start processes by multiprocessing's 'spawn', and make a "
                "client there"
            )
        with self._lock:
            if self._closed:
                raise InvalidRequestError("the client is closed")
            if self._loop is None:
                self._start()
            assert self._loop is not None
            self.check_caller()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def _start(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop,), name="jetstream-client", daemon=True
        )
        self._thread.start()

    @staticmethod
    def _serve(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            leftover = asyncio.all_tasks(loop)
            for task in leftover:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def close(self) -> None:
        """Cancels what still runs, then waits for the thread. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or not self.is_here:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
