"""HTTP: its listener, and the table of its paths. pages.py and api.py answer.

At most CONNECTIONS_MAX connections. Above that, the oldest one of the address with most connections
is closed, so that silent clients never keep others out. The work for a request ends with its
connection. A change may then be made or not, as with every answer that is lost.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from aiohttp import web

from jetstream_protocol.errors import CODES, JetstreamError, UnauthenticatedError
from jetstream_server.background import run_in_background
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.acceptor import accept_each
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.certificates import reason as tls_reason
from jetstream_server.net.frame_socket import peer_of
from jetstream_server.security.access_control import AccessControl
from jetstream_server.serving.http.guard import admit
from jetstream_server.serving.http.hosts import OwnHosts

CONNECTIONS_MAX = 192
AT_ONCE = CONNECTIONS_MAX // 8
"""Connections accepted per iteration of the loop: a client that sends at once is answered before it
is closed."""
LINE_BYTES_MAX = 8190
"""Limit of a request line and of a header. Also aiohttp's default, stated because it is a limit."""
BACKLOG = 128
HANDSHAKE_SECONDS = 10.0
"""Time for the TLS handshake, as on the other ports."""
API_PREFIX = "/api/v1/"
_BODY_BYTES_MAX = 16 * 1024
"""Upper bound on the body of a change through the API."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = structlog.get_logger("jetstream.http")


@dataclass(frozen=True, slots=True)
class Route:
    """One path. security/requirements.py says who may request it."""

    path: str
    handler: Handler
    method: str = "GET"


class HttpServer:
    """`start` listens, `stop` closes."""

    def __init__(
        self,
        routes: Sequence[Route],
        access: AccessControl,
        certificates: Certificates | None = None,
        refused: Counter[str] | None = None,
        hosts: OwnHosts | None = None,
    ) -> None:
        """certificates: for TLS on the port. refused: counts connections closed to make room.
        hosts: the names under which API_PREFIX is answered; None: any."""
        self._hosts = hosts
        self._routes = routes
        self._access = access
        self._certificates = certificates
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()
        self._connections: dict[asyncio.Transport, str] = {}  # and the peer's host
        self._refused = Counter() if refused is None else refused
        self._connecting: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        for route in self._routes:
            if route.method == "GET":
                application.router.add_get(route.path, self._checked(route))
            else:
                application.router.add_route(route.method, route.path, self._checked(route))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            handler_cancellation=True,
            auto_decompress=False,  # Decompressing a body would block the loop.
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
        if len(self._connecting) >= CONNECTIONS_MAX:
            next(iter(self._connecting)).cancel()  # The oldest has had the most time for TLS.
        task = asyncio.get_running_loop().create_task(self._connect(sock))
        self._connecting[task] = None
        task.add_done_callback(self._connecting.pop)

    async def _connect(self, sock: socket.socket) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        tls, peer = self._certificates, peer_of(sock)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
                    self._runner.server, sock, ssl=None if tls is None else tls.http
                )
        except ssl.SSLError as error:
            if self._throttle.is_due("tls_refused", peer):
                logger.info("tls_refused", peer=peer, reason=tls_reason(error))
            sock.close()
            return
        except OSError as error:
            if self._throttle.is_due("accept_failed", type(error).__name__):
                logger.warning("accept_failed", error=str(error) or "TLS took too long")
            sock.close()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        self._connections[transport] = peer
        if len(self._connections) > CONNECTIONS_MAX:
            self._make_room()

    def _make_room(self) -> None:
        """Forget connections that have ended. If that is not enough, end the oldest one of the
        address with most connections."""
        for transport in [each for each in self._connections if each.is_closing()]:
            del self._connections[transport]
        while len(self._connections) > CONNECTIONS_MAX:
            (host, _), *_ = Counter(self._connections.values()).most_common(1)
            oldest = next(each for each, peer in self._connections.items() if peer == host)
            del self._connections[oldest]
            self._refused["http"] += 1
            oldest.abort()

    async def stop(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            for task in self._connecting:
                task.cancel()
            await asyncio.gather(*self._connecting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()

    def _checked(self, route: Route) -> Handler:
        """Check the caller's rights before anything is done. Every request goes through here."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                if self._hosts is not None and route.path.startswith(API_PREFIX):
                    self._hosts.check(request.headers.get("Host"))
                await admit(self._access, request, route.path)
                return await route.handler(request)
            except JetstreamError as error:
                return error_response(error)

        return handle


def error_response(error: JetstreamError) -> web.Response:
    """The error in the form of the other ports (docs/protocol.md, "Errors")."""
    body = {"error": {"code": error.code, "message": error.message}}
    status = CODES[type(error)].nats_code
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthenticatedError) else None
    return web.json_response(body, status=status, headers=headers)
