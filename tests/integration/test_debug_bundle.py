"""`jetstream debug bundle` of a running server: everything for support, and nothing secret."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from jetstream_client import Client
from tests.support.command import jetstream
from tests.support.secured import SecuredServer
from tests.support.server import ServerProcess, free_port_base

PLANTED = "pl4nted"
KEYS = ("ab" * 32, "cd" * 32)


def test_a_bundle_has_what_support_needs_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = {
        "JETSTREAM_CREDENTIAL": f"{PLANTED}-credential",
        "JETSTREAM_ENCRYPTION__KEYS": " ".join(KEYS),
        "JETSTREAM_NATS__ADVERTISE": json.dumps([f"nats://me:{PLANTED}-password@127.0.0.1:4222"]),
    }
    monkeypatch.setenv("JETSTREAM_TOKEN", f"{PLANTED}-token")
    server = ServerProcess(tmp_path / "data", port_base=free_port_base(), environment=secrets)
    path = tmp_path / "bundle.tar.gz"
    try:
        server.start()
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("orders", "orders.>")
            client.commit_cursor("billing", "orders", 0)
        done = jetstream("--server", server.grpc, "debug", "bundle", "--output", str(path))
        assert (done.returncode, done.stdout) == (0, f"{path}: 8 files\n")
    finally:
        server.kill()
    assert path.stat().st_mode & 0o077 == 0, "for nobody else on the machine"
    with tarfile.open(path) as archive:
        files = {
            member.name.removeprefix("bundle/"): archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert sorted(files) == [
        "client.json", "cluster.json", "health.json",
        "nodes/0/config.json", "nodes/0/log.jsonl", "nodes/0/metrics.txt", "nodes/0/versions.json",
        "streams.json",
    ]  # fmt: skip
    assert PLANTED not in "".join(files.values())
    for key in KEYS:
        assert key not in "".join(files.values()) + server.log_text
    assert json.loads(files["nodes/0/config.json"])["credential"] == "***"
    names = [each["name"] for each in json.loads(files["streams.json"])]
    assert names == ["__cursors", "orders"]
    assert json.loads(files["health.json"]) == []
    assert "\njetstream_streams 2.0\n" in files["nodes/0/metrics.txt"]
    lines = [json.loads(line) for line in files["nodes/0/log.jsonl"].splitlines()]
    assert any(line["event"] == "ingest_form" for line in lines)


def test_a_bundle_that_lacks_a_node_s_files_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise somebody sends it away, and hears a day later that nothing is in it."""
    path = tmp_path / "bundle.tar.gz"
    server = SecuredServer(tmp_path / "data")
    try:
        server.start()
        with server.client(server.bootstrap()) as admin:
            monkeypatch.setenv("JETSTREAM_TOKEN", admin.create_token("user:nobody").text)
        done = jetstream("--server", server.grpc, "debug", "bundle", "--output", str(path))
    finally:
        server.kill()
    assert (done.returncode, done.stdout) == (0, f"{path}: 5 files\n")
    assert "note: it has no files of node 0: user:nobody may not " in done.stderr
    assert "note: only the streams that you may describe were looked at, 0: " in done.stderr
    assert "cluster_alter" in done.stderr
