"""A cluster under load, and everything that does not belong to it: said clearly, nothing lost."""

from __future__ import annotations

import json
import random
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.cluster.local import PORTS_BETWEEN_NODES, node_name
from jetstream_protocol.errors import JetstreamError
from jetstream_protocol.frames import Kind
from tests.support import identity_files
from tests.support.api import garbage_prefix
from tests.support.cluster import TestCluster
from tests.support.fork_server import ForkedProcess, fork_server
from tests.support.load import Load
from tests.support.server import free_port_base
from tests.support.undisturbed import check_undisturbed

WINDOW = 16
ACKS = 200


@pytest.fixture
def load(cluster: TestCluster, request: pytest.FixtureRequest) -> Iterator[Load]:
    """A publisher on a stream of the test's own; in the end, everything is where it should be."""
    name = request.node.originalname
    cluster.api(0).create(name, name)
    running = Load(cluster.nats, name, window=WINDOW).start()
    try:
        running.wait_for_acks(ACKS)
        yield running
        running.wait_for_acks(ACKS)
    finally:
        books = running.stop()
    cluster.wait_for_isr(name, cluster.nodes)
    cluster.check_everywhere(name, books)


def tls_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="node0").do_handshake()
    return outgoing.read()


GARBAGE: dict[str, Callable[[], bytes]] = {
    "an HTTP request": lambda: b"GET / HTTP/1.1\r\nHost: node0\r\n\r\n" * 20,
    "a TLS client": tls_hello,
    "random bytes": lambda: random.Random(1).randbytes(1 << 18),
    "a huge frame": lambda: garbage_prefix(2**32 - 1, kind=Kind.HELLO) + bytes(1 << 18),
    "a huge head": lambda: garbage_prefix(1 << 10, kind=Kind.HELLO, head_length=65_535),
    "a NATS client": lambda: b'CONNECT {"verbose":false}\r\nPING\r\n' * 100,
    "zeros": lambda: bytes(1 << 18),
}


def connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def pour(address: str, data: bytes) -> None:
    with connected(address) as sock:
        sock.settimeout(10)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except OSError:
            pass  # It hung up on us, or waits for more: either will do.


def test_foreign_bytes_on_every_port_disturb_nobody(cluster: TestCluster, load: Load) -> None:
    def send_them() -> None:
        for node in cluster.cluster.config["nodes"]:
            with ExitStack() as held:
                # Slow ones first: they hold their connections while the others come.
                for port in ("raft", "data", "grpc", "http"):
                    for _ in range(10):
                        held.enter_context(connected(node[port])).sendall(b"J")
                for make in GARBAGE.values():
                    for port in ("raft", "data"):
                        pour(node[port], make())

    check_undisturbed(cluster, send_them)
    assert not any('"internal_error"' in cluster.log(node) for node in cluster.nodes)


def start_stranger(
    cluster: TestCluster, folder: Path, node: int, data: Path | None = None, /, **changes: Any
) -> ForkedProcess:
    """A further process that claims to be a node of the cluster, on ports of its own."""
    config = {**cluster.cluster.config, **changes}
    base = free_port_base(PORTS_BETWEEN_NODES)
    config["nodes"] = [dict(each) for each in config["nodes"]]
    for at, port in enumerate(("grpc", "data", "raft", "http")):
        advertised = config["nodes"][node][port]
        listen = f"127.0.0.1:{base + at}"
        config["nodes"][node][port] = {"listen": listen, "advertise": advertised}
    file = folder / "stranger.yaml"
    file.write_text(yaml.safe_dump(config))
    return fork_server.start(
        [
            sys.executable, "-m", "jetstream_server", "--config", str(file), "--node-id", str(node),
            "--data", str(data or folder / "stranger"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def last_words(process: ForkedProcess) -> str:
    """The line with which a start ends that is to fail."""
    assert process.stderr is not None
    try:
        said = process.stderr.read()
        code = process.wait(60)
    finally:
        process.kill()
        process.stderr.close()
    assert code == 1, said
    assert "Traceback" not in said
    return said.splitlines()[-1]


def first_words(process: ForkedProcess, event: str, words: str) -> None:
    """Until it says so of that event; then it is killed."""
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if not line.startswith("{"):
                continue
            entry = json.loads(line)
            if entry["event"] == event and words in str(entry):
                return
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    raise AssertionError("".join(said))


def test_a_second_process_with_a_node_s_id_does_not_start(
    cluster: TestCluster, load: Load, tmp_path: Path
) -> None:
    def start_another() -> None:
        said = last_words(start_stranger(cluster, tmp_path, 1))
        assert "node id 1 is in use by another running server of this cluster" in said

    check_undisturbed(cluster, start_another)


def test_a_node_with_another_credential_is_kept_out_and_both_sides_say_so(
    cluster: TestCluster, load: Load, tmp_path: Path
) -> None:
    cluster.kill(1)
    stranger = start_stranger(cluster, tmp_path, 1, credential="guessed")
    first_words(stranger, "waiting_for_metadata_leader", "refuses this node's cluster credential")
    cluster.wait_for(
        "somebody noticed",
        lambda: any("does not know the cluster's credential" in cluster.log(n) for n in (0, 2)),
    )
    cluster.restart(1)


def test_clusters_have_ids_of_their_own_and_folders_do_not_change_sides(
    cluster: TestCluster, load: Load, tmp_path: Path
) -> None:
    folders = [cluster.cluster.directory / node_name(node) for node in cluster.nodes]
    (ours,) = {json.loads((folder / "meta.json").read_text())["cluster_id"] for folder in folders}
    assert ours != cluster.cluster.config["cluster"]
    cluster.kill(2)
    data = Path(shutil.copytree(folders[2], tmp_path / "data"))
    # As if from another cluster: by name, by what the group agreed on, by what the folder says.
    said = last_words(start_stranger(cluster, tmp_path, 2, data, cluster="theirs"))
    assert "belongs to cluster" in said
    meta, group = data / "meta.json", data / "metadata" / "group.json"
    kept = group.read_text()
    identity_files.correct(group, cluster_id="another")
    stranger = start_stranger(cluster, tmp_path, 2, data)
    first_words(stranger, "waiting_for_metadata_leader", "belongs to another cluster")
    group.write_text(kept)
    identity_files.correct(meta, cluster_id="another")
    said = last_words(start_stranger(cluster, tmp_path, 2, data))
    assert "belongs to cluster another" in said
    assert ours in said
    cluster.restart(2)


def test_an_old_copy_of_a_node_s_folder_is_believed_nothing_it_may_lack(
    cluster: TestCluster, load: Load, tmp_path: Path
) -> None:
    folder = cluster.cluster.directory / node_name(0)
    cluster.stop(0)
    old = Path(shutil.copytree(folder, tmp_path / "old"))
    cluster.restart(0)
    load.wait_for_acks(ACKS)
    cluster.stop(0)
    load.wait_for_acks(ACKS)
    shutil.rmtree(folder)
    shutil.copytree(old, folder)
    cluster.restart(0)
    # The `load` fixture checks that it has caught up, to the byte.


def test_more_replicas_than_nodes_are_refused_with_both_numbers(cluster: TestCluster) -> None:
    with pytest.raises(JetstreamError, match=r"5 replicas.* 3 nodes"):
        cluster.api(1).create("wide", "wide", replicas=5)
