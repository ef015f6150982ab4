"""What the allocator keeps for the next batch."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

BUFFERS = """
import resource, sys
if sys.argv[1] == "kept":
    from jetstream_protocol.memory import keep_freed_memory
    keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def use():
    buffers = [b"x" * 300_000 for _ in range(8)]
use()
before = faults()
for _ in range(20):
    use()
print(faults() - before)
"""


def page_faults(which: str) -> int:
    command = [sys.executable, "-c", BUFFERS, which]
    return int(subprocess.run(command, check=True, timeout=60, capture_output=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_large_buffers_that_are_made_again_cost_no_page_faults() -> None:
    assert page_faults("kept") * 10 < page_faults("as usual")


CALLS = """
import resource
from jetstream_protocol.memory import keep_freed_memory
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    keep_freed_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have other rules")
def test_further_calls_clear_no_memory() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CALLS], check=True, timeout=60, capture_output=True
    )
    assert int(done.stdout) < 500


SHORT_OF_MEMORY = """
import resource, sys
from jetstream_protocol.fitting import Fitting
long = [b'{"a": "' + 5_000_000 * b"\\\\u0041" + b'"}']
fitting = Fitting("a timestamp")
limits = resource.getrlimit(resource.RLIMIT_AS)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 50_000_000, limits[1]))
try:
    fitting.misfits(long)
except MemoryError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_AS, limits)
print(len(fitting.misfits(long)), len(fitting.misfits([b"{}"])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux how much memory it has")
def test_a_schema_is_checked_again_once_there_is_memory() -> None:
    command = [sys.executable, "-c", SHORT_OF_MEMORY]
    found = subprocess.run(command, check=True, timeout=60, capture_output=True, text=True).stdout
    assert found == "the columns are too large\n1 0\n"
