"""What nats-py's tests take from `tests.utils`, which its source package does not have."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import tempfile
import time
import unittest
import urllib.request
from collections.abc import Callable
from typing import Any

PORT, MONITORING = 4222, 8222
START_SECONDS = 150.0


class _Server:
    """The program `nats-server` of this folder. It finds its messages again when it is started
    again."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._store = tempfile.TemporaryDirectory(prefix="pretended-")

    def start(self) -> None:
        command = [
            "./nats-server",
            "-p",
            f"{PORT}",
            "-m",
            f"{MONITORING}",
            "-js",
            "-sd",
            self._store.name,
        ]
        self._process = subprocess.Popen(command)
        try:
            self._wait()
        except BaseException:
            self.stop()  # It would keep the ports from all that come after it.
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{MONITORING}/varz", timeout=5).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "the server did not start"
                time.sleep(0.02)

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()


class SingleJetStreamServerTestCase(unittest.TestCase):
    def setUp(self) -> None:
        self.server_pool = [_Server()]
        self.server_pool[0].start()

    def tearDown(self) -> None:
        self.server_pool[0].stop()


SingleJetStreamServerLimitsTestCase = SingleJetStreamServerTestCase


_SLOWER = 6
"""Machines are busy: what passes in time or not must not depend on that."""


def _within(seconds: float) -> Callable[[Any], Any]:
    def decorate(test: Callable[..., Any]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*arguments: object) -> None:
            asyncio.run(asyncio.wait_for(test(*arguments), _SLOWER * seconds))

        return run

    return decorate


async_test, async_long_test, async_debug_test = _within(5), _within(20), _within(3600)
