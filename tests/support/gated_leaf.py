"""Leaf links of nodes that each pass a gate of their own, so that they can be lost one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import yaml

from tests.support.gate import Gate
from tests.support.jetstream_api import ApiCluster, NatsIsThere, api_cluster
from tests.support.leaf import LeafServer
from tests.support.patient_server import PatientNodes

NODES = 3


class GatedNodes(NatsIsThere, PatientNodes):
    """Each node has a gate of its own to NATS."""

    gates: ClassVar[list[Gate]] = []
    starting = 0

    @property
    def node_config_file(self) -> Path:
        return self.directory / f"node-{self.starting}.yaml"

    def start_node(self, node: int) -> None:
        self.starting = node
        config = self.config
        config["nats"]["leaf"] = {"servers": [f"nats://127.0.0.1:{self.gates[node].port}"]}
        self.node_config_file.write_text(yaml.safe_dump(config))
        super().start_node(node)


class GatedCluster(ApiCluster):
    kind = GatedNodes


@contextmanager
def gated_cluster(directory: Path) -> Iterator[tuple[ApiCluster, LeafServer, list[Gate]]]:
    """A cluster, its NATS server, and each node's gate to that."""
    with ExitStack() as stack:
        hub = stack.enter_context(LeafServer(leaf="no_advertise: true"))
        gates = [stack.enter_context(Gate(hub.leaf_port)) for _ in range(NODES)]
        stack.enter_context(patch.object(GatedNodes, "gates", gates))
        cluster = stack.enter_context(api_cluster(directory, hub, kind=GatedCluster))
        yield cluster, hub, gates
