"""Results of recent commands by (incarnation, sequence), so that a retried command happens once.

The limits fit together. A proposer numbers its commands, and none of its pending ones is SPAN or
more behind its newest. So every command that may still be retried is among the last WINDOW applied,
and an unknown one that is SPAN or more behind the newest is a late copy: it is refused.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import FencedEpochError, UnknownOutcomeError

SPAN = 512
"""Pending commands of a node: enough for one flush to serve hundreds of proposals."""
WINDOW = 2 * SPAN
"""Up to SPAN commands on either side of one may be applied before its retry arrives."""


class ResultWindows:
    """Part of the replicated state: the same on every node."""

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        self._windows: dict[int, _Window] = {}

    def open(self, incarnation: int) -> None:
        self._windows[incarnation] = _Window(-1, {})

    def close(self, incarnation: int) -> None:
        self._windows.pop(incarnation, None)

    def find(self, incarnation: int, sequence: int) -> dict[str, Any] | None:
        """The result of that command; None if it was not applied.

        Raises FencedEpochError for an incarnation that was replaced, UnknownOutcomeError for a
        sequence so old that it may or may not have been applied.
        """
        window = self._windows.get(incarnation)
        if window is None:
            raise FencedEpochError(f"incarnation {incarnation} is not registered any more")
        result = window.results.get(sequence)
        if result is None and sequence <= window.newest - SPAN:
            raise UnknownOutcomeError(
                f"command {sequence} of incarnation {incarnation} is too old to tell its outcome"
            )
        return None if result is None else dict(result)

    def add(self, incarnation: int, sequence: int, result: dict[str, Any]) -> None:
        window = self._windows.get(incarnation)
        if window is None:  # The command itself ended its incarnation.
            return
        window.results[sequence] = dict(result)
        window.newest = max(window.newest, sequence)
        if len(window.results) > WINDOW:
            del window.results[next(iter(window.results))]

    def copy(self) -> ResultWindows:
        """The same results, which may be written while this one goes on."""
        copied = ResultWindows()
        for incarnation, window in self._windows.items():
            copied._windows[incarnation] = _Window(window.newest, dict(window.results))
        return copied

    def to_list(self) -> list[Any]:
        """As a snapshot has them: each result is text of JSON."""
        return [
            [run, window.newest, [(at, _as_text(each)) for at, each in window.results.items()]]
            for run, window in sorted(self._windows.items())
        ]

    @classmethod
    def from_list(cls, values: list[Any]) -> ResultWindows:
        windows = cls()
        for incarnation, newest, items in values:
            results = {sequence: bounded_json.loads(text) for sequence, text in items}
            windows._windows[incarnation] = _Window(newest, results)
        return windows


@dataclass(slots=True)
class _Window:
    """results: by sequence, in the order of application: the first is the next to be forgotten."""

    newest: int
    results: dict[int, dict[str, Any]]


def _as_text(result: dict[str, Any]) -> str:
    return json.dumps(result, separators=(",", ":"))
