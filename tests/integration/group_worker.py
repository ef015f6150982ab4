"""A member of a consumer group, as a process: notes each record that it has handled.

    python -m tests.integration.group_worker SERVERS SOURCE GROUP

While the file GROUP_WORKER_HOLD is there, it handles a few only.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from jetstream_client import Client

SESSION_SECONDS = 2.0
HANDLING_SECONDS = 0.002
HOLD = "GROUP_WORKER_HOLD"
HANDLED_MAX = 5


def main(servers: str, source: str, group: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        Client(servers, timeout=20) as client,
        client.consume_group(source, group, session_timeout=SESSION_SECONDS) as consumer,
    ):
        for number, message in enumerate(consumer):
            time.sleep(HANDLING_SECONDS)
            while number >= HANDLED_MAX and os.path.exists(os.environ.get(HOLD, "")):
                time.sleep(HANDLING_SECONDS)
            print(message.text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
