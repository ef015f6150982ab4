"""A real cluster whose nodes reach each other, and NATS, only over a network that can be cut.

Their wall clocks are hours apart, for nothing may depend on them but time stamps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from examples.cluster.local import NATS, LocalCluster, node_name
from tests.support import clocked_server
from tests.support.clocked_server import set_clock
from tests.support.cluster import TestCluster
from tests.support.fault_network import FaultNetwork

PORTS = ("grpc", "data", "raft")
"""Where a node is dialled by other nodes."""


HOURS_APART_US = 3 * 3_600_000_000


class RoutedCluster(LocalCluster):
    """The nodes are told other addresses than those that everybody else knows."""

    mutant = clocked_server.NO_MUTANT
    """The safety rule that all nodes go without, to see whether a test notices."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = clocked_server.command(self.directory / "clocks", self.mutant)

    @property
    def node_config_file(self) -> Path:
        return self.directory / "routed.yaml"


class FaultCluster(TestCluster):
    """Three nodes and a NATS server, each a process, and the network between them."""

    kind = RoutedCluster

    def __init__(self, directory: Path, nodes: int = 3) -> None:
        super().__init__(directory, nodes)
        self.network = FaultNetwork(self.processes.started)
        config = self.cluster.config
        for node in config["nodes"]:
            for port in PORTS:
                routed = self.network.route(node_name(node["id"]), port, node[port])
                node[port] = {"listen": node[port], "advertise": routed}
        routed = self.network.route(NATS, NATS, self.cluster.nats_url.removeprefix("nats://"))
        config["nats"] = {"servers": [f"nats://{routed}"], "advertise": [self.cluster.nats_url]}
        self.cluster.node_config_file.write_text(yaml.safe_dump(config))
        for node in self.nodes:
            set_clock(self.cluster.directory / "clocks", node, node * HOURS_APART_US)

    def close(self) -> None:
        super().close()
        self.network.close()

    def isolate(self, node: int, *kinds: str, both: bool = True) -> None:
        """Cut a node off from all others on those ports; one way: nothing it says gets out."""
        for other in self.nodes:
            if other != node:
                self.network.cut(node_name(node), node_name(other), *(kinds or PORTS), both=both)

    def deafen(self, node: int, *kinds: str) -> None:
        """Nothing that other nodes say reaches it; what it says gets out."""
        for other in self.nodes:
            if other != node:
                self.network.cut(node_name(other), node_name(node), *(kinds or PORTS), both=False)


@contextmanager
def running_fault_cluster(directory: Path, nodes: int = 3) -> Iterator[FaultCluster]:
    cluster = FaultCluster(directory, nodes)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
