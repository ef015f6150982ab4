"""A process that signals itself while it handles records; prints how many it has handled.

python -m tests.integration.signalled_worker SERVERS SOURCE SIGNAL
"""

from __future__ import annotations

import os
import signal
import sys
import time

from jetstream_client import Client, Message

AT_OFFSET = 4


def main(servers: str, source: str, number: int) -> None:
    def unheard(*_: object) -> None:
        raise AssertionError("it was for process()")

    handled: list[int] = []

    def handler(message: Message) -> None:
        if message.offset == AT_OFFSET:
            os.kill(os.getpid(), number)
            while signal.getsignal(number) is not unheard:  # The first one was heard.
                time.sleep(0.001)
        handled.append(message.offset)

    signal.signal(number, unheard)
    with Client(servers, timeout=60) as client:
        done = client.process(source, handler, cursor="p", concurrency=1)
    assert done.records == len(handled)
    assert signal.getsignal(number) is unheard
    print(done.records)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
