"""A real cluster on which everything can be disturbed: processes, links, clocks, disks, files."""

from __future__ import annotations

import http.client
import json
import os
import signal
import time
from contextlib import ExitStack
from itertools import combinations
from pathlib import Path
from typing import Any

import yaml

from examples.cluster.local import NATS, NATS_PORT, node_name
from examples.cluster.processes import ClusterError
from jetstream_protocol.errors import JetstreamError
from jetstream_server.ingest.nats.server_process import find_binary
from jetstream_server.node.config import split_address
from tests.chaos.damage.copies import Copy, Reader
from tests.chaos.damage.streams import SEGMENT_BYTES, Stream
from tests.chaos.mixed.security import Security
from tests.chaos.mixed.streams import GROUP, SHARED, STREAMS
from tests.support import faulty_server
from tests.support.api import Api, DataPlane
from tests.support.breaking_server import break_disk
from tests.support.clocked_server import set_clock
from tests.support.fault_cluster import PORTS, FaultCluster, RoutedCluster
from tests.support.fault_network import STRANGER, Bad
from tests.support.small_disk import SmallDisk

REPLICAS = 3
START_SECONDS = 120.0
WHOLE_SECONDS = 120.0
LOOK_SECONDS = 0.3
NATS_SERVERS = range(3)
ROUTE = "route"
ROUTE_PORT = NATS_PORT + 1
"""Server n has two of the ports that node n leaves free."""
DISK_BYTES = 512 << 20
RESERVE_BYTES = 16 << 20


def nats_name(number: int) -> str:
    """What the folder calls a NATS server's process."""
    return f"{NATS}-{number}"


class _Faulty(RoutedCluster):
    security: Security | None = None
    _starting: int | None = None

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        (self.directory / "faults").mkdir(parents=True, exist_ok=True)
        self.server = faulty_server.command(self.directory / "faults")

    def start_nats(self) -> None:
        for number in NATS_SERVERS:
            self.start_nats_server(number)

    def start_nats_server(self, number: int) -> None:
        """As its configuration file says, unless it runs."""
        name = nats_name(number)
        with self.processes.changing():
            if self.processes.pid(name) is None:
                file = self.directory / f"{name}.conf"
                self.processes.start(name, [find_binary(), "-c", str(file)])

    def start_node(self, node: int) -> None:
        if self.security is not None:
            config = yaml.safe_load(super().node_config_file.read_text())
            self._own_config_file(node).write_text(
                yaml.safe_dump({**config, **self.security.sections(node)})
            )
        self._starting = node
        super().start_node(node)

    @property
    def node_config_file(self) -> Path:
        """Certificates are each node's own."""
        if self.security is None or self._starting is None:
            return super().node_config_file
        return self._own_config_file(self._starting)

    def _own_config_file(self, node: int) -> Path:
        return self.directory / f"{node_name(node)}.yaml"

    def _http(self, host: str, port: int) -> http.client.HTTPConnection:
        if self.security is None:
            return super()._http(host, port)
        context = self.security.context()
        return http.client.HTTPSConnection(host, port, timeout=1.0, context=context)

    def disk(self, node: int) -> Path:
        """Where its disk is mounted, if it has one of its own."""
        return self.directory / "disks" / node_name(node)

    def data(self, node: int) -> Path:
        return self.disk(node) / "data"


class MixedCluster(FaultCluster):
    """`start` gives it the streams. `heal` ends every disturbance.

    small_disks: whether each node has a disk of its own that can be filled, which takes root.
    """

    kind = _Faulty
    cluster: _Faulty

    def __init__(self, directory: Path, nodes: int, *, small_disks: bool, secured: bool) -> None:
        super().__init__(directory, nodes)
        self.security = Security(directory / "certificates") if secured else None
        self._mounted = ExitStack()
        self._disks: dict[int, SmallDisk] = {}
        self._faults = self.cluster.directory / "faults"
        for node in self.nodes:
            self.set_clock(node, 0)
        config = yaml.safe_load(self.cluster.node_config_file.read_text())
        config["nats"] = self._join_nats_servers()
        config["log"] = {"segment_bytes": SEGMENT_BYTES, "disk_reserve_bytes": RESERVE_BYTES}
        self.cluster.node_config_file.write_text(yaml.safe_dump(config))
        self.cluster.security = self.security
        self._reader = Reader(DataPlane if self.security is None else self.security.data_plane)
        self._data = {
            node["id"]: split_address(node["data"]) for node in self.cluster.config["nodes"]
        }
        self.frozen: set[int] = set()
        self._frozen_nats: set[int] = set()
        for node in self.nodes:
            path = self.cluster.disk(node)
            path.mkdir(parents=True)
            if small_disks:
                image = path.with_suffix(".image")
                self._disks[node] = SmallDisk(path, DISK_BYTES, image)
                self._mounted.callback(self._disks[node].close)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._mounted.close()

    def start(self) -> None:
        super().start()
        if self.security is not None:
            self.security.begin(self.cluster.node_config_file, self.servers)
        self.create_streams()

    def create_streams(self) -> None:
        # Refused until every node has registered, and the cluster knows that all of them can.
        observed = {"observers": 1} if len(self.nodes) > REPLICAS else {}
        for stream in STREAMS:
            config = {**stream.config(REPLICAS), **observed}
            self.wait_for(
                f"{stream.name} exists",
                lambda stream=stream, config=config: bool(  # type: ignore[misc]
                    self.api(0).create(stream.name, stream.name, **config)
                ),
            )
        for name in SHARED:
            self.api(0).create(name, GROUP, replicas=REPLICAS, group=GROUP)

    @property
    def stream_names(self) -> tuple[str, ...]:
        return (*(each.name for each in STREAMS), *SHARED)

    def api(self, node: int) -> Api:
        if self.security is not None and node not in self._apis:
            self._apis[node] = self.security.api(self.cluster.grpc_addresses[node])
        return super().api(node)

    @property
    def nats(self) -> str:
        """The URLs of all NATS servers, with commas between them."""
        return ",".join(
            f"{self._nats_scheme}://{self._nats_address(number)}" for number in NATS_SERVERS
        )

    @property
    def _nats_scheme(self) -> str:
        return "nats" if self.security is None else "tls"

    def _nats_address(self, number: int, port: int = NATS_PORT) -> str:
        host, first = split_address(self.cluster.config["nodes"][number]["grpc"])
        return f"{host}:{first + port}"

    def _join_nats_servers(self) -> dict[str, Any]:
        """Write their configuration; returns the section `nats` of a node's."""
        routes = {
            number: self.network.route(
                nats_name(number), ROUTE, self._nats_address(number, ROUTE_PORT)
            )
            for number in NATS_SERVERS
        }
        for number in NATS_SERVERS:
            others = [f"nats-route://{routes[other]}" for other in NATS_SERVERS if other != number]
            config: dict[str, Any] = {
                "listen": self._nats_address(number),
                "server_name": nats_name(number),
                "cluster": {
                    "name": "chaos",
                    "listen": self._nats_address(number, ROUTE_PORT),
                    "advertise": routes[number],
                    "no_advertise": True,  # Nodes know them all, by the addresses of proxies.
                    "routes": others,
                },
            }
            if self.security is not None:
                config["tls"] = self.security.nats_section(nats_name(number))
                config["cluster"]["tls"] = config["tls"]
            file = self.cluster.directory / f"{nats_name(number)}.conf"
            file.write_text(json.dumps(config, indent=1))
        dialled = [
            self.network.route(nats_name(number), NATS, self._nats_address(number))
            for number in NATS_SERVERS
        ]
        section: dict[str, Any] = {
            "servers": [f"{self._nats_scheme}://{address}" for address in dialled],
            "advertise": self.nats.split(","),
        }
        if self.security is not None:
            section["tls"] = {"ca_file": self.security.ca}
        return section

    # What is done to it.

    def set_clock(self, node: int, microseconds: int) -> None:
        set_clock(faulty_server.clocks_file(self._faults), node, microseconds)

    def break_disk(self, node: int, *faults: str) -> None:
        break_disk(faulty_server.disks_folder(self._faults), node, *faults)

    def fill_disk(self, node: int, free_bytes: int) -> None:
        self._disks[node].leave(free_bytes)

    def cut_from_nats(self, node: int, *numbers: int) -> None:
        for number in numbers:
            self.network.cut(node_name(node), nats_name(number), NATS)

    def cut_nats_route(self, one: int, other: int) -> None:
        """Whichever of the two has dialled."""
        self.network.cut(nats_name(one), nats_name(other), ROUTE)

    def spoil(self, node: int, bad: Bad) -> None:
        """All links of the node: to other nodes, to NATS, and to clients that fetch from it."""
        name = node_name(node)
        for other in self.nodes:
            if other != node:
                self.network.spoil(name, node_name(other), *PORTS, bad=bad)
        for number in NATS_SERVERS:
            self.network.spoil(name, nats_name(number), NATS, bad=bad)
        self.network.spoil(STRANGER, name, *PORTS, bad=bad)

    def spoil_nats_routes(self, bad: Bad) -> None:
        for one, other in combinations(NATS_SERVERS, 2):
            self.network.spoil(nats_name(one), nats_name(other), ROUTE, bad=bad)

    def kill_nats(self, number: int) -> None:
        self.cluster.end(nats_name(number), signal.SIGKILL)

    def freeze_nats(self, number: int) -> None:
        """Nothing happens to one that is gone."""
        self._signal_nats(number, signal.SIGSTOP)
        self._frozen_nats.add(number)

    def _signal_nats(self, number: int, which: signal.Signals) -> None:
        pid = self.cluster.processes.pid(nats_name(number))
        if pid is not None:
            os.kill(pid, which)

    def freeze(self, node: int) -> None:
        super().freeze(node)
        self.frozen.add(node)

    def thaw(self, node: int) -> None:
        if node in self.frozen:
            self.frozen.discard(node)
            if self.is_running(node):  # Another fault may have killed it.
                super().thaw(node)

    def data(self, node: int) -> Path:
        return self.cluster.data(node)

    def is_running(self, node: int) -> bool:
        return self.cluster.processes.pid(node_name(node)) is not None

    def last_words(self, node: int) -> str:
        return self.cluster.processes.last_words(node_name(node))

    def launch(self, node: int) -> None:
        """Start its process, once its ports are free; it need not serve yet."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self.cluster.start_node(node)
                break
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        if node in self._apis:
            self._apis.pop(node).close()

    def heal(self) -> None:
        """Every process runs, every link is whole, every disk works. Clocks stay as they are."""
        self.network.heal()
        for number in NATS_SERVERS:
            if number in self._frozen_nats:
                self._signal_nats(number, signal.SIGCONT)
            self.cluster.start_nats_server(number)
        self._frozen_nats.clear()
        for node in self.nodes:
            self.thaw(node)
            self.break_disk(node)
            if node in self._disks:
                self._disks[node].empty()
            if not self.is_running(node):
                self.launch(node)

    # How it is.

    def why_not_whole(self) -> str:
        """ "" when all replicas of all streams are in sync and everything is committed."""
        for node in self.nodes:
            if not self.is_running(node):
                return f"node {node} has ended: {self.last_words(node)}"
        for name in self.stream_names:
            try:
                found = self.describe(name)
            except (AssertionError, JetstreamError) as error:
                return f"{name}: {error} ({error.__cause__})"
            if sorted(found.stream.isr) != sorted(found.stream.replicas):
                return f"{name}: the ISR is {sorted(found.stream.isr)}"
            if found.state != "online":
                return f"{name}: state {found.state!r}"
            if found.stream.target_replicas:
                return f"{name}: moves to {list(found.stream.target_replicas)}"
        return ""

    def wait_until_whole(self, seconds: float = WHOLE_SECONDS) -> str:
        """Why it is not, after so long; "" when it is. A node that has ended is started again."""
        deadline = time.monotonic() + seconds
        while reason := self.why_not_whole():
            if time.monotonic() > deadline:
                return f"not whole after {seconds:.0f} s: {reason}"
            for node in self.nodes:
                if not self.is_running(node):
                    self.launch(node)
            time.sleep(LOOK_SECONDS)
        return ""

    def copies(self, stream: Stream) -> list[Copy]:
        """What each replica and each observer serves. Raises JetstreamError, OSError, EOFError."""
        found = self.describe(stream.name).stream
        nodes = sorted({*found.replicas, *found.observers})
        return [self._reader.read(self._data[node], node, stream) for node in nodes]
