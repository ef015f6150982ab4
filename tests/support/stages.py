"""The stages of tests, as fixtures with parameters, for a module or a conftest:
`cluster = cluster_stage(4)`. What is really another stage is written where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import pytest

from tests.support.cluster import TestCluster, running_cluster
from tests.support.leaf import LeafServer
from tests.support.secured import SecuredServer, secured_server
from tests.support.server import ServerProcess, running_server

Scope = Literal["function", "module", "package"]


def server_stage(scope: Scope = "module") -> Any:
    """One server; each test uses its own streams."""

    @pytest.fixture(scope=scope)
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
        with running_server(tmp_path_factory.mktemp("server") / "data") as running:
            yield running

    return server


def server_on_disk_stage() -> Any:
    """The same for a module, its data on a disk."""

    @pytest.fixture(scope="module")
    def server(folder_on_disk: Path) -> Iterator[ServerProcess]:
        with (
            TemporaryDirectory(dir=folder_on_disk) as folder,
            running_server(Path(folder, "data")) as running,
        ):
            yield running

    return server


def secured_stage() -> Any:
    """A server that asks who calls, with its first administrator, for the tests of a module."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
        with secured_server(tmp_path_factory.mktemp("secured") / "data") as running:
            yield running

    return server


def hub_stage(settings: str = "") -> Any:
    """A NATS server that takes leaf links, for a module. settings: lines of its configuration."""

    @pytest.fixture(scope="module")
    def hub() -> Iterator[LeafServer]:
        with LeafServer(settings) as nats_server:
            yield nats_server

    return hub


def cluster_stage(
    nodes: int = 3,
    racks: Sequence[str] = (),
    scope: Scope = "module",
    kind: type[TestCluster] = TestCluster,
) -> Any:
    """A running cluster. racks: of the nodes, if they have any."""

    @pytest.fixture(scope=scope)
    def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
        folder = tmp_path_factory.mktemp("cluster") / "nodes"
        with running_cluster(folder, nodes, racks, kind) as running:
            yield running

    return cluster
