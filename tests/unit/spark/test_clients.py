"""The clients of an executor's Python workers."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import gc
from jetstream_client import ClientConfig
from pyspark_jetstream.clients import client_for

config = ClientConfig.of("localhost:1")
client = client_for(config)
frozen = gc.get_freeze_count()
assert client_for(config) is client, "another task has a client of its own"
assert frozen > 10_000, f"{frozen} objects are never looked at again"
assert gc.get_freeze_count() == frozen, "what tasks make is frozen, too"
"""


def test_a_worker_keeps_its_client_and_collects_no_more_what_it_has_loaded() -> None:
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, timeout=60)
