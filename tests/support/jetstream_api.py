"""Servers and clusters that serve the JetStream API on the domain `log`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import yaml
from nats.aio.client import Client as NatsClient

from examples.cluster.local import LocalCluster
from jetstream_server.node.bootstrap import bootstrap
from jetstream_server.node.config import load
from tests.support.cluster import TestCluster
from tests.support.leaf import DOMAIN, LeafServer, answer
from tests.support.patient_server import PatientNodes
from tests.support.secured import SecuredServer, administered
from tests.support.server import ServerProcess

_FIRST = {"name": "first", "max_msg_size": 1000}


def api_variables(nats: LeafServer, leaf_user: str = "", principal: str = "") -> dict[str, str]:
    """The section `nats`, as its environment. leaf_user: with which the leaf link logs in; its
    password is the same."""
    leaf: dict[str, object] = {"servers": [nats.leaf_url]}
    if leaf_user:
        leaf |= {"user": leaf_user, "password": leaf_user}
    return {
        "JETSTREAM_NATS__API_DOMAIN": DOMAIN,
        "JETSTREAM_NATS__API_PRINCIPAL": principal,
        "JETSTREAM_NATS__LEAF": json.dumps(leaf),
    }


@contextmanager
def api_server(
    data: Path,
    nats: LeafServer,
    *,
    user: str = "",
    leaf_user: str = "",
    more: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """A server beside a running NATS server. user: for ingest, as `leaf_user`. more: of its
    environment."""
    environment = api_variables(nats, leaf_user) | dict(more or {})
    url = nats.url.replace("://", f"://{user}:{user}@") if user else nats.url
    server = ServerProcess(data, "--nats", url, environment=environment)
    try:
        yield server.start()
    finally:
        server.kill()


@contextmanager
def secured_api_server(data: Path, nats: LeafServer, principal: str) -> Iterator[SecuredServer]:
    """The same with security on, and the first administrator."""
    server = SecuredServer(data, "--nats", nats.url)
    server.environment |= api_variables(nats, principal=principal)
    with administered(server):
        yield server


async def until_it_takes_every_setting(client: NatsClient) -> None:
    """Return once a server that has just begun, or a cluster, takes every setting of streams."""
    async with asyncio.timeout(60):
        while "error" in (told := await answer(client, "STREAM.CREATE.first", _FIRST)):
            assert told["error"]["err_code"] == 10008, told
            await asyncio.sleep(0.05)
    await answer(client, "STREAM.DELETE.first")


class NatsIsThere(LocalCluster):
    """Nodes beside a NATS server that runs already."""

    def start_nats(self) -> None:
        """There is one already."""


class _PatientNodes(NatsIsThere, PatientNodes): ...


class ApiCluster(TestCluster):
    kind: type[LocalCluster] = _PatientNodes

    def bootstrap(self) -> str:
        """The token of the first administrator, where security is on."""
        config = load(self.cluster.config_file, environment={})
        return bootstrap(config, config.nodes[0], "user:admin", 3600 * 1_000_000)


class ImpatientCluster(ApiCluster):
    """Its nodes are missed as soon as they are by default."""

    kind = NatsIsThere


@contextmanager
def api_cluster(
    directory: Path, nats: LeafServer, principal: str = "", kind: type[ApiCluster] = ApiCluster
) -> Iterator[ApiCluster]:
    """Three nodes beside a running NATS server. principal: security is on, and clients of the API
    have its rights."""
    cluster = kind(directory)
    section = {
        "servers": [nats.url],
        "api_domain": DOMAIN,
        "api_principal": principal,
        "leaf": {"servers": [nats.leaf_url]},
    }
    config = cluster.cluster.config | {"nats": section, "security": {"enabled": bool(principal)}}
    cluster.cluster.config_file.write_text(yaml.safe_dump(config))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
