"""docker-compose.yml by podman-compose, where containers can have no network of their own.

Bridges need more rights than a container that runs tests has, so the services share the host's
network and listen on loopback. The file is changed for that and for the limits, in nothing else.
Debian's podman-compose knows no profiles, so it comes from PyPI, into a folder of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import yaml

from examples.containers.podman import IMAGE, NATS, TREE, Podman

FILE = TREE / "docker-compose.yml"
VERSION = "1.5.0"
_IMAGES = {"jetstream-log": IMAGE, "nats:2-alpine": NATS}
"""By their whole names: short ones would be looked for in registries."""

_NATS_PORTS = (4222, 8222)
_ENDPOINTS = ("grpc", "data", "raft", "http")


class Compose:
    """The services of the file, as containers of the same names."""

    def __init__(self, podman: Podman) -> None:
        self._podman = podman
        self._installed = podman.folder / "podman-compose"
        self._file = podman.folder / "docker-compose.yml"

    def install(self) -> None:
        """Get podman-compose, unless it is there."""
        if (self._installed / "podman_compose.py").exists():
            return
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
             "--target", str(self._installed), f"podman-compose=={VERSION}"],
            check=True,
        )  # fmt: skip

    def services(self, *options: str) -> list[str]:
        """What the file of the tree has, as podman-compose reads it."""
        return self._run("-f", str(FILE), *options, "config", "--services").split()

    def ports_taken(self) -> list[int]:
        """Ports of the services on which something listens already."""
        nodes = yaml.safe_load((TREE / "config" / "compose.yaml").read_text())["nodes"]
        listens = [node[each]["listen"] for node in nodes for each in _ENDPOINTS]
        ports = [*_NATS_PORTS, *(int(listen.rpartition(":")[2]) for listen in listens)]
        return [port for port in ports if _is_taken(port)]

    def write(self) -> None:
        """The changed files."""
        config = (TREE / "config" / "compose.yaml").read_text()
        cluster = self._podman.folder / "cluster.yaml"
        cluster.write_text(config.replace("0.0.0.0", "127.0.0.1"))
        compose: dict[str, Any] = yaml.safe_load(FILE.read_text())
        hosts = [f"{name}:127.0.0.1" for name in compose["services"]]
        for name, service in compose["services"].items():
            service["container_name"] = name
            service["network_mode"] = "host"
            service["extra_hosts"] = hosts
            # The defaults are beyond what an unprivileged parent may give.
            service["ulimits"] = {"nofile": 4096, "nproc": 32768}
            service.pop("ports", None)
            service.pop("build", None)
            service["image"] = _IMAGES.get(service["image"], service["image"])
            if name == "nats":
                service["command"] += ["--addr", "127.0.0.1"]
            service["volumes"] = [
                volume.replace("./config/compose.yaml", str(cluster))
                for volume in service.get("volumes", ())
            ]
        self._file.write_text(yaml.safe_dump(compose))

    def __call__(self, *arguments: str) -> str:
        """Run podman-compose on the changed file; what it prints."""
        return self._run("-f", str(self._file), *arguments)

    def _run(self, *arguments: str) -> str:
        podman, *options = self._podman.command()
        environment = {**os.environ, "PYTHONPATH": str(self._installed)}
        done = subprocess.run(
            [sys.executable, "-m", "podman_compose", "--podman-path", podman,
             "--podman-args", " ".join(options), "--in-pod", "false", "-p", "jetstream",
             *arguments],
            env=environment, capture_output=True, text=True, cwd=TREE,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"podman-compose {' '.join(arguments)} failed: {done.stderr}")
        return done.stdout


def _is_taken(port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0
