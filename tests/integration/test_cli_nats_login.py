"""The command line, where NATS asks for a certificate or for credentials."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from jetstream_client import Client
from tests.support.command import jetstream
from tests.support.nats_jwt import new_operator
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, running_server

Files = tuple[str, str, str]
SUBJECT = "orders.eu"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """Authority, certificate and key: of the NATS server, and of those who connect to it."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    issued.private_key_pem.write_to_path(folder / "key.pem")
    return str(folder / "ca.pem"), str(folder / "cert.pem"), str(folder / "key.pem")


@pytest.fixture(scope="module")
def server(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its NATS asks everybody for a certificate."""
    ca, cert, key = files
    data = tmp_path_factory.mktemp("server") / "data"
    environment = {
        "JETSTREAM_NATS__TLS__CA_FILE": ca,
        "JETSTREAM_NATS__TLS__CERTIFICATE_FILE": cert,
        "JETSTREAM_NATS__TLS__KEY_FILE": key,
    }
    config = f'tls {{ ca_file: "{ca}", cert_file: "{cert}", key_file: "{key}", verify: true }}'
    with (
        NatsServer(config) as nats,
        running_server(data, "--nats", nats.url, environment=environment) as server,
    ):
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
        yield server


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No variables, and a folder for contexts."""
    for name in ("CA", "CERT", "KEY", "CREDS"):
        monkeypatch.delenv(f"JETSTREAM_NATS_{name}", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_without_the_files_publish_says_which_are_missing(
    server: ServerProcess, files: Files
) -> None:
    ca, _, _ = files
    assert is_told("--nats-ca", "-s", server.grpc)
    assert is_told("--nats-cert", "--nats-ca", ca, "-s", server.grpc)


def is_told(words: str, *options: str) -> bool:
    """Whether a publish that gives up says so. NATS may not have spoken in the first second."""
    for seconds in ("1", "5", "25"):
        done = jetstream("publish", SUBJECT, "x", *options, "--timeout", seconds)
        assert done.returncode == 4
        if words in done.stderr:
            return True
    return False


def test_the_options_open_the_door(server: ServerProcess, files: Files) -> None:
    ca, cert, key = files
    options = ("--nats-ca", ca, "--nats-cert", cert, "--nats-key", key, "-s", server.grpc)
    done = jetstream("publish", SUBJECT, "by-options", *options)
    assert done.stderr == ""
    assert done.stdout.startswith("stored in orders at offset ")
    done = jetstream("bench", "publish", SUBJECT, "--messages", "10", *options)
    assert done.returncode == 0, done.stderr
    done = jetstream("bench", "latency", SUBJECT, "--messages", "1", *options)
    assert done.returncode == 0, done.stderr
    done = jetstream("import", "copy", "--from-jetstream", "NONE", *options, "--timeout", "2")
    assert "certificate" not in done.stderr, "it did not get as far as JetStream"
    done = jetstream("mirror", "copy", "--from-jetstream", "NONE", *options, "--timeout", "2")
    assert done.returncode != 0
    assert "certificate" not in done.stderr, "it did not get as far as JetStream"


def test_the_environment_opens_it_for_commands_and_clients(
    server: ServerProcess, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, file in zip(("CA", "CERT", "KEY"), files, strict=True):
        monkeypatch.setenv(f"JETSTREAM_NATS_{name}", file)
    done = jetstream("publish", SUBJECT, "by-environment", "-s", server.grpc)
    assert done.returncode == 0, done.stderr
    with Client(server.grpc, timeout=60) as client:
        assert client.publish(SUBJECT, b"by-environment").stream == "orders"


def test_a_context_opens_it(server: ServerProcess, files: Files) -> None:
    ca, cert, key = files
    options = ("--nats-ca", ca, "--nats-cert", cert, "--nats-key", key)
    assert jetstream("context", "add", "here", "-s", server.grpc, *options).returncode == 0
    done = jetstream("publish", SUBJECT, "by-context")
    assert done.returncode == 0, done.stderr
    shown = json.loads(jetstream("context", "show", "--json").stdout)
    assert (shown["nats_ca"], shown["nats_cert"], shown["nats_key"]) == files


def test_files_that_cannot_be_used_are_named(server: ServerProcess, files: Files) -> None:
    at = ("-s", server.grpc)
    done = jetstream("publish", SUBJECT, "x", "--nats-ca", "/missing.pem", *at)
    assert done.returncode != 0
    assert "cannot read /missing.pem" in done.stderr
    done = jetstream("publish", SUBJECT, "x", "--nats-key", files[2], *at)
    assert "a key for NATS without its certificate" in done.stderr
    done = jetstream("context", "add", "bad", "--nats-ca", "/missing.pem", *at)
    assert "cannot read /missing.pem" in done.stderr


def test_credentials_sign_in(server: ServerProcess, tmp_path: Path) -> None:
    operator = new_operator()
    creds = tmp_path / "user.creds"
    creds.write_text(operator.credentials())
    with NatsServer(operator.config) as nats:
        at = ("-s", server.grpc, "--nats", nats.url)
        assert "refuses to let us in" in jetstream("publish", SUBJECT, "x", *at).stderr
        at = (*at, "--timeout", "1")
        done = jetstream("publish", SUBJECT, "x", *at, "--creds", str(creds))
        assert "refuses" not in done.stderr, "nobody listens there, but the door is open"
        assert done.returncode != 0
