"""HTTP: its listener, and the table of its paths. pages.py and api.py answer.

connections.py says how many connections there are, and which of them are closed. The work for a
request ends with its connection. A change may then be made or not, as with every answer that is
lost.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from aiohttp import HttpVersion11, web, web_response

from jetstream_protocol.errors import (
    CODES,
    InvalidRequestError,
    JetstreamError,
    MessageTooLargeError,
    NotFoundError,
    UnauthenticatedError,
)
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.log_throttle import LogThrottle
from jetstream_server.net.acceptor import accept_each
from jetstream_server.net.certificates import Certificates
from jetstream_server.net.frame_socket import peer_of
from jetstream_server.net.handshake_turns import HandshakeTurns
from jetstream_server.net.socket_transport import Lingering, SocketTransport
from jetstream_server.net.tls_socket import StreamSocket, TlsError, handshake
from jetstream_server.origins import Strangers, origin_of
from jetstream_server.security.access_control import AccessControl
from jetstream_server.serving.http.answer_room import ROOM, AnswerRoom
from jetstream_server.serving.http.connections import CONNECTIONS_MAX, Connections
from jetstream_server.serving.http.cors import V1, Cors
from jetstream_server.serving.http.guard import admit
from jetstream_server.serving.http.hosts import OwnHosts
from jetstream_server.serving.http.http_requests import (
    check_parameters,
    let_hang_ups_come,
)
from jetstream_server.serving.http.operations import Operation

AT_ONCE = CONNECTIONS_MAX // 8
"""Connections accepted per iteration of the loop: a client that sends at once is answered before it
is closed."""
LINE_BYTES_MAX = 8190
"""Limit of a request line and of a header. Also aiohttp's default, stated because it is a limit."""
BACKLOG = 128
HANDSHAKE_SECONDS = 10.0
"""Time for the TLS handshake, as on the other ports."""
KEEP_ALIVE_SECONDS = 75.0
"""How long a connection may wait for its next request."""
_LOOK_SECONDS = 1.0
API_PREFIXES = ("/api/v1/", "/jsz", "/iceberg/v1/", V1)
_BODY_BYTES_MAX = 16 * 1024
"""Upper bound on the body of a change through the API."""

web_response.SERVER_SOFTWARE = "jetstream"  # type: ignore[attr-defined]
"""aiohttp answers a malformed request by itself, and would name its version and Python's."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

logger = structlog.get_logger("jetstream.http")


@dataclass(frozen=True, slots=True)
class Route:
    """One path. security/requirements.py says who may request it."""

    path: str
    handler: Handler
    method: str = "GET"
    operation: Operation | None = None
    """What it takes and answers; None: that is said elsewhere, and not checked here."""


class HttpServer:
    """`start` listens, `stop` closes."""

    def __init__(
        self,
        routes: Sequence[Route],
        access: AccessControl,
        certificates: Certificates | None = None,
        refused: Counter[str] | None = None,
        hosts: OwnHosts | None = None,
        cors: Cors | None = None,
    ) -> None:
        """certificates: for TLS on the port. refused: counts connections closed to make room.
        hosts: the names under which API_PREFIXES are answered; None: any."""
        self._hosts = hosts
        self._cors = Cors() if cors is None else cors
        self._routes = routes
        self._access = access
        self._certificates = certificates
        self._turns = HandshakeTurns()
        self._runner: web.AppRunner | None = None
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._throttle = LogThrottle()
        self._refused = Counter() if refused is None else refused
        self._connections = Connections(self._refused)
        self._handshakes: Strangers[asyncio.Task[None]] = Strangers()
        self._lingering = Lingering()
        self._watching: asyncio.Task[None] | None = None
        self._connecting: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        application = web.Application(client_max_size=_BODY_BYTES_MAX, middlewares=[_in_json])
        application[ROOM] = AnswerRoom()
        application.on_response_prepare.append(self._finish_headers)
        for route in self._routes:
            # A GET answers HEAD as well.
            for method in ("GET", "HEAD") if route.method == "GET" else (route.method,):
                application.router.add_route(
                    method, route.path, self._checked(route), expect_handler=_expected
                )
        if self._cors.is_on:
            for path in {route.path for route in self._routes if route.path.startswith(V1)}:
                application.router.add_options(path, self._checked(self._preflight(path)))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=KEEP_ALIVE_SECONDS,
            handler_cancellation=True,
            auto_decompress=False,  # Decompressing a body would block the loop.
            lingering_time=0.0,  # It would take a body apart that nobody wants: see Lingering.
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
        self._watching = run_in_background(self._watch(), "HTTP connections")

    def _take(self, sock: socket.socket) -> None:
        if (
            len(self._handshakes) >= CONNECTIONS_MAX
            and (first := self._handshakes.pop()) is not None
        ):
            first.cancel()
        task = asyncio.get_running_loop().create_task(self._connect(sock))
        self._handshakes.add(task, origin_of(peer_of(sock)))
        self._connecting[task] = None
        task.add_done_callback(self._connecting.pop)
        task.add_done_callback(self._handshakes.discard)
        task.add_done_callback(lambda ended: self._not_connected(ended, sock))

    def _not_connected(self, ended: asyncio.Task[None], sock: socket.socket) -> None:
        if ended.cancelled():
            sock.close()  # It may have been cancelled before it ran.
        elif (error := ended.exception()) is not None:
            logger.error("connection_failed", exc_info=error)
            sock.close()

    async def _connect(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                transport = await self._transport(sock)
        except TlsError as error:
            if self._throttle.is_due("tls_refused", peer):
                logger.info("tls_refused", peer=peer, reason=error.reason)
            return
        except OSError as error:
            if self._throttle.is_due("accept_failed", type(error).__name__):
                logger.warning("accept_failed", error=str(error) or "TLS took too long")
            sock.close()
            return
        except asyncio.CancelledError:
            sock.close()
            raise
        now = asyncio.get_running_loop().time()
        self._connections.take(transport, origin_of(peer), now)

    async def _transport(self, sock: socket.socket) -> asyncio.Transport:
        """A transport of aiohttp's protocol. Raises OSError."""
        assert self._runner is not None
        protocols = self._runner.server
        assert protocols is not None
        accepted: StreamSocket = sock
        if self._certificates is not None:
            turn = self._turns.of(peer_of(sock))
            accepted = await handshake(
                sock, self._certificates.http, HANDSHAKE_SECONDS, server_side=True, turn=turn
            )
        return SocketTransport(accepted, protocols(), self._lingering)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._connections.look(asyncio.get_running_loop().time())

    async def stop(self) -> None:
        if self._accepting is not None:
            await end_tasks(self._accepting, self._watching)
            await end_tasks(*self._connecting)
        if self._listener is not None:
            self._listener.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._lingering.close()

    def _checked(self, route: Route) -> Handler:
        """Check the caller's rights before anything is done. Every request goes through here."""

        async def handle(request: web.Request) -> web.StreamResponse:
            if request.transport is not None:
                self._connections.asked(request.transport)
            room = request.app[ROOM]
            try:
                response = await self._answer(route, request)
                if room.is_held(request):  # Until the client has read it.
                    room.is_made(request)
                    await response.prepare(request)
                    await response.write_eof()
                return response
            finally:
                room.release(request)

        return handle

    async def _answer(self, route: Route, request: web.Request) -> web.StreamResponse:
        try:
            if self._hosts is not None and route.path.startswith(API_PREFIXES):
                self._hosts.check(request.headers.get("Host"))
            if route.method == "OPTIONS":  # A browser asks beforehand, and sends no token.
                return await route.handler(request)
            await admit(self._access, request, route.path)
            if route.method != "GET":
                self._cors.check_change(request)
                await let_hang_ups_come()
            if route.operation is not None:
                check_parameters(request, route.operation.query)
            return await route.handler(request)
        except JetstreamError as error:
            return error_response(error)

    def _preflight(self, path: str) -> Route:
        methods = {route.method for route in self._routes if route.path == path}

        async def handle(request: web.Request) -> web.Response:
            return self._cors.preflight(request, methods)

        return Route(path, handle, "OPTIONS")

    async def _finish_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """Records and metadata stay in no cache, and no answer names the software. After
        an answer that has not waited for the whole body the connection ends."""
        if not request.content.is_eof():
            response.force_close()
            response.headers["Connection"] = "close"
        response.headers.setdefault("Cache-Control", "no-store")
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        response.headers.pop("Server", None)
        self._cors.tell(request, response)


async def _expected(request: web.Request) -> web.StreamResponse | None:
    """The header `Expect`. aiohttp would refuse it in plain text."""
    expected = request.headers.get("Expect", "")
    if request.version < HttpVersion11:
        return None
    if expected.lower() != "100-continue":
        reason = f"Expect {expected[:100]!r} is not known: there is 100-continue"
        return error_response(InvalidRequestError(reason), status=417)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # The answer itself has not begun.
    return None


@web.middleware
async def _in_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What aiohttp refuses by itself is told to programs like every other error."""
    try:
        return await handler(request)
    except web.HTTPException as refused:
        if not request.path.startswith(API_PREFIXES):
            raise
        response = error_response(_refused_error(request, refused), status=refused.status)
        if "Allow" in refused.headers:
            response.headers["Allow"] = refused.headers["Allow"]
        return response


def _refused_error(request: web.Request, refused: web.HTTPException) -> JetstreamError:
    path = request.path[:100]
    if isinstance(refused, web.HTTPNotFound):
        return NotFoundError(f"there is no path {path!r}: see {V1}openapi.json")
    if isinstance(refused, web.HTTPMethodNotAllowed):
        there = ", ".join(sorted(refused.allowed_methods))
        return InvalidRequestError(f"{path!r} takes {there}, not {refused.method[:20]}")
    if isinstance(refused, web.HTTPRequestEntityTooLarge):
        return MessageTooLargeError(f"a body has at most {_BODY_BYTES_MAX} bytes here")
    return InvalidRequestError(refused.reason)


def error_response(error: JetstreamError, status: int | None = None) -> web.Response:
    """The error in the form of the other ports (docs/protocol.md, "Errors"). status: None: that of
    the table there."""
    status = CODES[type(error)].nats_code if status is None else status
    headers = {"WWW-Authenticate": "Bearer"} if isinstance(error, UnauthenticatedError) else None
    return web.json_response(error_body(error), status=status, headers=headers)


def error_body(error: JetstreamError) -> dict[str, dict[str, str]]:
    return {"error": {"code": error.code, "message": error.message}}
