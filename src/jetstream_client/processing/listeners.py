"""Listeners of the blocking client: they run in a thread of their own, so that they may wait for
the client, for example in `commit`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, cast

from jetstream_client.processing.threads import HandlerThreads
from jetstream_client.reading.group_consumer import Listener


def in_thread(listener: Listener | None) -> Listener | None:
    """The same, called in a thread. The event loop goes on meanwhile, so the member's heartbeats
    are sent. What a coroutine function returns is awaited in the loop."""
    if listener is None or inspect.iscoroutinefunction(listener):
        return listener
    called = cast("Callable[[Sequence[str]], Any]", listener)

    async def tell(names: Sequence[str]) -> None:
        threads = HandlerThreads(called, None)
        try:
            answer: Any = await threads.call(names)
        finally:
            threads.close()
        if inspect.isawaitable(answer):
            await answer

    return tell
