"""Machines on one network, each a set of Linux namespaces: own interfaces, host name, /etc/hosts.

Nothing is left behind on the real machine, and nothing is changed on it: every namespace lives as
long as the process that holds it, the bridge between them included. Needs root and iproute2.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

PREFIX = "10.213.77"
READY_SECONDS = 60.0


def missing() -> str:
    """Why there can be no namespaces here; "" when there can."""
    for tool in ("ip", "unshare", "nsenter"):
        if shutil.which(tool) is None:
            return f"there is no {tool} here"
    tried = subprocess.run(
        [
            "unshare",
            "--net",
            "--mount",
            "--uts",
            "--",
            "ip",
            "link",
            "add",
            "name",
            "probe",
            "type",
            "bridge",
        ],
        capture_output=True,
        text=True,
    )
    return f"namespaces are not allowed here: {tried.stderr.strip()}" if tried.returncode else ""


class Machine:
    """One machine. `pid` holds its namespaces."""

    def __init__(self, name: str, address: str, hosts: Path) -> None:
        self.name = name
        self.address = address
        setting_up = f"mount --bind {hosts} /etc/hosts && hostname {name} && ip link set lo up"
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--uts", "--", "sh", "-c",
             f"{setting_up} && echo ready && exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        return self._holder.pid

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", "-t", str(self.pid), "--net", "--mount", "--uts", "--", *arguments]

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """What it prints. Raises AssertionError with what it complained of."""
        done = subprocess.run(
            self.command(*arguments), capture_output=True, text=True, timeout=60, env=environment
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(
        self, *arguments: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """A process on this machine, killed with it at the latest."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                self.command(*arguments),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
            )
        self._processes.append(process)
        return process

    def close(self) -> None:
        for process in [*self._processes, self._holder]:
            process.kill()
            process.wait()
        if self._holder.stdout is not None:
            self._holder.stdout.close()


class Network:
    """Machines by name, joined by a bridge that is on a machine of its own."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        addresses = {name: f"{PREFIX}.{number}" for number, name in enumerate(names, 10)}
        hosts = folder / "hosts"
        lines = ["127.0.0.1 localhost", *(f"{at} {name}" for name, at in addresses.items())]
        hosts.write_text("".join(f"{line}\n" for line in lines))
        self.machines: dict[str, Machine] = {}
        self._switch = Machine("switch", "", hosts)
        try:
            self._switch.run("ip", "link", "add", "name", "bridge", "type", "bridge")
            self._switch.run("ip", "link", "set", "bridge", "up")
            for name, address in addresses.items():
                self.machines[name] = Machine(name, address, hosts)
                self._plug_in(self.machines[name])
        except BaseException:
            self.close()
            raise

    def _plug_in(self, machine: Machine) -> None:
        port = f"to-{machine.name}"
        self._switch.run(
            "ip", "link", "add", "name", port, "type", "veth",
            "peer", "name", "eth0", "netns", str(machine.pid),
        )  # fmt: skip
        self._switch.run("ip", "link", "set", port, "master", "bridge", "up")
        machine.run("ip", "address", "add", f"{machine.address}/24", "dev", "eth0")
        machine.run("ip", "link", "set", "eth0", "up")

    def close(self) -> None:
        for machine in [*self.machines.values(), self._switch]:
            machine.close()


def wait_for_line(log: Path, start: str, seconds: float = READY_SECONDS) -> None:
    """Until a process has printed a line that begins so."""
    deadline = time.monotonic() + seconds
    while not any(line.startswith(start) for line in _lines(log)):
        assert time.monotonic() < deadline, "\n".join(_lines(log)[-20:])
        time.sleep(0.05)


def _lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would configure a server, and with `more`."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("JETSTREAM_")}
    return {**kept, **more}
