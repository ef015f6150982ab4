"""Callers without an event loop: the thread that they wait for."""

from __future__ import annotations

import subprocess
import sys

WAITS_FOR_EVER = """
import asyncio, os, signal, threading, time
from jetstream_client._loop_thread import LoopThread

thread = LoopThread()
thread.run(asyncio.sleep(0))
# Another thread gets the signal, so it does not wake the one that waits.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    thread.run(asyncio.sleep(3600))
except KeyboardInterrupt:
    print("interrupted")
"""


def test_a_signal_that_does_not_wake_the_waiting_thread_ends_its_wait_all_the_same() -> None:
    """Python notes a signal that comes just before a wait begins, and waits."""
    done = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_EVER], capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.stderr) == ("interrupted\n", "")
