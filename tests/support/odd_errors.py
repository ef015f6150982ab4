"""Exceptions of a program's own functions that are no good ones: they end what others would."""

from __future__ import annotations

from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class FrozenError(Exception):
    """It takes no notes, and not even a traceback from Python code."""

    code: int


class UnspeakableError(Exception):
    """It has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


ODD = [FrozenError(5), UnspeakableError()]
odd_errors = pytest.mark.parametrize("error", ODD, ids=["frozen", "unspeakable"])
