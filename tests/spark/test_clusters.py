"""Spark over a log of three nodes: a leader is killed in the middle of a batch read, another in the
middle of a streaming query whose driver is killed, too. The query goes on in the session of the
other tests.

It is one test, for each start of a driver takes seconds of both processors.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from jetstream_client import Client, UnavailableError, UnknownOutcomeError
from tests.spark.driver import query
from tests.spark.support import publish, until
from tests.support.cluster import TestCluster, running_cluster

TREE = Path(__file__).parents[2]
STREAM = "orders"
RECORDS = 10_000
RECORD_BYTES = 4_000
"""Together more than tasks fetch ahead, so that the kill meets unread records."""
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def log_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        with Client(cluster.servers, timeout=60) as client:
            client.create_stream(STREAM, f"{STREAM}.>", replicas=3)
        yield cluster


@contextmanager
def driver(jobs: str, servers: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    arguments = [sys.executable, "-m", "tests.spark.driver", jobs, servers, STREAM]
    with (folder / "driver.log").open("ab") as log:
        process = subprocess.Popen(
            [*arguments, str(folder)],
            cwd=TREE,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # The session's JVM is of the same session; neither may outlive the test.
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError((folder / "driver.log").read_text()[-6_000:])
        time.sleep(0.05)


def kill_leader(cluster: TestCluster) -> int:
    leader = int(cluster.describe(STREAM).stream.leader)
    cluster.kill(leader)
    return leader


@pytest.mark.timeout(1200)
def test_each_record_is_read_once_when_leaders_are_killed_and_then_the_driver(
    spark: SparkSession, log_cluster: TestCluster, tmp_path: Path
) -> None:
    value = b"x" * RECORD_BYTES
    publish(log_cluster.servers, f"{STREAM}.eu", [value] * RECORDS, run="before")
    done = threading.Event()
    publisher = threading.Thread(target=publish_until, args=(log_cluster, done), daemon=True)
    killed = -1

    def batches() -> list[Path]:
        return sorted(tmp_path.glob("batch-*.json"))

    def offsets() -> list[int]:
        return [offset for path in batches() for offset in json.loads(path.read_text())]

    try:
        with driver("batch,stream", log_cluster.servers, tmp_path) as process:
            wait_until((tmp_path / "reading").exists, process, tmp_path)
            killed = kill_leader(log_cluster)
            (tmp_path / "killed").touch()
            wait_until((tmp_path / "offsets.json").exists, process, tmp_path)
            read_at_once = json.loads((tmp_path / "offsets.json").read_text())
            assert sorted(read_at_once) == list(range(RECORDS))

            log_cluster.restart(killed)
            log_cluster.wait_for_isr(STREAM, log_cluster.nodes, 60.0)
            publisher.start()
            wait_until(lambda: len(batches()) >= 2, process, tmp_path)
            killed = kill_leader(log_cluster)
            before = len(batches())
            wait_until(lambda: len(batches()) >= before + 3, process, tmp_path)
        # The driver and its JVM are gone, without a goodbye.
        done.set()
        publisher.join(60)
        with Client(log_cluster.servers, timeout=60) as client:
            end = client.offset_at(STREAM, "latest")
        going_on = query(spark, log_cluster.servers, STREAM, tmp_path)
        try:
            until(lambda: len(offsets()) >= end, "all records", going_on)
        finally:
            going_on.stop()
        assert sorted(offsets()) == list(range(end))
    finally:
        done.set()


def publish_until(cluster: TestCluster, done: threading.Event) -> None:
    """A little all the time, so that the query always has something to do.

    What nobody listened to while a leader was dead has an unknown outcome; what is stored counts.
    """
    while not done.is_set():
        with suppress(UnknownOutcomeError, UnavailableError):
            publish(cluster.servers, f"{STREAM}.us", [b"more"] * 50, timeout=10.0)
        done.wait(0.1)
