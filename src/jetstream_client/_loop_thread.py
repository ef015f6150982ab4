"""An event loop in its own thread, for callers without one.

No lock is taken here. A finaliser or a signal handler may come in the middle of any call of this
module, and may use the client: it would wait for a lock that its own thread holds, for ever. Where
such a lock is held elsewhere, its call is refused (_locked.py).

A fork copies the memory but not the thread, so in the child nothing would ever answer. The process
id is remembered, and calls in a child raise at once.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from jetstream_client._closing import AsyncClosing, ClientClosedError
from jetstream_client._locked import LOOK_SECONDS, check_not_within
from jetstream_client._log import logger
from jetstream_protocol.errors import InvalidRequestError, JetstreamError

_T = TypeVar("_T")


class _Begins(Protocol):
    async def begin(self) -> None: ...


_Begun = TypeVar("_Begun", bound=_Begins)
_Made = TypeVar("_Made")

_CLOSED = "the client is closed"


def _result_of(future: Future[_T], check: Callable[[], None]) -> _T:
    """What the future ends with. check: called now and then, raises if nothing will end it."""
    while True:
        try:
            return future.result(LOOK_SECONDS)
        except TimeoutError:
            if future.done():
                return future.result()
            check()


class _Running:
    """A loop and its thread, which runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="jetstream-client", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            # Over again: a call that came just before the end begins its task only here.
            while leftover := asyncio.all_tasks(loop):
                for task in leftover:
                    task.cancel()
                loop.run_until_complete(asyncio.gather(*leftover, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()

    def stop(self) -> None:
        """Cancel what still runs, and wait for the thread. Idempotent."""
        with suppress(RuntimeError):  # It is closed already.
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def _forget_frames(error: JetstreamError) -> None:
    """As if it and its cause were raised by who raises it next."""
    logger.debug("%s", error.message, exc_info=error)
    for each in (error, error.__cause__):
        if isinstance(each, JetstreamError):
            each.__traceback__ = None


class LoopThread:
    """Started at the first `run`, ended by `close`. Any thread may call; threads do not wait for
    each other."""

    def __init__(self) -> None:
        self._started: dict[str, _Running] = {}  # at most one, under ""
        self._process = os.getpid()
        self._closed = False

    @property
    def is_here(self) -> bool:
        """Whether it is of this process, which is no fork of its own."""
        return os.getpid() == self._process

    @property
    def is_running(self) -> bool:
        """Whether it runs in this process: it was used and is not closed."""
        return bool(self._started) and not self._closed and self.is_here

    def check_caller(self) -> None:
        """Raise InvalidRequestError in the loop's own thread, which cannot wait for itself."""
        running = self._started.get("")
        if running is not None and threading.current_thread() is running.thread:
            raise InvalidRequestError(
                "a Client's own thread cannot wait for it: use AsyncClient in coroutines"
            )

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What the coroutine returns or raises. Interrupted (Ctrl-C), it is cancelled.

        An error of ours says in its message what is wrong: where in the client it was raised is
        only in the log, at level DEBUG.
        """
        future: Future[_T] | None = None
        try:
            check_not_within()
            future = self._submit(coroutine)
            return _result_of(future, self._check_alive)
        except JetstreamError as error:
            if future is None:
                coroutine.close()
                raise
            failure = error
        except CancelledError:
            if not self._closed:
                raise
            failure = ClientClosedError(_CLOSED)
        except BaseException:
            # Of the coroutine's own errors this is none of our business; it is done then.
            self._cancel(coroutine)
            raise
        _forget_frames(failure)
        raise failure

    def begun(
        self, make: Callable[[], _Begun], kind: Callable[[LoopThread, _Begun], _Made]
    ) -> _Made:
        """What `make` returns, made and begun in the loop's thread, as a `kind` that uses it. If
        the call fails or is interrupted, however late, it is closed: nothing else could."""
        made: list[_Begun] = []

        async def begin() -> None:
            made.append(make())
            if isinstance(made[0], AsyncClosing):
                await made[0].__aenter__()
            else:
                await made[0].begin()

        async def close() -> None:
            for each in made:
                if isinstance(each, AsyncClosing):
                    await each.aclose()

        try:
            self.run(begin())
            return kind(self, made[0])
        except BaseException:
            self.post(close())
            raise

    def post(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine without waiting for it; after `close`, or in a fork, do nothing. Any
        thread may call. Errors are ignored: this is for cleaning up where waiting is impossible, as
        in a finaliser.
        """
        if self.is_running:
            with suppress(RuntimeError):  # It was closed this moment.
                asyncio.run_coroutine_threadsafe(coroutine, self._started[""].loop)
                return
        coroutine.close()

    def attempt(self, make: Callable[[], Coroutine[Any, Any, object]], seconds: float) -> None:
        """Run what `make` returns, and wait for its end, but no longer than that. Errors are
        ignored, as by `post`."""
        if self.is_running:
            with suppress(RuntimeError, TimeoutError, CancelledError, JetstreamError):
                self._submit(make()).result(seconds)

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        if not self.is_here:
            raise InvalidRequestError(
                "this client was made in another process, of which this one is a fork, and gRPC "
                "does not work in one: start processes by multiprocessing's 'spawn', and make a "
                "client there"
            )
        if self._closed:
            raise ClientClosedError(_CLOSED)
        running = self._started.get("") or self._start()
        self.check_caller()
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, running.loop)
        except RuntimeError:
            raise ClientClosedError(_CLOSED) from None

    def _cancel(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Cancel a call that was given up, perhaps before anybody had its future: it must not go on
        beside the next one."""

        def cancel() -> None:
            for task in asyncio.all_tasks():
                if task.get_coro() is coroutine:
                    task.cancel()

        running = self._started.get("")
        if running is not None:
            with suppress(RuntimeError):  # It was closed this moment.
                running.loop.call_soon_threadsafe(cancel)

    def _start(self) -> _Running:
        made = _Running()
        running = self._started.setdefault("", made)  # Of several at a time the first one counts.
        if running is not made:
            made.stop()
        if self._closed:
            running.stop()
        return running

    def _check_alive(self) -> None:
        """A call that comes just as the loop ends may never begin."""
        running = self._started.get("")
        if running is not None and not running.thread.is_alive():
            raise ClientClosedError(_CLOSED)

    def close(self) -> None:
        """Cancels what still runs, then waits for the thread. Idempotent."""
        self._closed = True
        running = self._started.get("")
        if running is not None and self.is_here:
            running.stop()


class CallersLoop:
    """The loop of a coroutine, for the thread that works for it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_ended = False

    def end(self) -> None:
        """The call was given up: refuse what its thread asks for."""
        self._is_ended = True

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """What the coroutine returns or raises. Raises ClientClosedError after `end`."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            self._check_wanted()
            return _result_of(future, self._check_wanted)
        finally:
            future.cancel()

    def _check_wanted(self) -> None:
        """After `end` the loop may not go on, and never begin what it is asked for."""
        if self._is_ended:
            raise ClientClosedError("the call was given up")

    def post(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine without waiting for it, unless the loop is closed."""
        try:
            asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:
            coroutine.close()
