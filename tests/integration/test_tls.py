"""TLS on every port of a real server, and what each end says when the other does not fit."""

from __future__ import annotations

import asyncio
import datetime
import http.client
import json
import os
import signal
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.certificates.authority import Authority
from jetstream_client import AsyncClient, Client, TlsConfig, UnauthenticatedError
from jetstream_protocol.errors import InvalidRequestError, JetstreamError
from tests.support import command
from tests.support.server import ServerProcess
from tests.support.tls import tls_server


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strict(
    tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[ServerProcess]:
    """It wants certificates of its clients."""
    running = tls_server(tmp_path_factory.mktemp("server"), authority)
    running.start()
    yield running
    running.kill()


@pytest.fixture(scope="module")
def tls(authority: Authority) -> TlsConfig:
    """Of a client that the server takes."""
    return config_of(authority, authority.client("client"))


def config_of(authority: Authority, files: tuple[Path, Path] | None) -> TlsConfig:
    cert, key = files or (None, None)
    return TlsConfig(str(authority.certificate_file), cert and str(cert), key and str(key))


def refusal(server: ServerProcess, tls: bool | TlsConfig | None) -> str:
    """What the client is told, at once: who tried until its timeout would try for an hour."""
    with (
        Client(server.grpc, tls=tls, timeout=3600) as client,
        pytest.raises(UnauthenticatedError) as caught,
    ):
        client.describe_cluster()
    return caught.value.message


def test_both_clients_publish_and_fetch_over_tls(
    strict: ServerProcess, tls: TlsConfig, name: str
) -> None:
    values = [os.urandom(200_000) for _ in range(40)]
    with Client(strict.grpc, tls=tls) as client:
        client.create_stream(name, name)
        for value in values:
            client.publish(name, value)
        assert [message.value for message in client.fetch(name, 0, max_messages=40)] == values

    async def read() -> list[bytes | None]:
        async with AsyncClient(strict.grpc, tls=tls) as client:
            found = await client.fetch(name, 0, max_messages=40)
            return [message.value for message in found]

    assert asyncio.run(read()) == values


def test_a_client_that_does_not_fit_is_told_why(
    strict: ServerProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    old = authority.issue("old", valid_for=-datetime.timedelta(days=1))
    assert "speaks TLS: connect with tls=True or a TlsConfig" in refusal(strict, None)
    assert "shows a certificate that is not trusted" in refusal(strict, True)
    assert "shows a certificate that is not trusted" in refusal(strict, config_of(other, None))
    assert "wants a certificate of the client" in refusal(strict, config_of(authority, None))
    strangers = TlsConfig(str(authority.certificate_file), *map(str, other.client("x")))
    assert "refuses this client's certificate" in refusal(strict, strangers)
    assert "refuses this client's certificate" in refusal(strict, config_of(authority, old))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("port", ["data", "http"])
def test_a_client_at_another_port_is_told_so(
    strict: ServerProcess, tls: TlsConfig, authority: Authority, port: str, host: str
) -> None:
    wrong = f"{host}:{strict.port_base + ('grpc', 'data', 'raft', 'http').index(port)}"
    for each in (tls, config_of(authority, None)):
        with Client(wrong, tls=each, timeout=60) as client, pytest.raises(JetstreamError) as caught:
            client.describe_cluster()
        assert "clients need the gRPC port, 9292 by default" in caught.value.message


def test_a_client_takes_up_a_new_certificate_by_itself(
    strict: ServerProcess, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path)
    files = cert, key = other.client("client")
    tls = TlsConfig(str(authority.certificate_file), *map(str, files))
    good_cert, good_key = authority.client("renewed")
    with Client(strict.grpc, tls=tls) as client:
        with pytest.raises(UnauthenticatedError, match="refuses this client's certificate"):
            client.describe_cluster()
        cert.write_bytes(good_cert.read_bytes())
        key.write_bytes(good_key.read_bytes())
        assert client.describe_cluster().nodes


def test_a_plain_server_says_so_to_a_client_with_tls(tls: TlsConfig, tmp_path: Path) -> None:
    plain = ServerProcess(tmp_path / "data").start()
    try:
        assert "does not speak TLS" in refusal(plain, tls)
    finally:
        plain.kill()


@pytest.mark.parametrize("port", ["data", "http"])
def test_the_other_ports_take_no_one_without_tls_or_a_certificate(
    strict: ServerProcess, authority: Authority, tls: TlsConfig, port: str
) -> None:
    address = ("127.0.0.1", strict.port_base + {"data": 1, "http": 3}[port])
    with socket.create_connection(address, timeout=60) as plain:
        assert b"200" not in received(plain, b"GET /metrics HTTP/1.0\r\n\r\n")
    without = config_of(authority, None).ssl_context()
    with (
        socket.create_connection(address, timeout=60) as sock,
        without.wrap_socket(sock, server_hostname="localhost") as secured,
    ):
        assert received(secured, b"GET /metrics HTTP/1.0\r\n\r\n") == b""
    warnings.simplefilter("ignore", DeprecationWarning)  # Of the old versions.
    for version, is_taken in ((ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_1, False)):
        context = tls.ssl_context()
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        with socket.create_connection(address, timeout=60) as sock:
            try:
                with context.wrap_socket(sock, server_hostname="localhost") as secured:
                    assert is_taken
                    assert secured.version() == "TLSv1.2"
            except (ssl.SSLError, OSError):
                assert not is_taken


def received(sock: socket.socket, question: bytes) -> bytes:
    try:
        sock.sendall(question)
        return sock.recv(1000)
    except (ConnectionError, ssl.SSLError):
        return b""


def test_the_command_line_speaks_tls_by_options_variables_and_contexts(
    strict: ServerProcess, tls: TlsConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tls.ca
    assert tls.cert
    assert tls.key
    options = ["--ca", tls.ca, "--cert", tls.cert, "--key", tls.key]
    status = ["cluster", "status", "--json"]
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    done = command.jetstream("--server", strict.grpc, *options, *status)
    assert json.loads(done.stdout)["nodes"], done
    for variable, value in zip(("CA", "CERT", "KEY"), (tls.ca, tls.cert, tls.key), strict=True):
        monkeypatch.setenv(f"JETSTREAM_{variable}", value)
    assert command.jetstream("--server", strict.grpc, *status).returncode == 0
    for variable in ("CA", "CERT", "KEY"):
        monkeypatch.delenv(f"JETSTREAM_{variable}")
    added = command.jetstream("context", "add", "here", "--server", strict.grpc, *options)
    assert added.returncode == 0, added
    assert command.jetstream(*status).returncode == 0
    assert command.jetstream("--context", "here", *status).returncode == 0
    plain = command.jetstream("--server", strict.grpc, *status)
    assert plain.returncode != 0
    assert "speaks TLS" in plain.stderr


def test_certificates_are_replaced_while_the_server_runs(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = tls_server(tmp_path, authority, client_auth="none")
    tls = config_of(authority, None)
    server.start()
    try:
        with Client(server.grpc, tls=tls, timeout=60) as client:
            client.create_stream("kept", "kept")
            shown = shown_on(server, tls)
            certificate = authority.folder / "server.crt"
            whole = certificate.read_bytes()
            certificate.write_bytes(b"no certificate")
            assert server.process is not None
            os.kill(server.process.pid, signal.SIGHUP)

            def is_refused() -> bool:
                # It never stays the same for long, so only the signal makes the server read it.
                os.utime(certificate)
                return "certificates_not_reloaded" in server.log_text

            until(is_refused)
            assert shown_on(server, tls) == shown
            certificate.write_bytes(whole)
            authority.issue("server", hosts=("localhost", "127.0.0.1"), serves=True)
            until(lambda: shown_on(server, tls).isdisjoint(shown))  # Without a signal.
            assert len(shown_on(server, tls)) == 1, "every port shows the new one"
            client.publish("kept", b"over the connection of before")
        with Client(server.grpc, tls=tls, timeout=60) as client:
            assert len(client.fetch("kept", 0, max_messages=1)) == 1
    finally:
        server.kill()


def until(holds: object) -> None:
    assert callable(holds)
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def shown_on(server: ServerProcess, tls: TlsConfig) -> set[bytes]:
    """The certificates that gRPC, data plane and HTTP show to a new connection."""
    context = tls.ssl_context(["h2"])
    found = set()
    for port in (0, 1, 3):
        with (
            socket.create_connection(("127.0.0.1", server.port_base + port), timeout=60) as sock,
            context.wrap_socket(sock, server_hostname="localhost") as secured,
        ):
            found.add(secured.getpeercert(binary_form=True) or b"")
    return found


def test_health_is_asked_over_tls(strict: ServerProcess, tls: TlsConfig) -> None:
    assert f"http=https://127.0.0.1:{strict.port_base + 3} tls=on" in strict.ready_line
    connection = http.client.HTTPSConnection(
        "127.0.0.1", strict.port_base + 3, timeout=60, context=tls.ssl_context()
    )
    connection.request("GET", "/readyz")
    assert connection.getresponse().read() == b"ready\n"
    connection.close()


def test_a_server_with_certificates_that_do_not_fit_does_not_start(
    authority: Authority, tmp_path: Path
) -> None:
    server = tls_server(tmp_path, authority)
    server.environment["JETSTREAM_TLS__KEY_FILE"] = str(authority.client("other")[1])
    with pytest.raises(AssertionError, match="are not a certificate and its key"):
        server.start()


def test_files_that_a_client_names_wrongly_are_named(tls: TlsConfig) -> None:
    with pytest.raises(InvalidRequestError, match="a key without its certificate"):
        TlsConfig(key="a")
    with (
        Client("127.0.0.1:1", tls=TlsConfig(ca="/there/is/none")) as client,
        pytest.raises(InvalidRequestError, match="cannot read /there/is/none"),
    ):
        client.describe_cluster()
