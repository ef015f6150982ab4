"""The pytest fixture `jetstream`: a real server with its NATS, of each test's own.

    def test_orders_are_kept(jetstream):
        jetstream.client.create_stream("orders", subject="orders.>")
        jetstream.client.publish("orders.eu", b"1")
        assert len(jetstream.client.fetch("orders")) == 1

Installing `jetstream-log[server]` is all it takes: pytest finds the plugin by its entry point.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client.testing import EphemeralServer


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[EphemeralServer]:
    """A started `jetstream_client.testing.EphemeralServer`; its data goes with `tmp_path`."""
    with EphemeralServer(tmp_path / "jetstream") as server:
        yield server
