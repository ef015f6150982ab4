"""Base classes of objects that `with` or `async with` closes.

If the block fails and closing fails too, the block's error is raised: it came first. The other one
is logged.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from jetstream_client._log import logger
from jetstream_protocol.errors import InvalidRequestError, JetstreamError, UnavailableError

_T = TypeVar("_T")


class ClientClosedError(InvalidRequestError, UnavailableError):
    """The client was closed: before the call, or while it waited. Repeating it is of no use."""

    retriable = False

    @property
    def code(self) -> str:
        """No server sends it."""
        return "client_closed"


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel them, and return when they have ended. None: there is none."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def shared(task: asyncio.Future[_T]) -> _T:
    """What a task ends with for which others wait, too. Only the closing of the client cancels it.
    Who waits then was not cancelled, and gets ClientClosedError."""
    await asyncio.wait([task])
    if task.cancelled():
        raise ClientClosedError("the client is closed")
    return task.result()


class Beginning:
    """What is begun once, in a task of its own: a call that is cancelled, as by a time limit,
    leaves it under way. It would never end if each call had less time than it takes."""

    def __init__(self) -> None:
        self._task: asyncio.Task[object] | None = None

    async def wait(self, begin: Callable[[], Coroutine[Any, Any, object]]) -> None:
        """Return once it has begun, or is ended meanwhile. Of several calls at a time the first one
        begins it; one after a failure, which it raises, begins it anew."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(begin())
            self._task.add_done_callback(self._over)
        task = self._task
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    def _over(self, task: asyncio.Task[object]) -> None:
        self._task = None
        if not task.cancelled():
            task.exception()  # There may be no caller left that waits for it.

    async def end(self) -> None:
        """If it is under way, it is no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


class _Living(ABC):  # noqa: B024  it has no method of its own that others write
    """It has connections, threads or tasks."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled: make one in each process, by a client of "
            "its own"
        )


class Closing(_Living):
    """`with` closes it, also after an error."""

    @abstractmethod
    def close(self) -> None:
        """Idempotent."""

    def _ended_well(self) -> None:
        """Called before `close` if the block has ended without an error."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._ended_well()
        try:
            self.close()
        except JetstreamError as failure:
            if error is None:
                raise
            _not_raised(failure)


class AsyncClosing(_Living):
    """`async with` starts it, and closes it also after an error, and when starting is cancelled."""

    @abstractmethod
    async def begin(self) -> None:
        """Idempotent."""

    @abstractmethod
    async def aclose(self) -> None:
        """Idempotent."""

    def _ended_well(self) -> None:
        """Called before `aclose` if the block has ended without an error."""
        return

    async def __aenter__(self) -> Self:
        try:
            await self.begin()
        except asyncio.CancelledError as error:  # `__aexit__` is not called.
            await close_after(error, self.aclose())
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self._ended_well()
        await close_after(error, self.aclose())


async def close_after(error: BaseException | None, closing: Awaitable[None]) -> None:
    """Await `closing` after a block that has ended with `error`; None: without one."""
    try:
        await closing
    except JetstreamError as failure:
        if error is None:
            raise
        _not_raised(failure)


def _not_raised(failure: JetstreamError) -> None:
    """Log a failure to close after the `async with` block itself has failed."""
    logger.warning("not closed in good order: %s", failure.message)
