"""A cluster of processes on this machine, kept in one folder.

The folder holds cluster.yaml, the nodes' data and every process's log. NATS is a process of its
own, which survives the nodes. Node i listens on port-base + 10·i (gRPC; then data, Raft, HTTP),
NATS on port-base + 4.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from examples.cluster.ports import is_free, listens
from examples.cluster.processes import ClusterError, Processes
from jetstream_server.node.config import PORT_BASE_DEFAULT, PORTS, split_address, voter_count

NODES_DEFAULT = 3
PORTS_BETWEEN_NODES = 10
NATS_PORT = 4
READY_SECONDS = 120.0
MAJORITY_SECONDS = 5.0
"""How long a start waits for others that are being started, too."""
NATS = "nats"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The first, where it was compiled, is ten times quicker; whoever waits for a node reads often."""
_HOST = "127.0.0.1"


def node_name(node: int) -> str:
    """What the folder calls a node's process."""
    return f"node-{node}"


class LocalCluster:
    """A cluster's folder and its processes. Methods raise ClusterError."""

    server: tuple[str, ...] = (sys.executable, "-m", "jetstream_server")
    """What a node runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.processes = Processes(self.directory)

    # What it is.

    @property
    def config_file(self) -> Path:
        return self.directory / "cluster.yaml"

    @property
    def node_config_file(self) -> Path:
        """What the nodes are started with."""
        return self.config_file

    @property
    def config(self) -> dict[str, Any]:
        if not self.config_file.exists():
            raise ClusterError(
                f"{self.directory} holds no cluster: make one with scripts/cluster up"
            )
        try:
            config: dict[str, Any] = yaml.load(self.config_file.read_text(), Loader=_LOADER)
            config["nodes"][0]
            _addresses(config)
        except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ClusterError(f"{self.config_file} is damaged; mend or delete it") from error
        return config

    def check(self) -> None:
        """Raise ClusterError unless there is a cluster in the folder."""
        _ = self.config

    def data(self, node: int) -> Path:
        """A node's data folder."""
        return self.directory / node_name(node)

    def check_node(self, node: int) -> None:
        """Raise ClusterError unless the cluster has that node."""
        if node not in self.node_ids:
            nodes = ", ".join(map(str, self.node_ids))
            raise ClusterError(f"there is no node {node}; nodes are {nodes}")

    @property
    def node_ids(self) -> list[int]:
        return [node["id"] for node in self.config["nodes"]]

    @property
    def grpc_addresses(self) -> list[str]:
        return [node["grpc"] for node in self.config["nodes"]]

    @property
    def nats_url(self) -> str:
        url: str = self.config["nats"]["servers"][0]
        return url

    def create(self, nodes: int | None = None, port_base: int | None = None) -> None:
        """Write the configuration. If the cluster exists, check that it is the one asked for."""
        with self.processes.changing():
            if self.config_file.exists():
                self._check_is(nodes, port_base)
                return
            if self.pids():
                raise ClusterError(
                    f"{self.config_file} is gone, but not its processes: end them first, with "
                    + self.command("down")
                )
            config = _configuration(nodes or NODES_DEFAULT, port_base or PORT_BASE_DEFAULT)
            _check_free(_addresses(config))
            new = self.config_file.with_suffix(".new")
            new.touch(mode=0o600)  # It holds the credential.
            new.write_text(yaml.safe_dump(config, sort_keys=False))
            new.replace(self.config_file)

    def _check_is(self, nodes: int | None, port_base: int | None) -> None:
        config = self.config
        count = len(config["nodes"])
        port = split_address(config["nodes"][0]["grpc"])[1]
        if nodes not in (None, count) or port_base not in (None, port):
            raise ClusterError(
                f"{self.directory} is a cluster of {counted(count)} on port {port}: take another "
                f"--dir, or delete it first, with {self.command('down --delete')}"
            )

    def command(self, words: str) -> str:
        """What to type."""
        return f"scripts/cluster {words} --dir {shlex.quote(str(self.directory))}"

    # All of it.

    def start(self) -> None:
        """NATS and every node that is not running; returns when all of them serve."""
        nodes = self.node_ids
        with self.processes.changing():
            self._check_ports(NATS, *map(node_name, nodes))
        self.start_nats()
        for node in nodes:
            self.start_node(node)
        self.wait_for_nodes(*nodes)

    def stop(self) -> None:
        """Every node, then NATS."""
        if self.pids():
            with self.processes.changing():
                self._end_all()

    def delete(self) -> None:
        """`stop`, and delete the folder, data and all."""
        with self.processes.changing():
            self._end_all()
            shutil.rmtree(self.directory)

    def _end_all(self) -> None:
        for name in sorted(self.pids(), reverse=True):  # Nodes before NATS.
            self.end(name, signal.SIGTERM)

    # Processes.

    def pids(self) -> dict[str, int]:
        """The processes that are alive, by name: "nats", "node-0", …"""
        return self.processes.pids()

    def start_nats(self) -> None:
        """Returns when it takes connections."""
        host, port = _addresses(self.config)[NATS][0]
        self._start(NATS, [_program("nats-server"), "--addr", host, "--port", str(port)])
        deadline = time.monotonic() + READY_SECONDS
        while not listens(self._pid(NATS), port):
            if time.monotonic() > deadline:
                raise self._late_error(NATS, "it takes no connections")
            time.sleep(0.03)

    def start_node(self, node: int) -> None:
        """Start its process, unless it runs; `wait_for_nodes` waits until it serves."""
        self.check_node(node)
        config = str(self.node_config_file)
        arguments = ["--config", config, "--node-id", str(node), "--data", str(self.data(node))]
        self._start(node_name(node), [*self.server, *arguments])

    def _start(self, name: str, arguments: list[str]) -> None:
        with self.processes.changing():
            if name not in self.pids():
                self._check_ports(name)
                self.processes.start(name, arguments)

    def _check_ports(self, *names: str) -> None:
        """That those that do not run yet find theirs free."""
        addresses, running = _addresses(self.config), self.pids()
        _check_free({name: addresses[name] for name in names if name not in running})

    def end(self, name: str, number: int) -> bool:
        """Signal a process and wait for its end; whether there was one."""
        return self.processes.end(name, number)

    def kill_node(self, node: int) -> bool:
        """SIGKILL, as a crash would end it; whether it ran."""
        return self.end(node_name(node), signal.SIGKILL)

    # Readiness.

    def wait_for_nodes(self, *nodes: int) -> None:
        """Returns when each of them says that it serves."""
        for node in nodes:
            begun = time.monotonic()
            while reason := self.why_not_ready(node):
                for each in nodes:
                    self._pid(node_name(each))
                waited = time.monotonic() - begun
                if waited > MAJORITY_SECONDS and (missing := self._missing_majority()):
                    raise ClusterError(
                        f"{node_name(node)} runs and {missing}: {self.command('up')} starts all"
                    )
                if waited > READY_SECONDS:
                    raise self._late_error(node_name(node), reason)
                time.sleep(0.03)

    def why_not_ready(self, node: int) -> str:
        """Why a node that runs does not serve; "" when it does, also while it catches up."""
        host, port = _addresses(self.config)[node_name(node)][PORTS.index("http")]
        pid = self.processes.pid(node_name(node))
        if pid is not None and listens(pid, port):
            connection = self._http(host, port)
            try:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                said = answer.read().decode(errors="replace")
                return "" if serves(answer.status, said) else "; ".join(said.splitlines())
            except (OSError, http.client.HTTPException):
                return "/readyz does not answer"
            finally:
                connection.close()
        return self._missing_majority() or "it is still starting"

    def _http(self, host: str, port: int) -> http.client.HTTPConnection:
        return http.client.HTTPConnection(host, port, timeout=1.0)

    def _missing_majority(self) -> str:
        """What a node waits for while too few voters run; "" once enough do."""
        first = sorted(self.node_ids)[: voter_count(len(self.node_ids))]
        voters = self.config.get("voters") or first
        running = [self.processes.pid(node_name(node)) is not None for node in voters]
        if sum(running) > len(voters) // 2:
            return ""
        return f"waits for a majority of the nodes {', '.join(map(str, voters))}"

    def _pid(self, name: str) -> int:
        """Raises ClusterError with the reason when it has ended."""
        pid = self.processes.pid(name)
        if pid is None:
            raise ClusterError(f"{name} has ended: {self.processes.last_words(name)}")
        return pid

    def _late_error(self, name: str, reason: str) -> ClusterError:
        log = self.processes.log(name)
        return ClusterError(f"{name} is not ready after {READY_SECONDS:.0f} s, {reason}; see {log}")


def serves(status: int, said: str) -> bool:
    """Whether a node that answers so at /readyz serves. It does while it catches up, too."""
    return status == http.client.OK or said.startswith("catching up")


@contextmanager
def running(directory: Path, nodes: int, port_base: int) -> Iterator[LocalCluster]:
    """A cluster that is stopped at the end; its folder stays."""
    cluster = LocalCluster(directory)
    cluster.create(nodes, port_base)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def free_port_base(nodes: int) -> int:
    """A port base that leaves every port of such a cluster free. Raises ClusterError."""
    ports = range(PORTS_BETWEEN_NODES * nodes)
    # Below the ephemeral ones, and below those of the tests, which may be given away meanwhile.
    for base in range(10_000 + os.getpid() % 5_000, 20_000, len(ports)):
        if all(is_free(_HOST, base + port) for port in ports):
            return base
    raise ClusterError("no free ports")


def counted(nodes: int) -> str:
    """With its noun: 1 node, 2 nodes."""
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def _configuration(nodes: int, port_base: int) -> dict[str, Any]:
    def addresses(node: int) -> dict[str, str]:
        first = port_base + PORTS_BETWEEN_NODES * node
        return {port: f"{_HOST}:{first + at}" for at, port in enumerate(PORTS)}

    return {
        "cluster": f"local-{secrets.token_hex(4)}",
        "credential": secrets.token_hex(16),
        "nodes": [{"id": node, **addresses(node)} for node in range(nodes)],
        "nats": {"servers": [f"nats://{_HOST}:{port_base + NATS_PORT}"]},
    }


def _addresses(config: dict[str, Any]) -> dict[str, list[tuple[str, int]]]:
    """Where each process listens, a node in the order of PORTS."""
    nodes = {
        node_name(node["id"]): [split_address(node[port]) for port in PORTS]
        for node in config["nodes"]
    }
    nats: str = config["nats"]["servers"][0]
    return {NATS: [split_address(nats.removeprefix("nats://"))], **nodes}


def _check_free(addresses: dict[str, list[tuple[str, int]]]) -> None:
    for name, listening in addresses.items():
        for host, port in listening:
            if not is_free(host, port):
                raise ClusterError(
                    f"port {port}, for {name}, is taken by another process: "
                    "end that, or take another --port-base"
                )


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ClusterError(f"there is no {name}; make the environment with scripts/environment")
    return found
