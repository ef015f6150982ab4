"""The pytest fixtures `jetstream`, a server with its NATS, and `jetstream_cluster`, three nodes.

    def test_orders_are_kept(jetstream):
        jetstream.client.create_stream("orders", subject="orders.>")
        jetstream.client.publish("orders.eu", b"1")
        assert len(jetstream.client.fetch("orders")) == 1

Installing `jetstream-log[server]` is all it takes: pytest finds the plugin by its entry point. Each
process of pytest, as each worker of pytest-xdist, starts its own server, and empties it before each
test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jetstream_client.testing import EphemeralCluster, EphemeralServer


@pytest.fixture(scope="session")
def _jetstream_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EphemeralServer]:
    with EphemeralServer(tmp_path_factory.mktemp("jetstream") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def _jetstream_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EphemeralCluster]:
    with EphemeralCluster(tmp_path_factory.mktemp("jetstream-cluster")) as cluster:
        yield cluster


@pytest.fixture
def jetstream(_jetstream_server: EphemeralServer) -> EphemeralServer:
    """An empty `jetstream_client.testing.EphemeralServer`, started. Tests may stop, kill and start
    it: the next test gets a new one then."""
    _jetstream_server.reset()
    return _jetstream_server


@pytest.fixture
def jetstream_cluster(_jetstream_nodes: EphemeralCluster) -> EphemeralCluster:
    """An empty `jetstream_client.testing.EphemeralCluster` of three nodes, all started. Tests may
    stop, kill and start its nodes."""
    _jetstream_nodes.reset()
    return _jetstream_nodes
