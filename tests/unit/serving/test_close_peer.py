"""How gRPC's connections are closed, and when that can be left to gRPC."""

from __future__ import annotations

import socket

import pytest
from grpc import aio

from jetstream_server.serving.grpc.close_peer import close_peer

SERVER = {
    "add_generic_rpc_handlers", "add_insecure_port", "add_registered_method_handlers",
    "add_secure_port", "start", "stop", "wait_for_termination",
}  # fmt: skip
CONTEXT = {
    "abort", "abort_with_status", "add_done_callback", "auth_context", "cancelled", "code",
    "details", "disable_next_message_compression", "done", "invocation_metadata", "peer",
    "peer_identities", "peer_identity_key", "read", "send_initial_metadata", "set_code",
    "set_compression", "set_details", "set_trailing_metadata", "time_remaining",
    "trailing_metadata", "write",
}  # fmt: skip


@pytest.mark.parametrize(("kind", "known"), [(aio.Server, SERVER), (aio.ServicerContext, CONTEXT)])
def test_grpc_has_no_public_way_to_close_a_connection(kind: type, known: set[str]) -> None:
    new = {name for name in dir(kind) if not name.startswith("_")} - known
    assert not new, (
        f"{kind.__name__} of grpcio has {sorted(new)}, which we have not seen yet. If it closes a "
        "connection, takes an accepted one or frees an answer that is not read, use it, and remove "
        "close_peer.py; otherwise add it here"
    )


def test_hanging_up_ends_the_one_connection_that_is_meant() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
    accepted = [listener.accept()[0] for _ in clients]
    wanted = clients[1].getsockname()[1]
    assert not close_peer(f"ipv4:127.0.0.1:{wanted}", port + 1), "another port of ours"
    assert not close_peer("ipv4:127.0.0.1:1", port)
    for nonsense in ("", "unix:/x", "ipv4:", "ipv4:127.0.0.1", "ipv6:[::1]:x", "ipv4:\udcff:9"):
        assert not close_peer(nonsense, port)
    assert close_peer(f"ipv4:127.0.0.1:{wanted}", port)
    for index, client in enumerate(clients):
        client.settimeout(0.2)
        if index == 1:
            assert client.recv(1) == b""
        else:
            with pytest.raises(TimeoutError):
                client.recv(1)
    for sock in (listener, *clients, *accepted):
        sock.close()


def test_hanging_up_knows_ipv6() -> None:
    try:
        listener = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    port = listener.getsockname()[1]
    client = socket.create_connection(("::1", port))
    accepted = listener.accept()[0]
    assert close_peer(f"ipv6:%5B::1%5D:{client.getsockname()[1]}", port)
    assert client.recv(1) == b""
    for sock in (listener, client, accepted):
        sock.close()
