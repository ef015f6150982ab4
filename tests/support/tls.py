"""Servers and clusters of processes whose ports speak TLS, with certificates of the test's own."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

import yaml

from examples.certificates.authority import Authority
from examples.cluster.local import LocalCluster
from tests.support.cluster import TestCluster
from tests.support.server import ServerProcess

HOSTS = ("localhost", "127.0.0.1")


def tls_variables(
    authority: Authority, files: tuple[Path, Path], client_auth: str = "required"
) -> dict[str, str]:
    """The section `tls` of a node, as its environment."""
    certificate, key = files
    return {
        "JETSTREAM_TLS__CERTIFICATE_FILE": str(certificate),
        "JETSTREAM_TLS__KEY_FILE": str(key),
        "JETSTREAM_TLS__CA_FILE": str(authority.certificate_file),
        "JETSTREAM_TLS__CLIENT_AUTH": client_auth,
    }


def tls_server(folder: Path, authority: Authority, client_auth: str = "required") -> ServerProcess:
    """A server with a certificate `server`, not yet started."""
    files = authority.issue("server", hosts=HOSTS, serves=True)
    environment = tls_variables(authority, files, client_auth)
    return ServerProcess(folder / "data", environment=environment)


class TlsLocalCluster(LocalCluster):
    """Every node has its certificate; clients must show the one called `client`."""

    def create(self, nodes: int | None = None, port_base: int | None = None) -> None:
        super().create(nodes, port_base)
        self.authority = Authority(self.directory / "certificates")
        self.client = self.authority.client("client")
        for node in self.node_ids:
            self.authority.node(node, HOSTS)

    def start_node(self, node: int) -> None:
        folder = self.authority.folder
        section = {
            "certificate_file": str(folder / f"node-{node}.crt"),
            "key_file": str(folder / f"node-{node}.key"),
            "ca_file": str(self.authority.certificate_file),
            "client_auth": "required",
        }
        self._starting = node
        self.node_config_file.write_text(yaml.safe_dump(self.config | {"tls": section}))
        super().start_node(node)

    @property
    def node_config_file(self) -> Path:
        return self.directory / f"node-{self._starting}.yaml"

    def _http(self, host: str, port: int) -> http.client.HTTPConnection:
        context = ssl.create_default_context(cafile=self.authority.certificate_file)
        context.load_cert_chain(*self.client)
        return http.client.HTTPSConnection(host, port, timeout=1.0, context=context)


class TlsCluster(TestCluster):
    """A TestCluster of such nodes. Its `api` is of no use: take a client of the SDK."""

    kind = TlsLocalCluster
    cluster: TlsLocalCluster
