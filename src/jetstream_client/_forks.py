"""Whose process it is: a fork has the memory of a client, and not its thread."""

from __future__ import annotations

import os

from jetstream_protocol.errors import InvalidRequestError


def check_process(process: int) -> None:
    """Raise InvalidRequestError in another process than that one."""
    if os.getpid() != process:
        raise InvalidRequestError(
            "this client was made in another process, of which this one is a fork, and gRPC does "
            "not work in one: start processes by multiprocessing's 'spawn', and make a client there"
        )
