"""Ports on this machine: which are free, and who listens. Linux only: it reads /proc."""

from __future__ import annotations

import os
import socket
from pathlib import Path

_LISTENING = "0A"
"""The state of a socket in /proc/net/tcp."""


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now; what a server has just left is free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def listens(pid: int, port: int) -> bool:
    """Whether it is this process that listens on the port: an answer may be anybody's."""
    sockets = set()
    for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_, inode = row.split()[:10]
        if state == _LISTENING and int(local.rpartition(":")[2], 16) == port:
            sockets.add(f"socket:[{inode}]")
    descriptors = f"/proc/{pid}/fd"
    try:
        return any(_target(f"{descriptors}/{name}") in sockets for name in os.listdir(descriptors))
    except OSError:  # The process has ended.
        return False


def _target(descriptor: str) -> str:
    try:
        return os.readlink(descriptor)
    except OSError:  # Closed since.
        return ""
