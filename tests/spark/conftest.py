"""Real Spark for tests: one local session for the package, or none where there is no Java. Tests
without a session run in any case.

The session's JVM ends with the package's last test. Workers must be this Python: `python3` from
PATH, Spark's default, need not have the connector.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyspark
import pytest

from examples.spark.__main__ import has_java
from jetstream_client import Client
from pyspark_jetstream import clients
from tests.spark.preloaded import preloaded_python
from tests.spark.support import (
    JARS,
    TABLE_FORMATS,
    Log,
    SparkSession,
    local_session,
    stderr_to,
)
from tests.support.server import ServerProcess
from tests.support.stages import server_stage

EVENTS = "events"
"""The folder of the session's event log, beside what it says."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = "Spark needs Java and there is none: scripts/java installs it, or set JAVA_HOME"
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        if item.get_closest_marker("timeout") is None:
            # Whoever comes first also waits for a JVM to start and to warm up.
            item.add_marker(pytest.mark.timeout(400))
        if pyspark.__version__ < "4.2":
            # It leaves the sockets of `collect` to the garbage collector.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
        needs_java = isinstance(item, pytest.Function) and "spark" in item.fixturenames
        if needs_java and not has_java():
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="package")
def spark_said(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of what the session's JVM and its Python processes write to stderr."""
    return tmp_path_factory.mktemp("spark") / "stderr"


@pytest.fixture(scope="package")
def spark(spark_said: Path) -> Iterator[SparkSession]:
    events = spark_said.parent / EVENTS
    events.mkdir()
    config = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": events.as_uri()}
    # One plain file that is flushed as events come: a test looks into it.
    config |= {"spark.eventLog.compress": "false", "spark.eventLog.rolling.enabled": "false"}
    with ExitStack() as stack:
        with stderr_to(spark_said):
            lake = {"spark.sql.catalog.lake.warehouse": str(spark_said.parent / "lake")}
            config |= {**TABLE_FORMATS, **lake} if JARS else {}
            python = stack.enter_context(preloaded_python(spark_said.parent))
            stack.enter_context(pytest.MonkeyPatch.context()).setenv("PYSPARK_PYTHON", python)
            session = stack.enter_context(local_session(spark_said.parent, config=config))
        yield session


server = server_stage("package")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def workers_clients_end() -> Iterator[None]:
    """A worker keeps its clients as long as it lives, and freezes what it has loaded. A test that
    does a worker's task itself must not. What the tests' process has frozen stays so."""
    frozen = gc.get_freeze_count()
    yield
    while clients._clients:
        clients._clients.popitem()[1].close()
    if gc.get_freeze_count() > frozen:
        gc.unfreeze()
        gc.collect()
        gc.freeze()


@pytest.fixture
def log(server: ServerProcess, client: Client, request: pytest.FixtureRequest) -> Log:
    """An empty stream of the test's own."""
    name = re.sub(r"\W+", "_", request.node.name.removeprefix("test_"))[:80]
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
