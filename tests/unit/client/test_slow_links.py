"""A client by TLS, far away from its server or on a busy machine: an attempt to connect takes many
messages, and each takes long."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import grpc

from examples.certificates.authority import Authority
from jetstream_client import TlsConfig
from jetstream_client.transport.control import ControlPlane
from jetstream_client.values.config import ClientConfig
from jetstream_protocol.generated import api_pb2
from jetstream_server.serving.grpc.server import handlers_of
from tests.support.loops import on_loop
from tests.support.tls import HOSTS

ON_ITS_WAY_SECONDS = 0.3


class Describing:
    def DescribeCluster(
        self, request: api_pb2.DescribeClusterRequest, context: object
    ) -> api_pb2.DescribeClusterResponse:
        return api_pb2.DescribeClusterResponse(controller=7)


async def carry(
    port: int,
    ends: list[asyncio.StreamWriter],
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
) -> None:
    """Between a client and the server at that port, late. ends: gets both ends."""
    from_server, to_server = await asyncio.open_connection("127.0.0.1", port)
    ends += [writer, to_server]
    later = asyncio.get_running_loop().call_later

    async def carry_one_way(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await source.read(65_536):
                later(ON_ITS_WAY_SECONDS, target.write, data)

    await asyncio.gather(carry_one_way(reader, to_server), carry_one_way(from_server, writer))


@on_loop
async def test_a_server_far_away_is_reached_by_tls(tmp_path: Path) -> None:
    """Every attempt ended after a second at most, and the next one began anew: for ever."""
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server", hosts=HOSTS, serves=True)
    server = grpc.server(ThreadPoolExecutor(1))
    server.add_generic_rpc_handlers([handlers_of("Cluster", Describing())])
    pair = key.read_bytes(), certificate.read_bytes()
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    server.start()
    ends: list[asyncio.StreamWriter] = []
    link = await asyncio.start_server(partial(carry, port, ends), "127.0.0.1", 0)
    address = f"127.0.0.1:{link.sockets[0].getsockname()[1]}"
    tls = TlsConfig(ca=str(authority.certificate_file))
    plane = ControlPlane(ClientConfig(servers=(address,), timeout=60, tls=tls))
    found = await plane.call(api_pb2.DescribeClusterRequest(), what="asking from far away")
    assert found.controller == 7
    await plane.close()
    link.close()
    for each in ends:
        each.transport.abort()
    server.stop(0).wait()
