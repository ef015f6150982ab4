"""Where the commands `jetstream` and `jetstream-server` begin, before anything of them is imported.

Imports take a good part of a second, and Ctrl-C in one of them is a traceback in Python. So the
first thing done is to say what Ctrl-C means: the end, at once and without a word, until the command
is there and knows better. Nothing but what Python has loaded already is imported for that.
"""

from __future__ import annotations

import os
import signal

INTERRUPTED = 130


def client() -> None:
    """`jetstream`."""
    end_at_interrupt()
    from jetstream_client.cli import main

    main()


def server() -> None:
    """`jetstream-server`."""
    end_at_interrupt()
    from jetstream_server.node.cli import main

    main()


def end_at_interrupt() -> None:
    """Ctrl-C ends this process; not where whoever started it had Ctrl-C ignored (`nohup`, `&`)."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
