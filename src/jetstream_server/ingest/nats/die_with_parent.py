"""Runs a program that dies with its parent, even if the parent is killed with -9. Linux.

    python -I -S die_with_parent.py PARENT_PID PROGRAM ARGUMENT…

A separate program, not a `preexec_fn`: a process with threads (gRPC has some) cannot safely run
Python between fork and exec. The setting survives `exec`. The kernel watches the *thread* that
started this process: start it from a thread that lives as long as the parent.
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
        sys.exit("the parent has died already")  # before the setting took effect
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main()
