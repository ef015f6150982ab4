"""HTTP: `/healthz` (the process runs), `/readyz` (it serves; else why not), `/metrics`."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

Readiness = Callable[[], list[str]]
"""The reasons why this node should not be sent work; empty: it is ready."""

_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpServer:
    """`start` listens, `stop` closes."""

    def __init__(self, readiness: Readiness, collectors: Iterable[Collector]) -> None:
        self._readiness = readiness
        self._metrics = CollectorRegistry()
        for collector in collectors:
            self._metrics.register(collector)
        self._runner: web.AppRunner | None = None

    async def start(self, host: str, port: int) -> None:
        """Raises OSError when the address cannot be listened on."""
        application = web.Application(client_max_size=64 * 1024)
        application.router.add_get("/healthz", self._healthz)
        application.router.add_get("/readyz", self._readyz)
        application.router.add_get("/metrics", self._metrics_text)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port).start()

    async def stop(self) -> None:
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
