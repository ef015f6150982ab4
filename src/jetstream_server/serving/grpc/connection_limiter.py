"""Limits the connections of each address to the gRPC port; gRPC itself limits all of them together.

gRPC does not report a connection without a call. So this module checks the sockets of the process.
That costs some microseconds for each, and is done only while one address could have too many.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import Counter
from collections.abc import Callable

import structlog

from jetstream_server.log_throttle import LogThrottle
from jetstream_server.serving.grpc.close_peer import each_connection

CONNECTIONS_MAX = 4096
"""Upper bound for the port. Further connections are closed at once."""
_LOOK_SECONDS = 2.0

logger = structlog.get_logger("jetstream.api")


class ConnectionLimiter:
    """port: our own. connections_per_address: of one host; above it the connections with the
    highest descriptors are closed, which usually are the newest."""

    def __init__(
        self,
        port: int,
        connections_per_address: int,
        refused: Counter[str] | None = None,
        files_open: Callable[[], int] = lambda: 0,
    ) -> None:
        """refused: counts the closed connections. files_open: how many descriptors of the process
        belong to files."""
        self._refused = Counter() if refused is None else refused
        self._files_open = files_open
        self._port = port
        self._most = connections_per_address
        self._throttle = LogThrottle()

    def look(self) -> None:
        """Close the connections above the limit."""
        files = self._files_open()  # Asked first: files that are opened meanwhile count as more.
        if len(os.listdir("/proc/self/fd")) - files <= self._most:
            return
        counts: Counter[str] = Counter()

        def count(address: tuple[str, int], sock: socket.socket) -> None:
            host, _ = address
            counts[host] += 1
            if counts[host] > self._most:
                sock.shutdown(socket.SHUT_RDWR)
                self._refused["grpc"] += 1

        each_connection(self._port, count)
        for host, number in counts.items():
            if number > self._most and self._throttle.is_due("too_many_connections", host):
                logger.warning(
                    "too_many_connections", peer=host, connections_per_address=self._most
                )

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self.look()
