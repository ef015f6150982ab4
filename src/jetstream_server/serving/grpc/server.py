"""The gRPC listener: our services, health and reflection on one port.

gRPC's server ends for ever when a request causes an exception in it: from version 1.84 on, a path
that is not UTF-8 does. The server is then replaced by a new one. Running calls are lost, and
clients repeat them.

All of it runs on gRPC's loop, except the methods, which run on the node's loop (grpc_loop.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from jetstream_protocol.services import PACKAGE, SERVICES
from jetstream_server.background import end_tasks, run_in_background
from jetstream_server.net.certificates import Certificates
from jetstream_server.serving.grpc.call_limiter import CallLimiter
from jetstream_server.serving.grpc.cluster_service import ClusterService
from jetstream_server.serving.grpc.connection_limiter import ConnectionLimiter
from jetstream_server.serving.grpc.consumers_service import ConsumersService
from jetstream_server.serving.grpc.cursors_service import CursorsService
from jetstream_server.serving.grpc.error_interceptor import LIMITS, ErrorInterceptor
from jetstream_server.serving.grpc.groups_service import GroupsService
from jetstream_server.serving.grpc.grpc_loop import GrpcLoop
from jetstream_server.serving.grpc.guard import Guarded
from jetstream_server.serving.grpc.node_channels import RESPONSE_BYTES_MAX
from jetstream_server.serving.grpc.reads_service import ReadsService
from jetstream_server.serving.grpc.response_memory import ResponseMemoryLimiter
from jetstream_server.serving.grpc.security_service import SecurityService
from jetstream_server.serving.grpc.streams_service import StreamsService
from jetstream_server.serving.grpc.token_connections import TokenConnections
from jetstream_server.serving.stream_access import StreamAccess

METADATA_BYTES_MAX = 16 * 1024
HANDSHAKE_MS_MAX = 10_000
"""Until then, a client that has not completed the handshake only holds a descriptor."""
IDLE_MS_MAX = 300_000
"""Lifetime of a connection without a call. Its client reconnects when it needs to."""
_STOP_SECONDS = 1.0
_LOOK_SECONDS = 0.25

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", max(LIMITS.values())),
    ("grpc.max_send_message_length", RESPONSE_BYTES_MAX),
    # Above the first limit some requests are refused, above the second all.
    ("grpc.max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.absolute_max_metadata_size", METADATA_BYTES_MAX),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS_MAX),
    ("grpc.max_concurrent_streams", 1024),
    # Sixty kilobytes unpack to as many megabytes, before the caller is known.
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.per_message_decompression", 0),
    ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
    # A second server on the same port must fail to start, not share it.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]

logger = structlog.get_logger("jetstream.api")


class ApiServer:
    """`start` listens, `stop` ends every call."""

    def __init__(
        self,
        streams: StreamsService,
        reads: ReadsService,
        cluster: ClusterService,
        cursors: CursorsService,
        groups: GroupsService,
        consumers: ConsumersService,
        security: SecurityService,
        access: StreamAccess,
        callers: CallLimiter,
        connections: ConnectionLimiter,
        token_connections: TokenConnections,
        unread: ResponseMemoryLimiter,
        grpc_loop: GrpcLoop,
        revision: Callable[[], int],
        reach: Callable[[int], Awaitable[None]],
        certificates: Certificates | None = None,
    ) -> None:
        """unread: room for answers. revision: returns that of the metadata here. reach: see
        Guarded. certificates: for TLS on the port."""
        self._certificates = certificates
        services: dict[str, object] = {
            "Streams": streams,
            "Reads": reads,
            "Cluster": cluster,
            "Cursors": cursors,
            "Groups": groups,
            "Consumers": consumers,
            "Security": security,
        }
        self._services = {
            name: Guarded(
                services[name], f"{PACKAGE}.{name}", access, token_connections, unread, reach
            )
            for name in SERVICES
        }
        self._loop = grpc_loop
        self._health = health.aio.HealthServicer()
        self._callers = callers
        self._guard = ErrorInterceptor(callers, connections.called, revision)
        self._connections = connections
        self._watching: tuple[asyncio.Task[None], ...] = ()
        self._server: aio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._supervisor: asyncio.Task[None] | None = None

    async def start(self, address: str) -> None:
        """Listen. Raises OSError when the address cannot be used."""
        await self._loop.run(self._start(address))

    async def _start(self, address: str) -> None:
        await self._listen(address)
        for name in ("", *service_names()):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        self._watching = (
            run_in_background(self._callers.watch(), "gRPC callers"),
            run_in_background(self._connections.watch(), "gRPC connections"),
        )
        self._supervisor = run_in_background(self._supervise(address), "gRPC supervisor")

    async def _listen(self, address: str) -> None:
        connections = 2 * self._connections.connections_max
        server = aio.server(
            options=[*_OPTIONS, ("grpc.max_allowed_incoming_connections", connections)],
            interceptors=[self._guard],
        )
        server.add_generic_rpc_handlers(
            [handlers_of(name, self._loop.relay(each)) for name, each in self._services.items()]
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            [*service_names(), health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        try:
            if self._certificates is None:
                server.add_insecure_port(address)
            else:
                server.add_secure_port(address, _credentials(self._certificates))
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        self._server = server
        # A server of gRPC whose start was cancelled cannot be stopped.
        self._starting = asyncio.ensure_future(server.start())
        await asyncio.shield(self._starting)

    async def _supervise(self, address: str) -> None:
        """Replace a server that has ended by itself."""
        while True:
            assert self._server is not None
            try:
                # Without a time it would wait until the running calls have ended, too.
                if await self._server.wait_for_termination(_LOOK_SECONDS):
                    continue
            except Exception as error:  # noqa: BLE001  gRPC's server: whatever has ended it
                logger.warning("grpc_server_replaced", reason=repr(error))
            else:
                logger.warning("grpc_server_replaced", reason="it was stopped")
            await self._server.stop(None)
            await self._listen_again(address)

    async def _listen_again(self, address: str) -> None:
        while True:
            try:
                await self._listen(address)
                return
            except OSError as error:
                logger.warning("grpc_server_not_replaced", reason=str(error))
                await asyncio.sleep(_LOOK_SECONDS)

    async def stop(self) -> None:
        await self._loop.run(self._stop())

    async def _stop(self) -> None:
        await end_tasks(*self._watching, self._supervisor)
        if self._server is None or self._starting is None:
            return
        await asyncio.wait([self._starting])
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                # It waits until every watcher has read the change. A watcher that reads nothing
                # never does.
                await self._health.enter_graceful_shutdown()
        except TimeoutError:
            pass
        await self._server.stop(_STOP_SECONDS)


def _credentials(certificates: Certificates) -> grpc.ServerCredentials:
    """gRPC asks for new certificates at every handshake. It can demand client certificates or not
    ask for them; there is nothing in between."""
    given = certificates.generation

    def present() -> grpc.ServerCertificateConfiguration:
        pem = certificates.pem
        return grpc.ssl_server_certificate_configuration(
            [(pem.key, pem.certificate)], pem.ca or None
        )

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal given
        if given == certificates.generation:
            return None
        given = certificates.generation
        return present()

    return grpc.dynamic_ssl_server_credentials(
        present(),
        changed,  # type: ignore[arg-type]  # None: nothing has changed.
        require_client_authentication=certificates.requires_clients,
    )


def service_names() -> list[str]:
    return [f"{PACKAGE}.{name}" for name in SERVICES]


def handlers_of(service: str, behaviour: object) -> grpc.GenericRpcHandler:
    """behaviour: has a method for each of the service; one that it lacks is unknown to callers."""
    handlers = {
        name: getattr(grpc, f"{method.kind}_rpc_method_handler")(
            getattr(behaviour, name), method.request.FromString, method.answer.SerializeToString
        )
        for name, method in SERVICES[service].items()
        if hasattr(behaviour, name)
    }
    return grpc.method_handlers_generic_handler(f"{PACKAGE}.{service}", handlers)
