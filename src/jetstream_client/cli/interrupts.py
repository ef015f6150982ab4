"""Ctrl-C: most commands just end, because there is nothing to clean up. Some get an exception
first.

A KeyboardInterrupt may come anywhere, in finalisers and clean-up too, and then leaves a traceback
on standard error. So only commands that would leave something half done get one, once. A second
Ctrl-C ends those too, whatever they wait for.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TypeVar

from jetstream_client.cli.exits import Exit

_T = TypeVar("_T")


def _end(*_: object) -> NoReturn:
    os._exit(Exit.INTERRUPTED)


def end_in_foreign_code() -> None:
    """Ctrl-C ends the command also while the main thread is busy outside Python, for example in a
    long query, where it runs no signal handler: the number of the signal comes through a pipe to
    another thread."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing)
    threading.Thread(target=_end_when_asked, args=(reading,), daemon=True).start()


def _end_when_asked(pipe: int) -> None:
    while signal.SIGINT not in os.read(pipe, 16):
        continue
    _end()


@contextmanager
def interrupted_once() -> Iterator[None]:
    """Within the block, the first Ctrl-C raises KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)

    def interrupt(*_: object) -> NoReturn:
        signal.signal(signal.SIGINT, _end)
        raise KeyboardInterrupt

    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run(main: Coroutine[Any, Any, _T]) -> _T:
    """As asyncio.run. The first Ctrl-C cancels `main`; once that is done, KeyboardInterrupt."""
    before = signal.getsignal(signal.SIGINT)
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        task = loop.create_task(main)

        def interrupt() -> None:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, _end)
            task.cancel()

        if before is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGINT, interrupt)
        try:
            return loop.run_until_complete(task)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        finally:
            if loop.remove_signal_handler(signal.SIGINT):
                signal.signal(signal.SIGINT, before)
