"""What every test of the lake leaves behind: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def the_library_keeps_no_thread() -> Iterator[None]:
    """Iceberg's library makes threads as it needs them, and keeps them for ever."""
    yield
    try:
        from pyiceberg.utils.concurrent import ExecutorFactory
    except ImportError:
        return
    if ExecutorFactory._instance is not None:
        ExecutorFactory._instance.shutdown()
        ExecutorFactory._instance = None
