"""The entry points of the commands `jetstream` and `jetstream-server`, before any of their code is
imported.

Imports take a good part of a second, and in Python Ctrl-C during an import prints a traceback. So
this module first arranges that Ctrl-C ends the process at once and silently, until the command is
loaded and decides itself. For that, it imports nothing that Python has not loaded already.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def client() -> None:
    """`jetstream`."""
    end_at_interrupt()
    from jetstream_client.cli.entry import main

    main()


def server() -> None:
    """`jetstream-server`. SIGHUP, which ends a process that does not expect it, waits until the
    server can take it."""
    end_at_interrupt()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from jetstream_server.node.entry import main

    main()


def end_at_interrupt() -> None:
    """Let Ctrl-C end this process, unless its parent had Ctrl-C ignored (`nohup`, `&`)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
