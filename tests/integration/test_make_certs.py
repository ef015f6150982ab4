"""What `scripts/make-certs` makes is what a node takes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import yaml

from tests.support.fork_server import fork_server

NODES = [
    {"id": node, **{port: f"127.0.0.1:{9000 + 10 * node + index}"
     for index, port in enumerate(("grpc", "data", "raft", "http"))}}
    for node in range(2)
]  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JETSTREAM_")}
    return fork_server.run([sys.executable, "-m", *arguments], environment=environment)


def test_the_certificates_fit_their_nodes_and_only_them(tmp_path: Path) -> None:
    folder = tmp_path / "certs"
    made = run("examples.certificates", "--dir", str(folder), "--nodes", "2", "--client", "me")
    assert made.returncode == 0, made.stderr
    keys = sorted(folder.glob("*.key"))
    assert [key.stem for key in keys] == ["ca", "me", "node-0", "node-1"]
    assert {stat.S_IMODE(key.stat().st_mode) for key in keys} == {0o600}
    for name, expected in (("node-1", ""), ("node-0", "is not that of node 1")):
        config = tmp_path / "cluster.yaml"
        section = {
            "certificate_file": str(folder / f"{name}.crt"),
            "key_file": str(folder / f"{name}.key"),
            "ca_file": str(folder / "ca.crt"),
            "client_auth": "required",
        }
        config.write_text(yaml.safe_dump({"nodes": NODES, "tls": section}))
        checked = run(
            "jetstream_server", "--config", str(config), "--node-id", "1", "--check-config"
        )
        assert (checked.returncode == 0) is (expected == ""), checked
        assert expected in checked.stderr
