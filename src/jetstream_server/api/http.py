"""HTTP: `/healthz` (the process runs), `/readyz` (it serves; else why not), `/metrics`.

At most CONNECTIONS_MAX connections: beyond, the oldest makes room, so that clients that connect and
say nothing never keep one out that asks.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from jetstream_server.accepting import accept_each
from jetstream_server.background import run_in_background

Readiness = Callable[[], list[str]]
"""The reasons why this node should not be sent work; empty: it is ready."""

CONNECTIONS_MAX = 192
AT_ONCE = CONNECTIONS_MAX // 8
"""Taken in one turn of the loop: whoever asks at once is answered before it has to make room."""
LINE_BYTES_MAX = 8190
"""Of a request line, and of a header; aiohttp's own default, said here because it is a limit."""
BACKLOG = 128
_BODY_BYTES_MAX = 1024
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

logger = structlog.get_logger("jetstream.http")


class HttpServer:
    """`start` listens, `stop` closes."""

    def __init__(self, readiness: Readiness, collectors: Iterable[Collector]) -> None:
        self._readiness = readiness
        self._metrics = CollectorRegistry()
        for collector in collectors:
            self._metrics.register(collector)
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: dict[asyncio.Transport, None] = {}
        self._connecting: set[asyncio.Task[None]] = set()

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the address cannot be listened on."""
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_text)
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            auto_decompress=False,  # Nobody reads a body here; unpacking one holds the loop.
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
        )
        await self._runner.setup()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        self._listener.setblocking(False)
        self._accepting = run_in_background(
            accept_each(self._listener, self._take, logger, AT_ONCE), "HTTP"
        )

    def _take(self, sock: socket.socket) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(sock))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        try:
            transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                self._runner.server, sock
            )
        except OSError as error:
            logger.warning("accept_failed", error=str(error))
            sock.close()
            return
        self._connections[transport] = None
        if len(self._connections) > CONNECTIONS_MAX:
            self._make_room()

    def _make_room(self) -> None:
        """Forget connections that have ended; if that is not enough, end the oldest."""
        for transport in [each for each in self._connections if each.is_closing()]:
            del self._connections[transport]
        while len(self._connections) > CONNECTIONS_MAX:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.abort()

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            await asyncio.gather(*self._connecting)  # It takes two turns; then they can be closed.
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._readiness()
        if reasons:
            return web.Response(status=503, text="".join(f"{reason}\n" for reason in reasons))
        return web.Response(text="ready\n")

    async def _metrics_text(self, request: web.Request) -> web.Response:
        body = generate_latest(self._metrics)
        return web.Response(body=body, headers={"Content-Type": _CONTENT_TYPE})
