"""The whole server on NATS servers configured in every way: from the YAML file to the ack.

The connection by itself is test_nats_login.py's and test_nats_failover.py's subject; here the
configuration reaches it, and what happens to it reaches `describe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from tests.support.api import Api, raw_nats
from tests.support.nats_jwt import new_operator, new_user
from tests.support.nats_server import NatsServer
from tests.support.server import ServerProcess, free_port_base

WAIT_SECONDS = 60.0


class ConfiguredServer(ServerProcess):
    """`jetstream-server --config FILE` with this `nats` section."""

    def __init__(self, folder: Path, nats: dict[str, Any], **environment: str) -> None:
        super().__init__(folder / "data", environment=environment)
        base = self.port_base
        ports = {"grpc": base, "data": base + 1, "raft": base + 2, "http": base + 3}
        self._file = folder / "cluster.yaml"
        self._file.write_text(
            yaml.safe_dump(
                {
                    "data": str(self.data),
                    "nodes": [{"id": 0, **{k: f"127.0.0.1:{v}" for k, v in ports.items()}}],
                    "nats": {key: str(v) if isinstance(v, Path) else v for key, v in nats.items()},
                }
            )
        )

    def command(self) -> list[str]:
        return [*super().command()[:3], "--config", str(self._file)]


@contextmanager
def running(folder: Path, nats: dict[str, Any], **environment: str) -> Iterator[ConfiguredServer]:
    server = ConfiguredServer(folder, nats, **environment)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def calling(server: ServerProcess) -> Iterator[Api]:
    api = Api(server.grpc)
    try:
        yield api
    finally:
        api.close()


def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


Login = tuple[str, dict[str, Any], dict[str, str]]
"""nats-server's configuration, our `nats` section, our environment."""


def user_and_password(folder: Path) -> Login:
    config = "authorization { user: me, password: 'p@ss:w/rd' }"
    return config, {"user": "me"}, {"JETSTREAM_NATS__PASSWORD": "p@ss:w/rd"}


def token(folder: Path) -> Login:
    return "authorization { token: 's3cr3t' }", {"token": "s3cr3t"}, {}


def nkey(folder: Path) -> Login:
    seed, public_key = new_user()
    (folder / "nats.seed").write_text(seed)
    config = f"authorization {{ users: [ {{ nkey: {public_key} }} ] }}"
    return config, {"nkey_seed_file": folder / "nats.seed"}, {}


def credentials_file(folder: Path) -> Login:
    operator = new_operator()
    (folder / "nats.creds").write_text(operator.credentials())
    return operator.config, {"credentials_file": folder / "nats.creds"}, {}


def mutual_tls(folder: Path) -> Login:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name, certificate in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("node")),
    ):
        certificate.private_key_pem.write_to_path(folder / f"{name}.key")
        certificate.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    config = (
        f'tls {{ cert_file: "{folder}/server.pem", key_file: "{folder}/server.key", '
        f'ca_file: "{folder}/ca.pem", verify: true }}'
    )
    files = {
        "ca_file": str(folder / "ca.pem"),
        "certificate_file": str(folder / "client.pem"),
        "key_file": str(folder / "client.key"),
    }
    return config, {"tls": files}, {}


@pytest.mark.parametrize("way", [user_and_password, token, nkey, credentials_file, mutual_tls])
def test_every_way_to_log_in_works_from_the_configuration_file(
    tmp_path: Path, way: Callable[[Path], Login]
) -> None:
    config, section, environment = way(tmp_path)
    with NatsServer(config) as nats:
        section = {"servers": [nats.url], **section}
        with running(tmp_path, section, **environment) as server, calling(server) as api:
            api.create("heard", "heard")  # Returns once NATS has confirmed the subscription.
            assert api.describe("heard").state == "online"
        text = server.log_text + server.ready_line
        assert "nats_connected" in text
        assert "nats_login_refused" not in text
        assert not any(secret in text for secret in ("p@ss:w/rd", "s3cr3t"))


def test_a_server_list_is_gone_through_and_every_lost_connection_is_counted(
    tmp_path: Path,
) -> None:
    """A gap is suspected only where a stream listened; `describe` and the log say so."""
    with NatsServer() as first:
        dead = f"nats://127.0.0.1:{free_port_base()}"
        section = {"servers": [dead, first.url]}
        with running(tmp_path, section) as server, calling(server) as api:
            api.create("counted", "counted")
            assert api.describe("counted").suspected_gaps == 0
            for lost in (1, 2):
                first.kill()
                first.start()
                eventually(lambda: publishes(first), "the stream listens again")
                assert api.describe("counted").suspected_gaps == lost
            assert '"suspected_gap": true' in server.log_text


def publishes(nats: NatsServer) -> bool:
    """Whether a published message is acknowledged."""
    with raw_nats(nats.url) as client:
        client.subscribe("_INBOX.counted")
        client.publish("counted", b"x", "_INBOX.counted")
        try:
            return b'"seq"' in client.message(0.5)[1]  # Else NATS's own "no responders".
        except TimeoutError:
            return False
