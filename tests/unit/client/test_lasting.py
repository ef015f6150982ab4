"""The short form of `python -m tests.lasting`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.lasting import BYTES_MAX, KINDS, grown_by


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_what_is_done_for_months_takes_no_more_memory(kind: Any) -> None:
    assert asyncio.run(grown_by(kind, 2_000)) < BYTES_MAX
