"""Strangers at every port of a server, with TLS and without: more of them than the limits, before
they are authenticated. The process lives, and others are served at once.

That is judged by the work: what a stranger costs the server, in processor time. Other programs of
the machine do not change it, as they do how long others wait: `python -m tests.fuzz --strangers`
measures that.
"""

from __future__ import annotations

import http.client
import itertools
import math
import os
import resource
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from jetstream_protocol import frames
from jetstream_protocol.frame_decoder import FrameDecoder
from jetstream_protocol.frames import Kind
from jetstream_protocol.generated.dataplane_pb2 import Hello, HelloReply
from jetstream_server.metadata.raft.transport import HANDSHAKES_MAX
from jetstream_server.serving.dataplane.server import KEPT_FOR_NODES
from jetstream_server.serving.http.connections import CONNECTIONS_MAX as HTTP_CONNECTIONS_MAX
from tests.fuzz import http2
from tests.support.secured import (
    SecuredNode,
    SecuredServer,
    SecuredTlsNode,
    SecuredTlsServer,
    administered,
    secured_server,
)
from tests.support.strangers import STRANGERS, Stranger

STRANGER_SECONDS = 0.002
"""Of the server's processors, at most, for each stranger. A handshake of TLS takes half of it."""
ATTEMPTS = 5
"""Something of the server's own may be due meanwhile."""
TOKEN_SECONDS = 0.003
"""For a wrong token: none is worth a slow hash."""
PATIENCE_SECONDS = 60.0
GIVEN_SECONDS = 8.0
"""The least that a port gives a client until it has asked."""
FAILURES = (
    "internal_error", "connection_failed", "metadata_failed", "metadata_thread_error",
    "metadata_connection_failed",
)  # fmt: skip
DESCRIPTORS = 1024
DATA_CONNECTIONS = 20
GRPC_CONNECTIONS = 64
"""As many as a node keeps that may open so few files."""
PORTS = {"grpc": 0, "data": 1, "raft": 2, "http": 3}
LIMITS = {
    "grpc": GRPC_CONNECTIONS,
    "data": DATA_CONNECTIONS + KEPT_FOR_NODES,
    "raft": HANDSHAKES_MAX,
    "http": HTTP_CONNECTIONS_MAX,
}


_numbers = itertools.count()


class FewDescriptors:
    """Mixed into a server: it may open DESCRIPTORS files."""

    def command(self) -> list[str]:
        return ["prlimit", f"--nofile={DESCRIPTORS}", "--", *super().command()]  # type: ignore[misc]


class Plain(FewDescriptors, SecuredNode):
    pass


class Tls(FewDescriptors, SecuredTlsNode):
    pass


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "tls"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredServer]:
    folder = tmp_path_factory.mktemp("strangers")
    starting: SecuredServer = Tls(folder) if request.param else Plain(folder / "data")
    with administered(starting) as running:
        yield running


def served_by_grpc(server: SecuredServer) -> None:
    with server.client() as client:
        client.list_streams()


def served_by_data(server: SecuredServer) -> None:
    """A new connection is greeted."""
    sock: socket.socket = socket.create_connection(server.data_address, PATIENCE_SECONDS)
    if isinstance(server, SecuredTlsServer):
        context = ssl.create_default_context(cafile=server.authority.certificate_file)
        sock = context.wrap_socket(sock, server_hostname="localhost")
    hello = Hello(version=frames.PROTOCOL_VERSION, client="test", token=server.admin)
    with sock:
        sock.sendall(frames.encode(Kind.HELLO, 1, hello.SerializeToString()))
        decoder = FrameDecoder(frames.RESPONSE_BYTES_MAX)
        decoder.wanted = (Kind.HELLO_REPLY,)
        while (frame := decoder.next()) is None:
            data = sock.recv(4096)
            if not data:
                raise ConnectionResetError("hung up on")
            decoder.feed(data)
        assert not HelloReply.FromString(bytes(frame.head)).HasField("error")


def served_by_raft(server: SecuredServer) -> None:
    """A change of the metadata. That peers are linked, test_transport_strangers.py shows."""
    with server.client() as client:
        name = f"made-{next(_numbers)}"
        client.create_stream(name, name)


def served_by_http(server: SecuredServer) -> None:
    host, port = "127.0.0.1", server.port_base + PORTS["http"]
    if isinstance(server, SecuredTlsServer):
        context = ssl.create_default_context(cafile=server.authority.certificate_file)
        connection = http.client.HTTPSConnection(host, port, timeout=60, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", "/healthz")
    assert connection.getresponse().status == 200
    connection.close()


SERVED: dict[str, Callable[[SecuredServer], None]] = {
    "grpc": served_by_grpc,
    "data": served_by_data,
    "raft": served_by_raft,
    "http": served_by_http,
}


def strangers(
    stack: ExitStack, server: SecuredServer, port: str, what: Stranger, count: int
) -> list[socket.socket]:
    socks = []
    for _ in range(count):
        address = ("127.0.0.1", server.port_base + PORTS[port])
        socks.append(stack.enter_context(socket.create_connection(address, PATIENCE_SECONDS)))
        try:
            what(socks[-1])
        except OSError:
            pass  # It was hung up on.
    return socks


def used(server: SecuredServer) -> float:
    """Seconds that the server's threads have been at work, in all."""
    found = 0
    for task in Path(f"/proc/{server.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # The thread has ended.
            found += int((task / "schedstat").read_text().split()[0])
    return found / 1e9


def serve_patiently(serve: Callable[[SecuredServer], None], server: SecuredServer) -> None:
    """A server without a processor for GIVEN_SECONDS hangs up on everybody; who comes again is
    served."""
    while True:
        began = time.monotonic()
        try:
            serve(server)
            return
        except (ConnectionError, ssl.SSLError):
            if time.monotonic() - began < GIVEN_SECONDS:
                raise


def work_for(server: SecuredServer, port: str, stranger: Stranger) -> float:
    """For each of the strangers, in seconds, while another client is served beside them; endless
    if that one is served once they have gone. On a machine that stands still they may, but not each
    time."""
    serve, count = SERVED[port], LIMITS[port] + 10
    serve(server)
    before = used(server)
    serve(server)
    usual = used(server) - before
    with ExitStack() as stack:
        before = used(server)
        socks = strangers(stack, server, port, stranger, count)
        serve_patiently(serve, server)
        work = used(server) - before - usual
        if stranger is STRANGERS["silent"] and hung_up_on(socks) == count:
            return math.inf  # It has waited until they had to go.
    return work / count


@pytest.mark.parametrize("port", PORTS)
@pytest.mark.parametrize("stranger", STRANGERS.values(), ids=STRANGERS)
def test_whatever_strangers_do_others_are_served_at_once(
    server: SecuredServer, port: str, stranger: Stranger
) -> None:
    work = [work_for(server, port, stranger)]
    while min(work) > STRANGER_SECONDS and len(work) < ATTEMPTS:
        work.append(work_for(server, port, stranger))
    assert min(work) < STRANGER_SECONDS, work
    assert server.process is not None
    assert server.process.poll() is None, server.log_text[-3000:]
    for event in FAILURES:
        assert f'"{event}"' not in server.log_text


def test_wrong_tokens_keep_no_new_one_from_signing_in(server: SecuredServer) -> None:
    """150 wrong texts of each of four tokens, at once: it comes after them, over a connection of
    its own. Who sends them may be hung up on."""

    def connected() -> grpc.Channel:
        options = [("grpc.use_local_subchannel_pool", 1)]
        if not isinstance(server, SecuredTlsServer):
            return grpc.insecure_channel(server.grpc, options)
        credentials = grpc.ssl_channel_credentials(server.authority.certificate_file.read_bytes())
        return grpc.secure_channel(f"localhost:{server.port_base}", credentials, options)

    method = "/jetstream.v1.Streams/ListStreams"
    with server.client() as admin, connected() as strangers, connected() as newcomers:
        texts = [admin.create_token(f"user:t{number}").text for number in range(5)]
        wrong = [f"{text[:-4]}{number:04}" for text in texts[:4] for number in range(150)]
        before = used(server)
        call = strangers.unary_unary(method)
        asked = [call.future(b"", metadata=(("authorization", f"Bearer {w}"),)) for w in wrong]
        newcomers.unary_unary(method)(
            b"", metadata=(("authorization", f"Bearer {texts[4]}"),), timeout=PATIENCE_SECONDS
        )
        refused = {each.exception().code() for each in asked}
        work = used(server) - before
    assert refused <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNAVAILABLE}
    assert work < TOKEN_SECONDS * len(asked), f"{work:.3f} s"


def test_want_of_descriptors_ends_nothing(server: SecuredServer) -> None:
    """Whoever takes the last ones."""
    used = len(os.listdir(f"/proc/{server.pid}/fd"))
    with ExitStack() as stack:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 3, DESCRIPTORS))
        try:
            for port in (*PORTS, *PORTS):
                strangers(stack, server, port, STRANGERS["silent"], 10)
            time.sleep(3)
        finally:
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        for serve in SERVED.values():
            serve(server)
    assert server.process is not None
    assert server.process.poll() is None, server.log_text[-3000:]


def test_strangers_that_stay_are_hung_up_on_at_every_port(server: SecuredServer) -> None:
    """However few they are on data plane and HTTP."""
    with ExitStack() as stack:
        held = []
        for port in PORTS:
            for _ in range(80 if port == "grpc" else 3):
                address = ("127.0.0.1", server.port_base + PORTS[port])
                held.append(stack.enter_context(socket.create_connection(address)))
        for sock in held:
            sock.settimeout(PATIENCE_SECONDS)
            while sock.recv(100):
                pass


def hung_up_on(socks: list[socket.socket]) -> int:
    """How many of the connections have ended. Reads what has arrived."""
    ended = 0
    for sock in socks:
        sock.setblocking(False)
        with suppress(BlockingIOError):
            try:
                while sock.recv(65_536):
                    pass
            except ConnectionError:
                pass
            ended += 1
    return ended


@pytest.mark.parametrize("what", ["half sent", "watching"])
def test_calls_of_strangers_make_room_however_many_connections_they_come_over(
    tmp_path: Path, what: str
) -> None:
    """One request half sent on each of 100, up to four megabytes each; or calls of health that
    last, a few on each of 250. First a call, so that the connection itself may stay."""
    half = http2.frame(
        http2.FrameType.HEADERS,
        http2.END_HEADERS,
        3,
        http2.call_headers(b"/jetstream.v1.Streams/RestoreBatches"),
    ) + http2.frame(http2.FrameType.DATA, 0, 3, b"\0" + (4 << 20).to_bytes(4, "big") + bytes(9000))
    watch = b"/grpc.health.v1.Health/Watch"
    calls = {
        "half sent": half,
        "watching": b"".join(http2.call(3 + 2 * number, watch, b"") for number in range(4)),
    }[what]
    first = http2.call(1, b"/grpc.health.v1.Health/Check", b"")
    with secured_server(tmp_path / "data") as server, server.client() as admin:
        admin.list_streams()
        host, port = server.grpc.rsplit(":", 1)
        with ExitStack() as stack:
            socks = []
            for _ in range(100 if what == "half sent" else 250):
                sock = stack.enter_context(socket.create_connection((host, int(port)), 60))
                sock.sendall(http2.PREFACE + http2.settings() + first + calls)
                socks.append(sock)
            enough = 60 if what == "half sent" else 50
            deadline = time.monotonic() + PATIENCE_SECONDS
            while hung_up_on(socks) < enough:
                assert time.monotonic() < deadline, hung_up_on(socks)
                admin.list_streams()
                time.sleep(0.2)
            assert hung_up_on(socks) < len(socks)  # No more than needed.


BODIES = {
    "POST": (
        "/v1/streams/any/records?subject=any.x", "/api/v1/streams", "/api/v1/streams/any/alter",
        "/api/v1/streams/any/transfer-leader", "/api/v1/streams/any/reassign",
        "/api/v1/nodes/0/drain",
    ),
    "PUT": ("/v1/streams/any/cursors/any",),
}  # fmt: skip


@pytest.mark.parametrize(
    ("method", "path"), [(method, path) for method, paths in BODIES.items() for path in paths]
)
def test_nothing_is_held_for_the_body_of_who_is_not_known(
    server: SecuredServer, method: str, path: str
) -> None:
    """The answer does not wait for the body, for which there is little room."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer of-nobody\r\n"
        "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n"
    )
    sock: socket.socket = socket.create_connection(
        ("127.0.0.1", server.port_base + PORTS["http"]), timeout=60
    )
    if isinstance(server, SecuredTlsServer):
        context = ssl.create_default_context(cafile=server.authority.certificate_file)
        sock = context.wrap_socket(sock, server_hostname="localhost")
    with sock:
        sock.sendall(head.encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")
