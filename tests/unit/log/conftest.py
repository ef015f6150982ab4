"""The disk of the log's tests. Where a disk fails or waits, the module has its own."""

from __future__ import annotations

import pytest

from tests.support.log_disk import MemoryDisk


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()
