"""A process that works for the server on files: it is sent one request, and answers in lines."""

from __future__ import annotations

import subprocess
import sys


def spawn(module: str) -> subprocess.Popen[bytes]:
    """Start it, but not through asyncio, which forks: gRPC's handlers would run in the child and
    crash it. This uses vfork and takes a millisecond. Call it on the loop's thread: the process
    ends with the thread that started it."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # What ends or hangs up a terminal is for the server alone.
    )


def send_request(process: subprocess.Popen[bytes], request: bytes) -> None:
    """Send the request. Runs in a thread: the pipe may be full. Raises OSError if it is broken."""
    assert process.stdin is not None
    process.stdin.write(request)
    process.stdin.close()


def clean_up(process: subprocess.Popen[bytes]) -> None:
    """Clean up. Runs in a thread, after the process was killed or has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.wait()
    process.stdout.close()
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass  # The process died before it read its task.
