"""A task of the server that fails is heard of at once, and ends the node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jetstream_server.background import FAILED_TASK, close_within, run_in_background
from tests.support.virtual_time import on_virtual_loop


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


@on_virtual_loop
async def test_a_close_that_hangs_is_left_alone() -> None:
    answered = asyncio.Event()

    async def close() -> None:
        await answered.wait()

    async with asyncio.timeout(60):
        await close_within(0.01, close, "Reader")
    answered.set()
    await close_within(60, close, "Reader")


@on_virtual_loop
async def test_a_close_that_fails_says_so() -> None:
    async def close() -> None:
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        await close_within(60, close, "Reader")
