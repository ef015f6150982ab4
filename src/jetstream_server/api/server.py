"""The gRPC listener: our services, health and reflection on one port."""

from __future__ import annotations

from typing import Any

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from jetstream_protocol.generated import api_pb2, api_pb2_grpc
from jetstream_server.api.cluster import ClusterService
from jetstream_server.api.errors import ErrorInterceptor
from jetstream_server.api.reads import ReadsService
from jetstream_server.api.streams import StreamsService

REQUEST_BYTES_MAX = 4 * 1024 * 1024  # A ListOffsets call may name tens of thousands of streams.
RESPONSE_BYTES_MAX = 128 * 1024 * 1024
CALLS_MAX = 4096
"""Calls served at once; further ones are told RESOURCE_EXHAUSTED. A long poll is a call."""
_STOP_SECONDS = 1.0

_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", REQUEST_BYTES_MAX),
    ("grpc.max_send_message_length", RESPONSE_BYTES_MAX),
    ("grpc.max_metadata_size", 16 * 1024),
    # A second server on the same port must fail to start, not share it.
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
]
_SERVICES = ("Streams", "Reads", "Cluster")


class ApiServer:
    """`start` listens, `stop` ends every call."""

    def __init__(
        self, streams: StreamsService, reads: ReadsService, cluster: ClusterService
    ) -> None:
        self._services = (streams, reads, cluster)
        self._health = health.aio.HealthServicer()
        self._server: aio.Server | None = None

    async def start(self, address: str) -> None:
        """Raises OSError when the address cannot be listened on."""
        server = aio.server(
            options=_OPTIONS, interceptors=[ErrorInterceptor()], maximum_concurrent_rpcs=CALLS_MAX
        )
        streams, reads, cluster = self._services
        api_pb2_grpc.add_StreamsServicer_to_server(streams, server)
        api_pb2_grpc.add_ReadsServicer_to_server(reads, server)
        api_pb2_grpc.add_ClusterServicer_to_server(cluster, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = [api_pb2.DESCRIPTOR.services_by_name[name].full_name for name in _SERVICES]
        reflection.enable_server_reflection(
            [*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server
        )
        try:
            server.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error
        await server.start()
        self._server = server
        for name in ("", *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def stop(self) -> None:
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            await self._server.stop(_STOP_SECONDS)
