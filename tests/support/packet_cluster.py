"""A real cluster whose nodes, and NATS, are on machines of their own, with packets lost between.

    network = PacketNetwork(folder); network.run("tests.chaos.packets", …)    makes the machines
    cluster = PacketCluster(directory, Machines.from_environment())           on one of them

The machines are network namespaces (namespaces.py) on one bridge. A cut sets the neighbour's
address to one that no machine has. Packets in that direction are then lost silently, on existing
connections too. Nodes' wall clocks are hours apart.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from examples.cluster.local import NATS, NATS_PORT, READY_SECONDS, LocalCluster, node_name, serves
from examples.cluster.processes import ClusterError
from jetstream_server.ingest.nats.server_process import find_binary
from jetstream_server.node.config import PORTS, split_address
from tests.support import clocked_server
from tests.support.clocked_server import set_clock
from tests.support.cluster import TestCluster
from tests.support.fault_cluster import HOURS_APART_US
from tests.support.namespaces import Machine, Network

DRIVER = "driver"
"""The machine of whoever strikes and publishes: never cut off."""
VARIABLE = "PACKET_MACHINES"
NOBODY = "02:00:00:00:00:01"
PORT_BASE = 9292


class Machines:
    """The process that holds each machine, and its address."""

    def __init__(self, pids: dict[str, int], addresses: dict[str, str]) -> None:
        self.addresses = addresses
        self._pids = pids
        self._cut: set[tuple[str, str]] = set()

    @classmethod
    def from_environment(cls) -> Machines:
        """As `PacketNetwork.run` tells them."""
        told: dict[str, Any] = json.loads(os.environ[VARIABLE])
        return cls(told["pids"], told["addresses"])

    def enter(self, name: str) -> list[str]:
        """What to put in front of a command that is to run there."""
        return ["nsenter", "-t", str(self._pids[name]), "--net", "--mount", "--uts", "--"]

    def cut(self, source: str, target: str, *, both: bool = True) -> None:
        """From now on what `source` sends to `target` is lost, and what comes back if `both`."""
        ways = [(source, target), (target, source)] if both else [(source, target)]
        for way in ways:
            if way not in self._cut:
                self._neighbour(way, "replace", "lladdr", NOBODY, "nud", "permanent")
                self._cut.add(way)

    def heal(self) -> None:
        for way in sorted(self._cut):
            self._neighbour(way, "del")
        self._cut.clear()

    def _neighbour(self, way: tuple[str, str], what: str, *more: str) -> None:
        words = ["ip", "neigh", what, self.addresses[way[1]], *more, "dev", "eth0"]
        subprocess.run([*self.enter(way[0]), *words], check=True, timeout=60)


class PacketNetwork:
    """The machines of a cluster: `run` a module on the driver's."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.names = [*map(node_name, range(nodes)), NATS, DRIVER]
        self._network = Network(folder, self.names)

    @property
    def _driver(self) -> Machine:
        return self._network.machines[DRIVER]

    def run(self, module: str, *arguments: str) -> int:
        """Its exit code; it prints where we do."""
        machines = self._network.machines
        told = {
            "pids": {name: machines[name].pid for name in self.names},
            "addresses": {name: machines[name].address for name in self.names},
        }
        command = self._driver.command(sys.executable, "-m", module, *arguments)
        environment = {**os.environ, VARIABLE: json.dumps(told), "PYTHONPATH": os.getcwd()}
        return subprocess.run(command, env=environment).returncode

    def close(self) -> None:
        self._network.close()


class _LocalOnMachines(LocalCluster):
    """`machines` is set before anything is started."""

    machines: Machines

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.server = clocked_server.command(self.directory / "clocks")

    def place(self, machines: Machines) -> None:
        """Have everybody listen on the machine that has its name."""
        self.machines = machines
        config = self.config
        config["insecure"] = True
        for node in config["nodes"]:
            address = machines.addresses[node_name(node["id"])]
            node.update({name: f"{address}:{PORT_BASE + at}" for at, name in enumerate(PORTS)})
        nats = f"nats://{machines.addresses[NATS]}:{PORT_BASE + NATS_PORT}"
        config["nats"] = {"servers": [nats]}
        self.config_file.write_text(yaml.safe_dump(config))

    def start_nats(self) -> None:
        address = self.machines.addresses[NATS], PORT_BASE + NATS_PORT
        words = [find_binary(), "--addr", address[0], "--port", str(address[1])]
        self._start(NATS, [*self.machines.enter(NATS), *words])
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                socket.create_connection(address, timeout=1.0).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ClusterError("NATS takes no connections") from error
                time.sleep(0.05)

    def start_node(self, node: int) -> None:
        data = self.directory / node_name(node)
        words = ["--config", str(self.config_file), "--node-id", str(node), "--data", str(data)]
        enter = self.machines.enter(node_name(node))
        self._start(node_name(node), [*enter, *self.server, *words])

    def _check_ports(self, *names: str) -> None:
        """No other process uses them on these machines."""

    def why_not_ready(self, node: int) -> str:
        host, port = split_address(self.config["nodes"][node]["http"])
        connection = http.client.HTTPConnection(host, port, timeout=1.0)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            said = answer.read().decode(errors="replace")
            return "" if serves(answer.status, said) else said
        except (OSError, http.client.HTTPException) as error:
            return f"/readyz does not answer: {error}"
        finally:
            connection.close()


class PacketCluster(TestCluster):
    """Three nodes and a NATS server on machines of their own."""

    kind = _LocalOnMachines

    def __init__(self, directory: Path, machines: Machines) -> None:
        nodes = sum(name.startswith("node-") for name in machines.addresses)
        super().__init__(directory, nodes)
        assert isinstance(self.cluster, _LocalOnMachines)
        self.cluster.place(machines)
        self.machines = machines
        for node in self.nodes:
            set_clock(self.cluster.directory / "clocks", node, node * HOURS_APART_US)

    def isolate(self, node: int, *, nats: bool = True) -> None:
        """Cut a node off from all others, and from NATS too."""
        for other in self.nodes:
            if other != node:
                self.machines.cut(node_name(node), node_name(other))
        if nats:
            self.machines.cut(node_name(node), NATS)


@contextmanager
def running_packet_cluster(directory: Path) -> Iterator[PacketCluster]:
    """On the driver's machine."""
    cluster = PacketCluster(directory, Machines.from_environment())
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()
