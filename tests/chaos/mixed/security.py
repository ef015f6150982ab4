"""A run with security on: TLS on every port, of nodes and of NATS, tokens and rules.

`user:admin` is made by the bootstrap token, as docs/security.md says, and does what operators do.
`user:app` may read every stream but `SECRET`. A stranger has no token.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import grpc

from examples.certificates.authority import Authority
from jetstream_client import Client, TlsConfig
from jetstream_client.values.config import NatsOptions
from jetstream_server.node.bootstrap import bootstrap
from jetstream_server.node.config import load
from tests.support.api import Api, DataPlane
from tests.support.tls import HOSTS

LIFETIME_US = 24 * 3_600_000_000
SECRET = "secret"
"""A stream that only the administrator may see."""


class Security:
    """folder: for certificates. `begin` makes the principals once the cluster runs."""

    def __init__(self, folder: Path) -> None:
        self._authority = Authority(folder)
        self.ca = str(self._authority.certificate_file)
        self.tls = TlsConfig(ca=self.ca)
        self.nats_options = NatsOptions(tls_ca=self.ca)
        self.admin = self.app = ""

    def context(self) -> ssl.SSLContext:
        """Of a client."""
        return ssl.create_default_context(cafile=self.ca)

    def sections(self, node: int) -> dict[str, Any]:
        """Of a node's configuration. The section `nats` has more."""
        certificate, key = self._authority.node(node, HOSTS)
        tls = {"certificate_file": str(certificate), "key_file": str(key), "ca_file": self.ca}
        return {"tls": {**tls, "client_auth": "none"}, "security": {"enabled": True}}

    def nats_section(self, name: str) -> dict[str, str]:
        """`tls` of a NATS server, for clients and for routes."""
        certificate, key = self._authority.issue(name, hosts=HOSTS, serves=True)
        return {"cert_file": str(certificate), "key_file": str(key), "ca_file": self.ca}

    def begin(self, config_file: Path, servers: str) -> None:
        """config_file: of a node that runs. Raises Refused, JetstreamError."""
        config = load(config_file, environment={})
        self.admin = bootstrap(config, config.nodes[0], "user:admin", LIFETIME_US)
        with Client(servers, tls=self.tls, token=self.admin, timeout=30) as client:
            client.add_acl("user:app", ["read", "commit", "write"], stream="*", subject=">")
            client.add_acl("user:app", "read", allow=False, stream=SECRET)
            client.create_stream(SECRET, SECRET)
            self.app = client.create_token("user:app").text

    def environment(self) -> dict[str, str]:
        """Of a program that is `user:app`."""
        return {"JETSTREAM_CA": self.ca, "JETSTREAM_TOKEN": self.app}

    def api(self, address: str) -> Api:
        """As administrator."""
        tls = grpc.ssl_channel_credentials(Path(self.ca).read_bytes())
        token = grpc.access_token_call_credentials(self.admin)
        return Api(address, grpc.composite_channel_credentials(tls, token))

    def data_plane(self, address: tuple[str, int]) -> DataPlane:
        """As administrator. Raises OSError."""
        return DataPlane(address, token=self.admin, tls=self.context())
