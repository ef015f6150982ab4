"""A process that copies each record of a stream to a subject; to be killed.

python -m tests.integration.process_worker SERVERS SOURCE SUBJECT
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from jetstream_client import Client, Message, Output, PreconditionFailedError


def copied_to(subject: str) -> Callable[[Message], Output]:
    return lambda message: Output(subject, message.value, key=message.key)


def main(servers: str, source: str, subject: str) -> None:
    with Client(servers, timeout=60) as client:
        while True:
            # A commit of the one that was killed before may still be on its way.
            with contextlib.suppress(PreconditionFailedError):
                client.process(
                    source, copied_to(subject), cursor="p", concurrency=4, outstanding_max=50
                )
                return


if __name__ == "__main__":
    main(*sys.argv[1:])
