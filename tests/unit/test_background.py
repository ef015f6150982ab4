"""A task of the server that fails is heard of at once, and ends the node."""

from __future__ import annotations

import asyncio
from typing import Any

from jetstream_server.background import FAILED_TASK, run_in_background


def run(error: BaseException | None) -> list[dict[str, Any]]:
    """The contexts the loop's exception handler got while a task ended by `error`."""
    contexts: list[dict[str, Any]] = []

    async def work() -> None:
        if error is not None:
            raise error

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: contexts.append(context))
        await asyncio.wait([run_in_background(work(), "work")])

    asyncio.run(main())
    return contexts


def test_a_failed_task_reaches_the_exception_handler_by_name() -> None:
    error = ValueError("a bug")
    [context] = run(error)
    assert (context[FAILED_TASK], context["exception"]) == ("work", error)


def test_a_task_that_ends_well_or_is_cancelled_says_nothing() -> None:
    assert run(None) == []
    assert run(asyncio.CancelledError()) == []
