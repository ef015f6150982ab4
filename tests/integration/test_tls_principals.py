"""With security on, a certificate is a client's principal, on every port; a node's is none."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator

import grpc
import pytest

from jetstream_client import Client, PermissionDeniedError, TlsConfig, UnauthenticatedError
from jetstream_protocol.generated import api_pb2 as pb
from jetstream_protocol.generated import common_pb2
from jetstream_protocol.services import Stub
from jetstream_server.security import node_proof
from tests.support.secured import CREDENTIAL, SecuredTlsServer, administered
from tests.support.tls import HOSTS


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredTlsServer]:
    with administered(SecuredTlsServer(tmp_path_factory.mktemp("secured"))) as running:
        yield running


def status_of_metrics(server: SecuredTlsServer, tls: TlsConfig) -> int:
    connection = http.client.HTTPSConnection(
        "localhost", server.port_base + 3, timeout=60, context=tls.ssl_context()
    )
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().status
    finally:
        connection.close()


def test_a_certificate_is_a_principal_on_every_port(certified: SecuredTlsServer) -> None:
    of_alice = certified.tls(certified.authority.client("alice"))
    of_node = certified.tls(certified.authority.node(0, HOSTS))
    with (
        Client(certified.grpc, tls=of_alice, token=certified.admin) as admin,
        Client(certified.grpc, tls=of_alice) as alice,
        Client(certified.grpc, tls=of_node) as node,
    ):
        admin.create_stream("orders", "orders")  # The token wins over the certificate.
        admin.publish("orders", b"one")
        for client in (alice, node):
            with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
                client.fetch("orders", 0, max_messages=1)
            with pytest.raises((PermissionDeniedError, UnauthenticatedError)):
                client.describe_stream("orders")
        assert status_of_metrics(certified, of_alice) == 403
        admin.add_acl("user:alice", ["read"], stream="orders", subject="orders")
        admin.add_acl("user:alice", ["cluster_describe"])
        assert [each.value for each in alice.fetch("orders", 0, max_messages=1)] == [b"one"]
        assert status_of_metrics(certified, of_alice) == 200
        assert status_of_metrics(certified, of_node) == 401
        with pytest.raises(UnauthenticatedError):
            node.fetch("orders", 0, max_messages=1)


def test_the_credential_with_a_clients_certificate_is_no_node(certified: SecuredTlsServer) -> None:
    method = "/jetstream.v1.Cluster/StandBy"
    request = pb.StandByRequest(stream=common_pb2.StreamRef(id=1))
    said = {}
    of_dave = certified.tls(certified.authority.client("dave"))
    with Client(certified.grpc, tls=of_dave, token=certified.admin) as admin:
        run = admin.describe_cluster().nodes[0].incarnation
    for name, files in (
        ("client", certified.authority.client("carol")),
        ("node", certified.authority.node(7, HOSTS)),
    ):
        claim = node_proof.Claim(7, 1, 1 if name == "client" else 2)
        proof = node_proof.proof(CREDENTIAL.encode(), method, claim, target=0, incarnation=run)
        ca, key, cert = certified.tls(files).contents()
        with grpc.secure_channel(
            f"localhost:{certified.port_base}", grpc.ssl_channel_credentials(ca, key, cert)
        ) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                Stub("Cluster", channel).StandBy(
                    request, timeout=60, metadata=(("authorization", proof),)
                )
            said[name] = str(caught.value)
    assert "the certificate is not that of node:7" in said["client"]
    assert "certificate" not in said["node"]  # The stream does not exist.


def test_silent_strangers_do_not_keep_clients_out(certified: SecuredTlsServer) -> None:
    """More than the HTTP port holds, and none of them begins TLS."""
    tls = certified.tls(certified.authority.client("bob"))
    silent = []
    try:
        for port in (1, 3):
            for _ in range(250):
                silent.append(
                    socket.create_connection(("127.0.0.1", certified.port_base + port), 10)
                )
        assert status_of_metrics(certified, tls) == 403
        with Client(certified.grpc, tls=tls, token=certified.admin) as client:
            client.create_stream("calm", "calm")
            client.publish("calm", b"x")
            assert len(client.fetch("calm", 0, max_messages=1)) == 1
    finally:
        for sock in silent:
            sock.close()
    assert CREDENTIAL not in certified.log_text
