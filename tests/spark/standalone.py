"""Spark's own cluster on this machine: a master and a worker, each a process, which starts two
executors for a session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.spark.support import JVM_OPTIONS
from tests.support.server import free_port_base

START_SECONDS = 300.0
CORES = 2
"""Of the worker; each is an executor, a process of its own, where a session asks for such."""
WORKER_MEMORY = "2g"


class StandaloneCluster:
    """`start`, then sessions at `url`; `close` ends every process, executors included."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port_base(4)
        self.url = f"spark://127.0.0.1:{self.port}"
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        host = ("--host", "127.0.0.1")
        ui, port = self.port + 1, self.port + 2
        self._launch("master.Master", *host, "--port", f"{self.port}", "--webui-port", f"{ui}")
        self._launch(
            "worker.Worker", *host, "--port", f"{port}", "--webui-port", f"{port + 1}",
            "--cores", f"{CORES}", "--memory", WORKER_MEMORY,
            "--work-dir", str(self.folder / "worker"), self.url,
        )  # fmt: skip
        deadline = time.monotonic() + START_SECONDS
        while not self._has_worker(ui):
            assert all(process.poll() is None for process in self._processes), self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.2)

    def _launch(self, name: str, *arguments: str) -> None:
        spark_class = Path(pyspark.__file__).parent / "bin/spark-class"
        environment = {
            **os.environ,
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": JVM_OPTIONS,
            "PYSPARK_PYTHON": sys.executable,
        }
        with (self.folder / "standalone.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(spark_class), f"org.apache.spark.deploy.{name}", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                )
            )

    @staticmethod
    def _has_worker(ui: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ui}/json/", timeout=5) as page:
                return page.read().decode().count('"ALIVE"') == 2  # The master is alive, too.
        except OSError:
            return False

    @property
    def log(self) -> str:
        return (self.folder / "standalone.log").read_text()[-5_000:]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()  # A worker ends its executors.
        for process in self._processes:
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@contextmanager
def running_standalone(folder: Path) -> Iterator[StandaloneCluster]:
    cluster = StandaloneCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
