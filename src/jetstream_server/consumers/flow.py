"""Flow control of a consumer that pushes: how much may be on its way to the client. Pure.

sent ─> half a window is on its way: ask ─> the client answers once it has handled that much
"""

from __future__ import annotations

from typing import Final

WINDOW_BYTES: Final = 2 * 1024 * 1024
WINDOW_BYTES_MAX: Final = 32 * 1024 * 1024
"""As nats-server: the window doubles with each answer."""


class Flow:
    """asked: the number of the question that waits for its answer; 0: none."""

    def __init__(self) -> None:
        self.asked = 0
        self._window = WINDOW_BYTES
        self._on_way = 0
        self._covered = 0
        self._questions = 0

    @property
    def is_full(self) -> bool:
        """Whether nothing more may be sent until the client answers."""
        return self._on_way > self._window

    def sent(self, size: int) -> bool:
        """Note what was sent. Returns whether to ask now."""
        self._on_way += size
        if self.asked or self._on_way <= self._window // 2:
            return False
        self._questions += 1
        self.asked, self._covered = self._questions, self._on_way
        return True

    def answered(self, question: int) -> None:
        """Take an answer. Those to earlier questions have no effect."""
        if question and question == self.asked:
            self._on_way -= self._covered
            self.asked = 0
            self._window = min(2 * self._window, WINDOW_BYTES_MAX)

    def restart(self) -> None:
        """Note that there is another subscriber: nothing is on its way to it."""
        self.asked, self._on_way, self._covered = 0, 0, 0
        self._window = WINDOW_BYTES
