"""Functions that the program of a blocking client passes. They run in a thread of their own, where
they may wait for the client, for example in `commit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from jetstream_client.processing.threads import HandlerThreads

_F = TypeVar("_F", bound="Callable[..., Any] | None")


def in_thread(function: _F) -> _F:
    """The same, called in a thread; None stays None. The event loop goes on meanwhile, so a
    member's heartbeats are sent. The thread is a daemon: a call that never returns keeps neither
    the client from being closed nor the program from ending. What a coroutine function returns is
    awaited in the loop."""
    if function is None or inspect.iscoroutinefunction(function):
        return function
    called: Callable[..., Any] = function

    async def tell(*arguments: object) -> None:
        threads: HandlerThreads[tuple[object, ...], Any]
        threads = HandlerThreads(lambda given: called(*given), None)
        try:
            answer: Any = await threads.call(arguments)
        finally:
            threads.close()
        if inspect.isawaitable(answer):
            await answer

    return tell  # type: ignore[return-value]
