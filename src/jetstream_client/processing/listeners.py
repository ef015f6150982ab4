"""Functions that the program of a blocking client passes. They run in their own thread, where
they may wait for the client, for example in `commit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jetstream_client.processing.threads import HandlerThreads, as_error

_F = TypeVar("_F", bound="Callable[..., Any] | None")


def in_thread(function: _F) -> _F:
    """The same, called in a thread; None stays None. The event loop goes on meanwhile, so a
    member's heartbeats are sent. The thread is a daemon: a call that never returns keeps neither
    the client from being closed nor the program from ending. What a coroutine function returns is
    awaited in the loop. `sys.exit` ends neither: it is an error like any other."""
    if function is None:
        return function
    called: Callable[..., Any] = function
    is_coroutine = inspect.iscoroutinefunction(called)

    async def tell(*arguments: object) -> None:
        answer = called(*arguments) if is_coroutine else await _in_thread(called, arguments)
        if inspect.isawaitable(answer):
            try:
                await answer
            except (SystemExit, KeyboardInterrupt) as error:
                raise as_error(error) from error

    return tell  # type: ignore[return-value]


async def _in_thread(called: Callable[..., Any], arguments: tuple[object, ...]) -> Any:
    threads: HandlerThreads[tuple[object, ...], Any]
    threads = HandlerThreads(lambda given: called(*given), None)
    try:
        return await threads.call(arguments)
    finally:
        threads.close()
