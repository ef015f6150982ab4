"""A server that speaks S3, and sends what nobody may be sent."""

from __future__ import annotations

from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler

from tests.support.s3 import StoreServer, serving

PIECE = bytes(1024 * 1024)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, HostileStore)
        is_listing = "list-type" in self.path
        if server.does == "error page":
            self._endless(400)
        elif is_listing and server.does == "listing":
            self._endless(200)
        elif is_listing:
            self._send(200, server.page.encode())
        elif server.does == "long object":
            self._headers(200, 1 << 40)
            self._pour()
        elif server.does == "more than the range":
            start = self.headers["Range"].removeprefix("bytes=").split("-")[0]
            self._headers(206, 1 << 40, f"bytes {start}-{int(start) + (1 << 40) - 1}/{1 << 41}")
            self._pour()
        elif server.does == "whole instead of a range":
            self._send(200, bytes(100))
        elif server.does == "slow":
            self._headers(200, 1000)
            while not server.released.wait(0.05):
                self.wfile.write(b"x")
        else:
            self._send(404, b"")

    do_POST = do_DELETE = do_PUT = do_GET

    def _headers(self, status: int, length: int, content_range: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 10:00:00 GMT")
        self.send_header("ETag", '"1"')
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def _send(self, status: int, data: bytes) -> None:
        self._headers(status, len(data))
        self.wfile.write(data)

    def _endless(self, status: int) -> None:
        self.send_response(status)
        self.end_headers()
        self._pour()

    def _pour(self) -> None:
        server = self.server
        assert isinstance(server, HostileStore)
        self.close_connection = True
        try:
            while not server.released.is_set() and server.poured < server.pours:
                self.wfile.write(PIECE)
                server.poured += len(PIECE)
        except OSError:
            pass  # Whoever asked has had enough.

    def log_message(self, format: str, *args: object) -> None:
        pass


class HostileStore(StoreServer):
    """does: what. page: of a listing. poured: bytes that were taken from it, at most `pours`."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.does = self.page = ""
        self.poured, self.pours = 0, 1 << 34


def hostile_store() -> AbstractContextManager[HostileStore]:
    return serving(HostileStore())
