"""Real Spark for tests: one local session for the package, or none where there is no Java.

The session's JVM ends with the package's last test. Workers must be this Python: `python3` from
PATH, Spark's default, need not have the connector.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.spark.support import Log, SparkSession, local_session
from tests.support.server import ServerProcess, running_server


def has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java") is not None or (
        home is not None and (Path(home) / "bin/java").exists()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "Spark needs Java and there is none: scripts/java installs it, or set JAVA_HOME"
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            # Whoever comes first also waits for a JVM to start and to warm up.
            item.add_marker(pytest.mark.timeout(400))
        if not has_java():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with local_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for the package; each test uses streams of its own."""
    with running_server(tmp_path_factory.mktemp("server") / "data") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc) as client:
        yield client


@pytest.fixture
def log(server: ServerProcess, client: Client, request: pytest.FixtureRequest) -> Log:
    """An empty stream of the test's own."""
    name = request.node.name.partition("[")[0].removeprefix("test_")[:80]
    return Log.create(server.grpc, client, name)


@pytest.fixture(autouse=True, scope="session")
def python_for_spark() -> Iterator[None]:
    before = os.environ.get("PYSPARK_PYTHON")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    yield
    if before is None:
        del os.environ["PYSPARK_PYTHON"]
    else:
        os.environ["PYSPARK_PYTHON"] = before
