"""Looks at sockets."""

from __future__ import annotations

import select
import socket


def is_readable(sock: socket.socket, seconds: float = 0.0) -> bool:
    """Whether there is something to receive, or an end, within so many seconds. Unlike `select`,
    this works in a process with more than 1,024 open files."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
