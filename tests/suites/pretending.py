"""A program named `nats-server` that starts ours: for suites that start a NATS server themselves.

    suite ─(starts, and kills)─> nats-server ─(its arguments)─> Pretender ─> a real NATS server
                                                                        └──> ours, on a leaf link

The program only tells its arguments over a socket, and waits. When it has ended, whichever way,
both servers are killed. Clients that name no domain reach ours (`default_js_domain`). The
monitoring port, which suites ask whether the server is ready, is opened once ours takes requests.
"""

from __future__ import annotations

import argparse
import asyncio
import http.server
import json
import re
import socket
import socketserver
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.jetstream_api import api_server, until_it_takes_every_setting
from tests.support.leaf import DOMAIN, LeafServer, asking

_PROGRAM = """#!{python} -IS
import json, os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({path!r})
asked.sendall(json.dumps([str(os.getpid()), *sys.argv[1:]]).encode() + b"\\n")
asked.recv(1)
"""


_INBOXES = ("_INBOX.>", "_INBOX_custom.>")
"""One test has inboxes of its own."""


class Pretender:
    """Starts the servers for each program, while it is entered. folder: has the program then, and
    for each that is ready a file `asked.PID.ready`. delivered: subjects to which messages may be
    pushed, beside inboxes."""

    def __init__(self, folder: Path, delivered: Iterable[str] = ()) -> None:
        path = str(folder / "asked")
        self._server = _Server(path, _Asked)
        self._server.ports = defaultdict(threading.Lock)
        self._server.programs = {}
        self._server.inboxes = json.dumps([*_INBOXES, *delivered])
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        program = folder / "nats-server"
        program.write_text(_PROGRAM.format(python=sys.executable, path=path))
        program.chmod(0o755)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        for program in tuple(self._server.programs):  # A suite may have left some.
            program.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A suite may start a server while another runs. inboxes: where answers may go. ports: each is
    held until its servers have ended, which takes longer than the program's own end. programs:
    their connections."""

    inboxes: str
    programs: dict[socket.socket, None]
    ports: defaultdict[int, threading.Lock]


class _Asked(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        parser = argparse.ArgumentParser("nats-server")
        parser.add_argument("-c", "--config", type=Path)
        parser.add_argument("-p", "--port", type=int, default=4222)
        parser.add_argument("-m", "--http_port", type=int)
        parser.add_argument("-sd", "--store_dir", type=Path)
        pid, *arguments = json.loads(self.rfile.readline())
        options, _ = parser.parse_known_args(arguments)
        with ExitStack() as ending:
            self.server.programs[self.request] = None
            ending.callback(self.server.programs.pop, self.request)
            has_jetstream = True
            hub = LeafServer(f'default_js_domain: {{ "$G": {DOMAIN} }}')
            if options.config is not None:
                options.port = int(_setting(options.config, "port"))
                store = _setting(options.config, "store_dir")
                options.store_dir = Path(store) if store else None
                has_jetstream = bool(store)
            hub.port = options.port
            ending.enter_context(self.server.ports[options.port])
            ending.enter_context(hub)
            if has_jetstream:
                folder = options.store_dir
                if folder is None:
                    made = ending.enter_context(tempfile.TemporaryDirectory(prefix="pretended-"))
                    folder = Path(made)
                more = {"JETSTREAM_INGEST__ACK_SUBJECTS": self.server.inboxes}
                ending.enter_context(api_server(folder / "data", hub, more=more))
                asyncio.run(_until_ready(hub.url))
            if options.http_port is not None:
                monitoring = http.server.HTTPServer(("127.0.0.1", options.http_port), _Monitoring)
                ending.callback(monitoring.server_close)
                threading.Thread(target=monitoring.serve_forever, daemon=True).start()
                ending.callback(monitoring.shutdown)
            Path(f"{self.server.server_address}.{pid}.ready").touch()
            self.rfile.read(1)


def _setting(config: Path, name: str) -> str:
    found = re.search(rf"^\s*{name}\s*[:=]\s*\"?([^\s\",}}]+)", config.read_text(), re.MULTILINE)
    return "" if found is None else found[1]


async def _until_ready(url: str) -> None:
    async with asking(url) as client:
        await until_it_takes_every_setting(client)


class _Monitoring(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""
