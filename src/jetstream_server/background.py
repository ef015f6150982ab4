"""Runs tasks for as long as the server runs. A task that fails must not end unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

logger = structlog.get_logger("jetstream.server")

Result = TypeVar("Result")

FAILED_TASK = "failed_background_task"
"""Key in the context of the loop's exception handler; its value is the task's name."""


def run_in_background(coroutine: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """Start a task. If it fails, which is a bug, the loop's exception handler is called at once."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(_report)
    return task


async def end_tasks(*tasks: asyncio.Future[Any] | None) -> None:
    """Cancel them, and return when they have ended. None: there is none."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def close_within(seconds: float, close: Callable[[], Awaitable[None]], name: str) -> None:
    """Wait for `close`, so long at most. What hangs then, perhaps at a store or mount that does not
    answer, is left to the end of the process."""
    closing = asyncio.ensure_future(close())
    await asyncio.wait([closing], timeout=seconds)
    if closing.done():
        closing.result()
    else:
        logger.warning("not_closed", part=name, seconds=seconds)


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        context = {
            "message": f"background task {task.get_name()!r} failed",
            "exception": error,
            FAILED_TASK: task.get_name(),
        }
        task.get_loop().call_exception_handler(context)
