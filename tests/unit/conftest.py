"""What the unit tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetstream_server.log.disk import OsDisk


@pytest.fixture
def os_disk() -> Iterator[OsDisk]:
    disk = OsDisk()
    yield disk
    disk.close()
