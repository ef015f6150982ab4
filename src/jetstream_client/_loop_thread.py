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
import weakref
from asyncio import AbstractEventLoop
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from jetstream_client._closing import AsyncClosing, ClientClosedError
from jetstream_client._forks import check_process
from jetstream_client._locked import LOOK_SECONDS, check_not_within
from jetstream_client._log import logger
from jetstream_protocol.errors import InvalidRequestError, JetstreamError

_T = TypeVar("_T")


class _Begins(Protocol):
    async def begin(self) -> None: ...


_Begun = TypeVar("_Begun", bound=_Begins)
_Made = TypeVar("_Made")

_CLOSED = "the client is closed"


class _Call(Generic[_T]):
    """A coroutine that a loop runs for a thread, which waits. **safety** The loop waits for nothing
    that the thread holds: what a signal handler raises (Ctrl-C) may leave a lock of Python, such as
    that of a `concurrent.futures.Future`, locked for ever."""

    def __init__(self, coroutine: Coroutine[Any, Any, _T], loop: AbstractEventLoop) -> None:
        """Raises RuntimeError when the loop is closed."""
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[_T] | None = None
        self._running = threading.Lock()  # Released by the loop, which never takes it.
        self._running.acquire()
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(lambda _: self._running.release())

    def result(self, check: Callable[[], None]) -> _T:
        """What it returns or raises. check: called now and then, raises if nothing will end it."""
        while not self._running.acquire(timeout=LOOK_SECONDS):
            check()
        assert self._task is not None
        if self._task.cancelled():
            raise CancelledError
        return self._task.result()

    def cancel(self) -> None:
        with suppress(RuntimeError):  # It was closed this moment.
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _nothing() -> None: ...


class _Running:
    """A loop and its thread, which runs."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._posted: set[asyncio.Task[object]] = set()
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

    def post(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run the coroutine without waiting for it. Raises RuntimeError when the loop is closed."""

        def begin() -> None:
            task = self.loop.create_task(coroutine)
            self._posted.add(task)
            task.add_done_callback(self._is_over)

        self.loop.call_soon_threadsafe(begin)

    def _is_over(self, task: asyncio.Task[object]) -> None:
        self._posted.discard(task)
        if not task.cancelled():
            task.exception()  # Nobody waits for it.

    def end(self, close: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """End the thread once what was posted is done, and then what `close` returns. Returns at
        once."""

        async def end() -> None:
            while self._posted:
                done, _ = await asyncio.wait(self._posted)
                self._posted -= done
            try:
                await close()
            except Exception as error:  # noqa: BLE001  no caller is left to hear it
                logger.warning("a client that was not closed ended with an error: %r", error)
            finally:
                self.loop.stop()

        ending = end()
        try:
            asyncio.run_coroutine_threadsafe(ending, self.loop)
        except RuntimeError:  # It is closed already.
            ending.close()

    def stop(self) -> None:
        """Cancel what still runs, and wait for the thread. Idempotent."""
        with suppress(RuntimeError):  # It is closed already.
            self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


def _forget_frames(error: JetstreamError) -> None:
    """As if it and its cause were raised by who raises it next."""
    logger.debug("%s", error.message, exc_info=error)
    cause = error.__cause__
    if isinstance(cause, JetstreamError) and cause.message == error.message:
        error.__cause__ = None  # Of an attempt before: once is enough.
    for each in (error, error.__cause__):
        if isinstance(each, JetstreamError):
            each.__traceback__ = None


class LoopThread:
    """Started at the first `run`, ended by `close`, or once nothing refers to it: what `at_end`
    returns is run before. Any thread may call; threads do not wait for each other."""

    def __init__(self, at_end: Callable[[], Coroutine[Any, Any, object]] = _nothing) -> None:
        self._at_end = at_end
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

    def check_process(self) -> None:
        """Raise InvalidRequestError in a fork: nothing would come or go there any more."""
        check_process(self._process)

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
        call: _Call[_T] | None = None
        try:
            check_not_within()
            call = self._submit(coroutine)
            return call.result(self._check_alive)
        except JetstreamError as error:
            if call is None:
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
                self._started[""].post(coroutine)
                return
        coroutine.close()

    def attempt(self, make: Callable[[], Coroutine[Any, Any, object]]) -> Sequence[Future[object]]:
        """Run what `make` returns. Returns its future; none where nothing runs any more."""
        if self.is_running:
            with suppress(JetstreamError):
                submit = asyncio.run_coroutine_threadsafe
                return [self._on_loop(lambda loop: submit(make(), loop))]
        return []

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> _Call[_T]:
        return self._on_loop(lambda loop: _Call(coroutine, loop))

    def _on_loop(self, submit: Callable[[AbstractEventLoop], _Made]) -> _Made:
        """What `submit` returns for the loop. Raises ClientClosedError, InvalidRequestError."""
        self.check_process()
        if self._closed:
            raise ClientClosedError(_CLOSED)
        running = self._started.get("") or self._start()
        self.check_caller()
        try:
            return submit(running.loop)
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
        if running is made:
            weakref.finalize(self, made.end, self._at_end).atexit = False
        else:
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
        call = _Call(coroutine, self._loop)
        try:
            self._check_wanted()
            return call.result(self._check_wanted)
        finally:
            call.cancel()

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
