"""A cluster of processes on this machine, kept in one folder.

The folder holds cluster.yaml, the nodes' data and logs, and the process ids. NATS is a process of
its own, which survives the nodes. Node i listens on port-base + 10·i (gRPC; then data, Raft, HTTP),
NATS on port-base + 4. Only processes that carry the folder's name are ever signalled.
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
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

NODES_DEFAULT = 3
PORTS_BETWEEN_NODES = 10
NATS_PORT = 4
READY_SECONDS = 30.0
STOP_SECONDS = 20.0
FOLDER_VARIABLE = "JETSTREAM_CLUSTER_FOLDER"
"""In the environment of every process started here: which cluster it belongs to."""
NATS = "nats"
_PORTS = ("grpc", "data", "raft", "http")


class ClusterError(Exception):
    """The cluster cannot do that; the message is one line."""


def node_name(node: int) -> str:
    """What the folder calls a node's process."""
    return f"node-{node}"


class LocalCluster:
    """A cluster's folder and the processes it knows. Methods raise ClusterError."""

    server: tuple[str, ...] = (sys.executable, "-m", "jetstream_server")
    """What a node runs."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._pids_file = self.directory / "processes.json"
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def config_file(self) -> Path:
        return self.directory / "cluster.yaml"

    @property
    def node_config_file(self) -> Path:
        """What the nodes are started with."""
        return self.config_file

    @property
    def config(self) -> dict[str, Any]:
        return self._read()

    def _read(self) -> dict[str, Any]:
        if not self.config_file.exists():
            raise ClusterError(
                f"{self.directory} holds no cluster: make one with scripts/cluster up"
            )
        try:
            config: dict[str, Any] = yaml.safe_load(self.config_file.read_text())
            config["nodes"][0]["id"]
        except (yaml.YAMLError, KeyError, IndexError, TypeError) as error:
            raise ClusterError(f"{self.config_file} is damaged; mend or delete it") from error
        return config

    def check(self) -> None:
        """That there is a cluster here."""
        self._read()

    def check_node(self, node: int) -> None:
        """That the cluster has it."""
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

    def create(self, nodes: int, port_base: int) -> None:
        """Write the configuration, unless there is one."""
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.config_file.exists():
            return
        config = {
            "cluster": f"local-{secrets.token_hex(4)}",
            "credential": secrets.token_hex(16),
            "nodes": [
                {
                    "id": node,
                    **{
                        port: f"127.0.0.1:{port_base + PORTS_BETWEEN_NODES * node + at}"
                        for at, port in enumerate(_PORTS)
                    },
                }
                for node in range(nodes)
            ],
            "nats": {"servers": [f"nats://127.0.0.1:{port_base + NATS_PORT}"]},
        }
        self.config_file.touch(mode=0o600)  # It holds the credential.
        self.config_file.write_text(yaml.safe_dump(config, sort_keys=False))

    # All of it.

    def start(self) -> None:
        """NATS and every node that is not running; returns when all of them serve."""
        self.start_nats()
        for node in self.node_ids:
            self.start_node(node)
        for node in self.node_ids:
            self.wait_for_node(node)

    def stop(self) -> None:
        """Every node, then NATS."""
        for name in sorted(self.pids(), reverse=True):  # Nodes before NATS.
            self.end(name, signal.SIGTERM)

    def delete(self) -> None:
        shutil.rmtree(self.directory)

    # Processes.

    def pids(self) -> dict[str, int]:
        """The processes that are alive, by name: "nats", "node-0", …"""
        if not self._pids_file.exists():
            return {}
        known: dict[str, int] = json.loads(self._pids_file.read_text())
        return {name: pid for name, pid in known.items() if self._is_ours(pid)}

    def _is_ours(self, pid: int) -> bool:
        """Whether that process still is the one this folder started: ids are used again."""
        child = self._children.get(pid)
        if child is not None:
            return child.poll() is None
        try:
            words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            return False
        return f"{FOLDER_VARIABLE}={self.directory}".encode() in words

    def _start(self, name: str, arguments: list[str]) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
        environment[FOLDER_VARIABLE] = str(self.directory)
        with (self.directory / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._children[process.pid] = process
        self._pids_file.write_text(json.dumps({**self.pids(), name: process.pid}))

    def start_nats(self) -> None:
        if NATS in self.pids():
            return
        host, _, port = self.nats_url.removeprefix("nats://").partition(":")
        self._start(NATS, [_program("nats-server"), "--addr", host, "--port", port])
        deadline = time.monotonic() + READY_SECONDS
        while not _accepts(host, int(port)):
            self._check_start(NATS, deadline)

    def start_node(self, node: int) -> None:
        """Start its process, unless it runs; `wait_for_node` waits until it serves."""
        self.check_node(node)
        if node_name(node) in self.pids():
            return
        data = self.directory / node_name(node)
        config = str(self.node_config_file)
        arguments = ["--config", config, "--node-id", str(node), "--data", str(data)]
        self._start(node_name(node), [*self.server, *arguments])

    def wait_for_node(self, node: int) -> None:
        """Returns when /readyz says that the node takes part."""
        address = self.config["nodes"][self.node_ids.index(node)]["http"]
        deadline = time.monotonic() + READY_SECONDS
        while not _is_ready(address):
            self._check_start(node_name(node), deadline)

    def _check_start(self, name: str, deadline: float) -> None:
        """A pause between two looks; raises ClusterError when there is nothing to wait for."""
        log = self.directory / f"{name}.log"
        if name not in self.pids():
            said = log.read_text(errors="replace").strip().splitlines()
            raise ClusterError(f"{name} has ended: {said[-1] if said else 'without a word'}")
        if time.monotonic() > deadline:
            raise ClusterError(f"{name} is not ready after {READY_SECONDS:.0f} s; see {log}")
        time.sleep(0.03)

    def end(self, name: str, number: int) -> bool:
        """Signal a process and wait for its end; whether there was one."""
        pid = self.pids().get(name)
        if pid is None:
            return False
        os.kill(pid, number)
        deadline = time.monotonic() + STOP_SECONDS
        while self._is_ours(pid):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        return True

    def kill_node(self, node: int) -> bool:
        """SIGKILL, as a crash would end it; whether it ran."""
        return self.end(node_name(node), signal.SIGKILL)


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
    for base in range(20_000 + os.getpid() % 5_000, 32_000, len(ports)):  # Below the ephemeral.
        if not any(_accepts("127.0.0.1", base + port) for port in ports):
            return base
    raise ClusterError("no free ports")


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ClusterError(f"there is no {name}; make the environment with scripts/environment")
    return found


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=0.2).close()
    except OSError:
        return False
    return True


def _is_ready(http_address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http_address}/readyz", timeout=1.0):
            return True
    except (urllib.error.URLError, OSError):
        return False
