"""Run a program that dies with its parent, even when that is killed with -9. Linux.

    python -I -S die_with_parent.py PARENT_PID PROGRAM ARGUMENT…

A program of its own rather than a `preexec_fn`: between fork and exec a process with threads (gRPC
has some) may not safely run Python. The kernel keeps the wish across `exec`. It watches the
*thread* that started us: start from one that lives as long as the process.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program, *arguments = sys.argv[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(parent):
        sys.exit("the parent has died already")  # before the kernel knew that we care
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
