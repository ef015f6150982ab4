"""How many examples a property test takes where it asks for a number of its own."""

from __future__ import annotations

from hypothesis import settings

HYPOTHESIS_DEFAULT = 100


def scaled(count: int) -> int:
    """So many where other tests take Hypothesis's default of 100; in a profile, in proportion."""
    return max(1, count * settings().max_examples // HYPOTHESIS_DEFAULT)
