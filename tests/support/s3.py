"""A server that speaks S3, and one that does wrong on request."""

from __future__ import annotations

import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

import pytest

StoreT = TypeVar("StoreT", bound="StoreServer")

SECRET = "a-secret-that-nobody-may-see"


@contextmanager
def s3_server(bucket: str) -> Iterator[str]:
    """The address of a server with one bucket, in this process and in memory."""
    pytest.importorskip("flask_cors")
    moto = pytest.importorskip("moto.server")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        urllib.request.urlopen(urllib.request.Request(f"{address}/{bucket}", method="PUT")).close()
        yield address
    finally:
        server.stop()


class _Handler(BaseHTTPRequestHandler):
    """Passes requests on to `server.behind`, and answers as `server.fault` says."""

    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        server = self.server
        assert isinstance(server, FaultyServer)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fault = server.meets(self.command, self.path, self.headers)
        if fault == "gone":
            self.close_connection = True
            return
        if fault.startswith("status "):
            self._send(int(fault.split()[1]), server.says.encode(), fault)
            return
        # Headers as they were signed, also the name of this server.
        kept = {name.lower(): value for name, value in self.headers.items()}
        kept.setdefault("content-type", "application/octet-stream")  # Else moto reads a form.
        request = urllib.request.Request(
            f"{server.behind}{self.path}", body or None, kept, method=self.command
        )
        try:
            with urllib.request.urlopen(request) as response:
                status, data = response.status, response.read()
        except urllib.error.HTTPError as error:
            with error:
                status, data = error.code, error.read()
        if fault == "late":
            server.released.wait(1)
        if fault == "gone after":
            server.has_passed()
            self.close_connection = True
        elif fault == "fail after":
            self._send(500, b"it may have been written", fault)
        else:
            self._send(status, data, fault)

    def _send(self, status: int, data: bytes, fault: str) -> None:
        server = self.server
        assert isinstance(server, FaultyServer)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Last-Modified", "Sun, 29 Nov 2026 10:00:00 GMT")
        self.send_header("ETag", '"1"')
        if status == 206:
            start, stop = self.headers["Range"].removeprefix("bytes=").split("-")
            self.send_header("Content-Range", f"bytes {start}-{stop}/1000000")
        self.end_headers()
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif fault == "slow":
            self.wfile.write(data[:1])
            server.released.wait(30)
            self.close_connection = True
        else:
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


class StoreServer(ThreadingHTTPServer):
    """A store on loopback. released: set at its end; answers that take long wait for it."""

    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.released = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has given up is no error."""


@contextmanager
def serving(server: StoreT) -> Iterator[StoreT]:
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join()


class FaultyServer(StoreServer):
    """fault: "", "status N" (instead of asking the server behind), "gone" (without an answer),
    "fail after" and "gone after" (having asked it), "cut", "slow", "late" (by a second)."""

    def __init__(self, behind: str) -> None:
        super().__init__(_Handler)
        self.behind = behind
        self.fault = ""
        self.says = ""

    def meets(self, command: str, path: str, headers: Message) -> str:
        """The fault that this request meets."""
        return self.fault

    def has_passed(self) -> None:
        """The server behind has done what is not answered."""


def faulty_server(behind: str) -> AbstractContextManager[FaultyServer]:
    return serving(FaultyServer(behind))
