"""Three real nodes over mutual TLS: one is killed, and who is not a node does not act as one."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from jetstream_client import Client, TlsConfig
from jetstream_protocol.errors import UnauthenticatedError
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft.transport import HANDSHAKE_SECONDS_MAX, HANDSHAKES_MAX
from jetstream_server.net.certificates import Certificates, TlsFiles
from jetstream_server.net.frame_socket import FrameSocket, dial
from jetstream_server.net.node_link import NodeIdentity, greet
from tests.support.load import Load
from tests.support.loops import on_loop
from tests.support.tls import TlsCluster


@pytest.fixture(scope="module")
def over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    running = TlsCluster(tmp_path_factory.mktemp("cluster") / "nodes")
    try:
        running.start()
        yield running
    finally:
        running.close()


@pytest.fixture
def client(over_tls: TlsCluster) -> Iterator[Client]:
    cert, key = map(str, over_tls.cluster.client)
    tls = TlsConfig(str(over_tls.cluster.authority.certificate_file), cert, key)
    with Client(over_tls.servers, tls=tls, timeout=60) as client:
        yield client


def test_a_cluster_over_mutual_tls_loses_nothing_when_its_leader_is_killed(
    over_tls: TlsCluster, client: Client
) -> None:
    stream = client.create_stream("orders", "orders")
    assert len(stream.replicas) == 3
    load = Load(over_tls.nats, "orders").start()
    load.wait_for_acks(2000)
    leader = client.describe_stream("orders").leader
    assert leader is not None
    over_tls.kill(leader)
    load.wait_for_acks(2000)
    books = load.stop()
    over_tls.restart(leader)
    over_tls.wait_for(
        "the killed one is back in sync",
        lambda: sorted(client.describe_stream("orders").isr) == over_tls.nodes,
    )
    end = client.describe_stream("orders").high_watermark
    values: list[bytes | None] = []
    while len(values) < end:
        found = client.fetch("orders", len(values), max_messages=100_000)
        values += [message.value for message in found]
    books.check(values)
    assert client.transfer_leader("orders", leader) is not False  # Node to node, over gRPC.


async def dialled(address: tuple[str, int], certificates: Certificates) -> FrameSocket:
    """A connection: the one second of `dial` may be too short on a busy machine."""
    async with asyncio.timeout(60):
        while True:
            with suppress(TimeoutError):
                return await dial(address, certificates)


@on_loop
async def test_a_clients_certificate_does_not_act_as_a_node(over_tls: TlsCluster) -> None:
    """Although it knows the credential; nor does the certificate of another node."""
    local = over_tls.cluster
    folder = local.authority.folder

    def shown(name: str) -> Certificates:
        made = (folder / f"{name}.crt", folder / f"{name}.key")
        return Certificates(TlsFiles(*made, folder / "ca.crt", False, None))

    cert, key = map(str, local.client)
    tls = TlsConfig(str(folder / "ca.crt"), cert, key)
    with Client(over_tls.servers, tls=tls, timeout=60) as client:
        cluster_id = client.describe_cluster().cluster_id
    port = int(local.grpc_addresses[0].rpartition(":")[2]) + 1
    secret = local.config["credential"].encode()
    identity = NodeIdentity(1, 1, cluster_id, secret)
    for name in ("client", "node-2"):
        connection = await dialled(("127.0.0.1", port), shown(name))
        with closing(connection), pytest.raises(UnauthenticatedError, match="not of node 1"):
            await greet(connection, identity, NodeId(0), fetches=True)
    with closing(await dialled(("127.0.0.1", port), shown("node-1"))) as connection:
        await greet(connection, identity, NodeId(0), fetches=True)


def test_a_plain_connection_to_a_raft_port_gets_nothing(over_tls: TlsCluster) -> None:
    port = int(over_tls.cluster.grpc_addresses[0].rpartition(":")[2]) + 2
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        plain.sendall(bytes(200))
        try:
            assert not plain.recv(100).startswith(b"JSRAFT")
        except ConnectionResetError:
            pass


def test_silent_strangers_at_every_raft_port_end_no_node(
    over_tls: TlsCluster, client: Client
) -> None:
    client.create_stream("calm", "calm")
    before = client.describe_stream("calm").leader_epoch
    seen = {node: len(over_tls.log(node)) for node in over_tls.nodes}
    with ExitStack() as held:
        for node in over_tls.cluster.config["nodes"]:
            host, _, port = node["raft"].rpartition(":")
            for _ in range(HANDSHAKES_MAX + 10):
                held.enter_context(socket.create_connection((host, int(port)), timeout=60))
        time.sleep(2 * HANDSHAKE_SECONDS_MAX)
        client.publish("calm", b"still here", msg_id="still here")
        client.create_stream("made-meanwhile", "made-meanwhile")
    if not any('"node_fenced"' in over_tls.log(node)[seen[node] :] for node in over_tls.nodes):
        assert client.describe_stream("calm").leader_epoch == before
    for number in over_tls.nodes:
        assert '"metadata_failed"' not in over_tls.log(number)
        assert '"metadata_thread_error"' not in over_tls.log(number)
