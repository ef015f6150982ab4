"""Fixtures for tests against real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.api import Api
from tests.support.cluster import TestCluster, running_cluster
from tests.support.server import ServerProcess, running_server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the tests of a module; each test uses streams of its own."""
    with running_server(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    """Three nodes for the tests of a module."""
    with running_cluster(tmp_path_factory.mktemp("cluster") / "nodes") as running:
        yield running


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    api = Api(server.grpc)
    yield api
    api.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc) as client:
        yield client


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server of the test's own, not yet started; killed at the end."""
    server = ServerProcess(tmp_path / "data")
    yield server
    server.kill()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """For a stream of the test's own, on a server or a cluster that others use, too."""
    return re.sub(r"\W+", "_", request.node.name.removeprefix("test_"))[:100].strip("_")
