"""A cluster on this machine, each node a process: `up`, `status`, `kill 0`, `start 0`, `down`.

Everything lives in one folder: cluster.yaml, the nodes' data and logs, and the process ids. NATS is
a process of its own, which survives the nodes. Node i listens on port-base + 10·i (gRPC; then data,
Raft, HTTP), NATS on port-base + 4. Only processes recorded in the folder are ever signalled.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
import yaml
from rich.console import Console

NODES_DEFAULT = 3
PORT_BASE_DEFAULT = 9292
PORTS_BETWEEN_NODES = 10
NATS_PORT = 4
DIRECTORY_DEFAULT = Path("jetstream-cluster")
READY_SECONDS = 30.0
STOP_SECONDS = 20.0

command = typer.Typer(
    add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__
)
console = Console()
Directory = Annotated[Path, typer.Option("--dir", help="The cluster's folder.")]


class Cluster:
    """A cluster's folder and the processes it knows."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._pids_file = self.directory / "processes.json"

    @property
    def config_file(self) -> Path:
        return self.directory / "cluster.yaml"

    @property
    def config(self) -> dict[str, Any]:
        if not self.config_file.exists():
            _fail(f"{self.directory} holds no cluster: make one with scripts/cluster up")
        config: dict[str, Any] = yaml.safe_load(self.config_file.read_text())
        return config

    @property
    def node_ids(self) -> list[int]:
        return [node["id"] for node in self.config["nodes"]]

    @property
    def grpc_addresses(self) -> list[str]:
        return [node["grpc"] for node in self.config["nodes"]]

    def create(self, nodes: int, port_base: int) -> None:
        """Write the configuration, unless there is one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.config_file.exists():
            return
        ports = ("grpc", "data", "raft", "http")
        config = {
            "cluster": f"local-{secrets.token_hex(4)}",
            "credential": secrets.token_hex(16),
            "nodes": [
                {
                    "id": node,
                    **{
                        port: f"127.0.0.1:{port_base + PORTS_BETWEEN_NODES * node + at}"
                        for at, port in enumerate(ports)
                    },
                }
                for node in range(nodes)
            ],
            "nats": {"servers": [f"nats://127.0.0.1:{port_base + NATS_PORT}"]},
        }
        self.config_file.touch(mode=0o600)  # It holds the credential.
        self.config_file.write_text(yaml.safe_dump(config, sort_keys=False))

    # Processes.

    def pids(self) -> dict[str, int]:
        """The processes that are alive, by name: "nats", "node-0", …"""
        if not self._pids_file.exists():
            return {}
        known: dict[str, int] = json.loads(self._pids_file.read_text())
        return {name: pid for name, pid in known.items() if self._is_ours(pid)}

    def _is_ours(self, pid: int) -> bool:
        """Whether that process still is the one this folder started: ids are used again."""
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"JETSTREAM_CLUSTER_FOLDER={self.directory}".encode() in words

    def _remember(self, name: str, pid: int) -> None:
        self._pids_file.write_text(json.dumps({**self.pids(), name: pid}))

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        # Names the process as ours without being a configuration key: set for the child's parent.
        environment["JETSTREAM_CLUSTER_FOLDER"] = str(self.directory)
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._remember(name, process.pid)
        process.returncode = 0  # It outlives this object on purpose; `end` collects it.

    def start_nats(self) -> None:
        if "nats" in self.pids():
            return
        host, _, port = self.config["nats"]["servers"][0].removeprefix("nats://").partition(":")
        self._start("nats", [_program("nats-server"), "--addr", host, "--port", port])
        _wait_for_port(host, int(port), self.directory / "nats.log")

    def start_node(self, node: int) -> None:
        if node not in self.node_ids:
            _fail(f"there is no node {node}; nodes are {', '.join(map(str, self.node_ids))}")
        if f"node-{node}" in self.pids():
            return
        data = self.directory / f"node-{node}"
        arguments = ["--config", str(self.config_file), "--node-id", str(node), "--data", str(data)]
        self._start(f"node-{node}", [sys.executable, "-m", "jetstream_server", *arguments])

    def wait_for_node(self, node: int) -> None:
        address = self.config["nodes"][self.node_ids.index(node)]["grpc"]
        host, _, port = address.rpartition(":")
        _wait_for_port(host, int(port), self.directory / f"node-{node}.log")

    def end(self, name: str, number: int) -> bool:
        """Signal a process and wait for its end; whether there was one."""
        pid = self.pids().get(name)
        if pid is None:
            return False
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while self._is_ours(pid) and time.monotonic() < deadline:
            _reap(pid)
            time.sleep(0.02)
        if self._is_ours(pid):
            os.kill(pid, signal.SIGKILL)
        return True


def _reap(pid: int) -> None:
    """Collect a child that has ended; a process of an earlier run is collected by init."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        _fail(f"there is no {name}; make the environment with scripts/environment")
    return found


def _wait_for_port(host: str, port: int, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, port), timeout=0.2).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    _fail(f"nothing listens on {host}:{port} after {READY_SECONDS:.0f} s; see {log}")


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    raise typer.Exit(1)


@command.command()
def up(
    nodes: Annotated[int, typer.Option(min=1, max=9, help="How many nodes.")] = NODES_DEFAULT,
    directory: Directory = DIRECTORY_DEFAULT,
    port_base: Annotated[
        int, typer.Option(min=1024, max=65000, help="Node i on port-base + 10·i.")
    ] = PORT_BASE_DEFAULT,
) -> None:
    """Start NATS and every node that is not running."""
    cluster = Cluster(directory)
    cluster.create(nodes, port_base)
    with console.status("starting"):
        cluster.start_nats()
        for node in cluster.node_ids:
            cluster.start_node(node)
        for node in cluster.node_ids:
            cluster.wait_for_node(node)
    print(f"cluster of {len(cluster.node_ids)} nodes is up in {cluster.directory}")
    print(f"  export JETSTREAM_SERVERS={','.join(cluster.grpc_addresses)}")
    print(f"  NATS: {cluster.config['nats']['servers'][0]}")


@command.command()
def status(directory: Directory = DIRECTORY_DEFAULT) -> None:
    """Which processes run, and where."""
    cluster = Cluster(directory)
    running = cluster.pids()
    for node in cluster.config["nodes"]:
        pid = running.get(f"node-{node['id']}")
        print(f"node {node['id']}  {node['grpc']}  {f'running, pid {pid}' if pid else 'stopped'}")
    pid = running.get("nats")
    server = cluster.config["nats"]["servers"][0]
    print(f"nats    {server}  {f'running, pid {pid}' if pid else 'stopped'}")


@command.command()
def kill(
    node: Annotated[int, typer.Argument(help="The node's id.")],
    directory: Directory = DIRECTORY_DEFAULT,
) -> None:
    """Kill a node with SIGKILL; NATS goes on."""
    cluster = Cluster(directory)
    if not cluster.end(f"node-{node}", signal.SIGKILL):
        _fail(f"node {node} is not running")
    print(f"node {node} killed")


@command.command()
def start(
    node: Annotated[int, typer.Argument(help="The node's id.")],
    directory: Directory = DIRECTORY_DEFAULT,
) -> None:
    """Start a stopped node again, on the data it had."""
    cluster = Cluster(directory)
    cluster.start_nats()
    cluster.start_node(node)
    cluster.wait_for_node(node)
    print(f"node {node} is up")


@command.command()
def down(
    directory: Directory = DIRECTORY_DEFAULT,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the folder, data and all.")
    ] = False,
) -> None:
    """Stop every node, then NATS."""
    cluster = Cluster(directory)
    for name in sorted(cluster.pids(), reverse=True):  # Nodes before NATS.
        cluster.end(name, signal.SIGTERM)
    if delete:
        shutil.rmtree(cluster.directory)
    print("the cluster is down")


@contextmanager
def running_cluster(directory: Path, nodes: int, port_base: int) -> Iterator[Cluster]:
    """For programs: a cluster that is stopped and deleted at the end."""
    cluster = Cluster(directory)
    try:
        up(nodes, directory, port_base)
        yield cluster
    finally:
        down(directory, delete=True)


if __name__ == "__main__":
    command()
