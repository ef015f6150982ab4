"""Fixtures for tests against real processes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.api import Api
from tests.support.following import Questions
from tests.support.server import ServerProcess
from tests.support.stages import cluster_stage, server_stage

server = server_stage()


cluster = cluster_stage()


@pytest.fixture
def api(server: ServerProcess) -> Iterator[Api]:
    api = Api(server.grpc)
    yield api
    api.close()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as client:
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


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Questions:
    """What this process's consumers ask the data plane."""
    return Questions(monkeypatch)
