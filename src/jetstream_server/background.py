"""Runs tasks for as long as the server runs. A task that fails must not end unnoticed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

FAILED_TASK = "failed_background_task"
"""Key in the context of the loop's exception handler; its value is the task's name."""


def run_in_background(coroutine: Coroutine[Any, Any, Result], name: str) -> asyncio.Task[Result]:
    """Start a task. If it fails, which is a bug, the loop's exception handler is called at once."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)
    task.add_done_callback(_report)
    return task


def _report(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        context = {
            "message": f"background task {task.get_name()!r} failed",
            "exception": error,
            FAILED_TASK: task.get_name(),
        }
        task.get_loop().call_exception_handler(context)
