"""The first SIGINT or SIGTERM ends a processing in good order. Then the earlier signal handlers are
back, so that a second signal has its usual effect."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stopping_on_signals(stop: Callable[[], object], *, wanted: bool) -> ExitStack:
    """From now to the end of the `with` block, SIGINT and SIGTERM call `stop`. wanted: False:
    signals do what they did before, as in any thread but the main one, where Python handles no
    signals.

    No generator: an exception of a handler passes through, and generators set its attributes, which
    a frozen dataclass does not allow.
    """
    stack = ExitStack()
    if not wanted or threading.current_thread() is not threading.main_thread():
        return stack
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def back() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is heard:
                signal.signal(number, handler)

    def heard(number: int, frame: FrameType | None) -> None:
        back()
        stop()

    for number, handler in before.items():
        # None: it was not set from Python, and could not be set back. What is ignored stays so.
        if handler is not None and handler is not signal.SIG_IGN:
            signal.signal(number, heard)
    stack.callback(back)
    return stack
