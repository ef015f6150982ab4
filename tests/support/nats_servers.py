"""NATS servers of one cluster, for publishers that speak NATS by hand: one after the other."""

from __future__ import annotations

import socket
import ssl
import time

PATIENCE_SECONDS = 60.0
PAUSE_SECONDS = 0.1


class NatsServers:
    """urls: with commas between them. first: the number of the one that is tried first. tls: for
    servers that require it."""

    def __init__(self, urls: str, first: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        places = [url.rpartition("/")[2].rpartition(":") for url in urls.split(",")]
        self._places = [(host, int(port)) for host, _, port in places]
        self._next = first

    @property
    def are_several(self) -> bool:
        return len(self._places) > 1

    def connect(self, greeting: bytes) -> socket.socket:
        """To the next that takes a connection; sends it `greeting`. Raises OSError after a minute
        without one, and at once if there is only one server."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            place = self._places[self._next % len(self._places)]
            self._next += 1
            try:
                found = self._dial(place)
                found.sendall(greeting)
                return found
            except OSError:
                if not self.are_several or time.monotonic() > deadline:
                    raise
                time.sleep(PAUSE_SECONDS)

    def _dial(self, place: tuple[str, int]) -> socket.socket:
        found = socket.create_connection(place, timeout=5)
        if self._tls is None:
            return found
        try:
            while (byte := found.recv(1)) != b"\n":  # Of INFO; TLS begins after it.
                if not byte:
                    raise ConnectionError("NATS closed the connection")
            return self._tls.wrap_socket(found, server_hostname=place[0])
        except OSError:
            found.close()
            raise
