"""A real server with security on, and principals to try it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from jetstream_client import Client
from jetstream_server.node.bootstrap import bootstrap
from jetstream_server.node.config import load
from tests.support.server import ServerProcess

CREDENTIAL = "planted-credential-5f1e"


class SecuredServer(ServerProcess):
    """`start` also makes the first administrator, whose token is `admin`."""

    admin = ""

    def __init__(self, data: Path, *arguments: str, **limits: int) -> None:
        """limits: keys below `security`."""
        super().__init__(
            data,
            *arguments,
            environment={
                "JETSTREAM_SECURITY__ENABLED": "true",
                "JETSTREAM_CREDENTIAL": CREDENTIAL,
                **{f"JETSTREAM_SECURITY__{key.upper()}": str(limits[key]) for key in limits},
            },
        )

    @property
    def config_file(self) -> Path:
        """What `jetstream-server token` is told."""
        names = ("grpc", "data", "raft", "http")
        ports = {name: f"127.0.0.1:{self.port_base + at}" for at, name in enumerate(names)}
        path = self.data.parent / "secured.yaml"
        path.write_text(yaml.safe_dump({"nodes": [{"id": 0, **ports}], "credential": CREDENTIAL}))
        return path

    def bootstrap(self, principal: str = "user:admin") -> str:
        """The first administrator's token. Raises Refused."""
        config = load(self.config_file, environment={})
        return bootstrap(config, config.nodes[0], principal, 3600 * 1_000_000)

    def client(self, token: str | None = None) -> Client:
        return Client(self.grpc, token=self.admin if token is None else token, timeout=5)


@contextmanager
def secured_server(data: Path, **limits: int) -> Iterator[SecuredServer]:
    server = SecuredServer(data, **limits)
    server.start()
    try:
        server.admin = server.bootstrap()
        yield server
    finally:
        server.kill()
