"""A real server with security on, and principals to try it with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import yaml

from examples.certificates.authority import Authority
from jetstream_client import Client, TlsConfig
from jetstream_server.node.bootstrap import bootstrap
from jetstream_server.node.config import load
from tests.support.server import ServerProcess
from tests.support.tls import HOSTS, tls_variables

S = TypeVar("S", bound="SecuredServer")
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
        """The configuration file for `jetstream-server token`."""
        names = ("grpc", "data", "raft", "http")
        ports = {name: f"127.0.0.1:{self.port_base + at}" for at, name in enumerate(names)}
        path = self.data.parent / "secured.yaml"
        path.write_text(yaml.safe_dump({"nodes": [{"id": 0, **ports}], "credential": CREDENTIAL}))
        return path

    def bootstrap(self, principal: str = "user:admin") -> str:
        """The first administrator's token. Raises Refused."""
        config = load(self.config_file, environment={})
        return bootstrap(config, config.nodes[0], principal, 3600 * 1_000_000)

    def client(self, token: str | None = None, timeout: float = 60) -> Client:
        return Client(self.grpc, token=self.admin if token is None else token, timeout=timeout)


class SecuredTlsServer(SecuredServer):
    """client_auth: whether its clients must show certificates of `authority`."""

    def __init__(self, folder: Path, client_auth: str = "required") -> None:
        super().__init__(folder / "data")
        self.authority = Authority(folder / "certificates")
        files = self.authority.issue("server", hosts=HOSTS, serves=True)
        self.environment |= tls_variables(self.authority, files, client_auth)

    def bootstrap(self, principal: str = "user:admin") -> str:
        """As its command does it, with the configuration of the node."""
        named = {k: v for k, v in self.environment.items() if k.startswith("JETSTREAM_TLS")}
        config = load(self.config_file, environment={})
        tls = {k.removeprefix("JETSTREAM_TLS__").lower(): v for k, v in named.items()}
        settings = config.model_copy(update={"tls": type(config).model_validate({"tls": tls}).tls})
        return bootstrap(settings, settings.nodes[0], principal, 3600 * 1_000_000)

    def tls(self, files: tuple[Path, ...] = ()) -> TlsConfig:
        """files: a certificate and its key."""
        return TlsConfig(str(self.authority.certificate_file), *map(str, files))

    def client(self, token: str | None = None, timeout: float = 60) -> Client:
        """For servers that ask for no certificate."""
        token = self.admin if token is None else token
        return Client(self.grpc, token=token, timeout=timeout, tls=self.tls())


class SecuredNode(SecuredServer):
    """Its Raft port is open: other nodes may join."""

    def __init__(self, data: Path) -> None:
        super().__init__(data)
        self.environment["JETSTREAM_VOTERS"] = "[0]"


class SecuredTlsNode(SecuredTlsServer):
    """The same with TLS, and the certificate of a node."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "none")
        files = self.authority.node(0, HOSTS)
        self.environment |= tls_variables(self.authority, files, "none")
        self.environment["JETSTREAM_VOTERS"] = "[0]"


@contextmanager
def secured_server(data: Path, **limits: int) -> Iterator[SecuredServer]:
    with administered(SecuredServer(data, **limits)) as server:
        yield server


@contextmanager
def administered(server: S) -> Iterator[S]:
    """The server, running, with its first administrator."""
    server.start()
    try:
        server.admin = server.bootstrap()
        yield server
    finally:
        server.kill()
