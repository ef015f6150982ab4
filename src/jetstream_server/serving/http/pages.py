"""The paths for machines: `/healthz` (the process runs), `/readyz` (it serves and has caught up
since its start; else why not), `/metrics`."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from jetstream_protocol.errors import InvalidRequestError
from jetstream_server.serving.http.answer_room import claim
from jetstream_server.serving.http.server import Route
from jetstream_server.serving.metrics.page import CONTENT_TYPE, MetricsPage

Readiness = Callable[[], list[str]]
"""Returns the reasons why this node should not be relied on; empty: it is ready."""

PATTERN_LENGTH_MAX = 500


class Pages:
    """Health, readiness and metrics of one node."""

    def __init__(self, readiness: Readiness, metrics: MetricsPage, notes: Readiness = list) -> None:
        """notes: what /readyz says beside; they do not make the node unready."""
        self._readiness = readiness
        self._notes = notes
        self._metrics = metrics

    def routes(self) -> list[Route]:
        return [
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics_text),
        ]

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        reasons = self._readiness()
        lines = [*(reasons or ["ready"]), *self._notes()]
        return web.Response(
            status=503 if reasons else 200, text="".join(f"{line}\n" for line in lines)
        )

    async def _metrics_text(self, request: web.Request) -> web.Response:
        pattern = request.query.get("streams", "")
        if len(pattern) > PATTERN_LENGTH_MAX:
            raise InvalidRequestError(
                f"streams: a pattern has at most {PATTERN_LENGTH_MAX} characters"
            )
        await claim(request)
        body = await self._metrics.text(pattern)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
