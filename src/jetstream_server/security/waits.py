"""Requests that wait, and their end when their caller loses the right to the answer.

A wait is a context manager around what a task waits for, like `asyncio.timeout`. A watch is the
same for what waits without a task. `check` decides: it raises the error that the caller's next
request would get. It is asked when the wait begins, and whenever tokens or rules change
(`check_again`). Its error ends the wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from jetstream_protocol.errors import JetstreamError


class Waits:
    """All waits of one event loop."""

    def __init__(self) -> None:
        self._open: dict[Wait | Watch, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, check: Callable[[], object]) -> Wait:
        return Wait(self._open, check)

    def watch(self, check: Callable[[], object], refuse: Callable[[JetstreamError], None]) -> Watch:
        """Begin a wait that ends with `Watch.end`, or with the error given to `refuse`. Raises the
        error of `check` if that fails at once."""
        check()
        watch = Watch(self._open, check, refuse)
        self._open[watch] = None
        return watch

    def check_again(self) -> None:
        for wait in list(self._open):
            wait.check_again()


class Watch:
    __slots__ = ("_check", "_open", "_refuse")

    def __init__(
        self,
        open_waits: dict[Wait | Watch, None],
        check: Callable[[], object],
        refuse: Callable[[JetstreamError], None],
    ) -> None:
        self._open = open_waits
        self._check = check
        self._refuse = refuse

    def check_again(self) -> None:
        """Refuse, unless the watch has ended or its caller is still allowed."""
        if self not in self._open:
            return
        try:
            self._check()
        except JetstreamError as error:
            self.end()
            self._refuse(error)

    def end(self) -> None:
        self._open.pop(self, None)


class Wait:
    __slots__ = ("_cancelling", "_check", "_open", "_refusal", "_task")

    def __init__(self, open_waits: dict[Wait | Watch, None], check: Callable[[], object]) -> None:
        self._open = open_waits
        self._check = check
        self._refusal: JetstreamError | None = None

    def __enter__(self) -> None:
        self._check()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._open[self] = None

    def check_again(self) -> None:
        """End the wait if its caller is not allowed any more."""
        try:
            self._check()
        except JetstreamError as error:
            if self._refusal is None:
                self._refusal = error
                self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del self._open[self]
        if self._refusal is None:
            return
        is_ours = self._task.uncancel() <= self._cancelling
        if is_ours and (kind is None or kind is asyncio.CancelledError):
            raise self._refusal from None
