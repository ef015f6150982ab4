"""Calls in whose middle their own thread must not wait for the client.

They hold a lock that the client's thread takes, too. A signal handler or a finaliser may come in
the middle of one, in the same thread: if it waited for the client, both would wait for ever.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

from jetstream_protocol.errors import InvalidRequestError

_Function = TypeVar("_Function", bound=Callable[..., object])

LOOK_SECONDS = 0.5
"""A signal that comes just before a thread begins to wait does not wake it: Python calls the
handler when the wait ends. So no wait is longer."""

_LOCKED: set[CodeType] = set()


def holds_a_lock(function: _Function) -> _Function:
    """A decorator for such a call."""
    _LOCKED.add(function.__code__)
    return function


def check_not_within() -> None:
    """Raise InvalidRequestError if this thread is in the middle of such a call already."""
    frame: FrameType | None = inspect.currentframe()
    for _ in range(2):  # This function, and the call that asks.
        frame = None if frame is None else frame.f_back
    while frame is not None:
        if frame.f_code in _LOCKED:
            raise InvalidRequestError(
                "this thread is in the middle of adding a record to a publisher, and a signal "
                "handler or a finaliser uses the client: have it set a flag, and use the client "
                "once `send` has returned"
            )
        frame = frame.f_back
