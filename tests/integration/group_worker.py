"""A member of a consumer group, as a process: notes each record that it has handled.

python -m tests.integration.group_worker SERVERS SOURCE GROUP
"""

from __future__ import annotations

import signal
import sys
import time

from jetstream_client import Client

SESSION_SECONDS = 2.0
HANDLING_SECONDS = 0.002


def main(servers: str, source: str, group: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with (
        Client(servers, timeout=20) as client,
        client.consume_group(source, group, session_timeout=SESSION_SECONDS) as consumer,
    ):
        for message in consumer:
            time.sleep(HANDLING_SECONDS)
            print(message.text, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
