"""How many examples a property test takes where it asks for a number of its own."""

from __future__ import annotations

from hypothesis import settings

DEFAULT = 100
"""Hypothesis's own number, which is the `default` profile's."""


def scaled(count: int) -> int:
    """So many in the default profile; more or fewer in the others, as for any other test."""
    return max(1, count * settings().max_examples // DEFAULT)
