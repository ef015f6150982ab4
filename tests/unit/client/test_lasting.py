"""The short form of `python -m tests.lasting`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.lasting import BYTES_MAX, KINDS, grown_by, rebalances


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_done_for_months_takes_no_more_memory(kind: Any) -> None:
    count = 500 if kind is rebalances else 2_000  # Each of those makes consumers: kilobytes.
    assert asyncio.run(grown_by(kind, count)) < BYTES_MAX
