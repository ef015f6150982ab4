"""The allocator's arenas, and what the garbage collector looks at."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys, threading
if sys.argv[1] == "few":
    from jetstream_server.node.memory import keep_few_arenas
    keep_few_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
barrier = threading.Barrier(12)
def allocate():
    barrier.wait()
    for _ in range(50):
        libc.malloc(ctypes.c_size_t(20_000))
    barrier.wait()
threads = [threading.Thread(target=allocate) for _ in range(12)]
for thread in threads: thread.start()
for thread in threads: thread.join()
libc.fopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(libc.fopen(sys.argv[2].encode(), b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


def arenas(which: str, folder: Path) -> int:
    found = folder / which
    subprocess.run([sys.executable, "-c", PROGRAM, which, str(found)], check=True, timeout=60)
    return found.read_text().count("<heap nr=")


@pytest.mark.skipif(sys.platform != "linux", reason="the server runs on Linux")
def test_many_threads_share_two_arenas(tmp_path: Path) -> None:
    assert arenas("few", tmp_path) <= 2 < arenas("as usual", tmp_path)


def test_what_a_node_has_when_it_has_started_is_not_looked_at_again() -> None:
    program = (
        "import gc\n"
        "from jetstream_server.node.memory import spare_collector\n"
        "kept = [[] for _ in range(50_000)]\n"
        "spare_collector()\n"
        "assert len(gc.get_objects()) < 100, len(gc.get_objects())\n"
        "fresh = []; fresh.append(fresh); del fresh\n"
        "assert gc.collect() >= 1\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
