"""Nodes that listen on every interface are reached by the names they advertise, as in containers.

The file is the one that docker-compose.yml gives to its containers; the machines here are Linux
namespaces with the services' names.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jetstream_server.node import config
from tests.support.namespaces import Network, clean_environment, missing, wait_for_line

TREE = Path(__file__).parents[2]
FILE = TREE / "config" / "compose.yaml"
NODES = ["node0", "node1", "node2"]
CANNOT = missing()

pytestmark = pytest.mark.skipif(bool(CANNOT), reason=CANNOT or "-")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    found = Network(tmp_path, ["nats", *NODES, "client"])
    try:
        yield found
    finally:
        found.close()


def start_cluster(network: Network, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    nats_server = str(Path(sys.executable).with_name("nats-server"))
    network.machines["nats"].start(nats_server, "--addr", "0.0.0.0", log=folder / "nats.log")
    environment = clean_environment(JETSTREAM_CREDENTIAL="between-nodes")
    processes = {}
    for name in NODES:
        # Without a node id: a node knows itself by its host name.
        processes[name] = network.machines[name].start(
            sys.executable, "-m", "jetstream_server", "--config", str(FILE),
            "--data", str(folder / name),
            log=folder / f"{name}.log", environment=environment,
        )  # fmt: skip
    for name in NODES:
        wait_for_line(folder / f"{name}.log", "jetstream-server ready", seconds=120)
    return processes


def test_nodes_and_clients_follow_advertised_addresses(network: Network, tmp_path: Path) -> None:
    nodes = config.load(FILE, environment={}).nodes
    for node in nodes:
        assert node.grpc.listen != node.grpc.advertise
    processes = start_cluster(network, tmp_path)
    program = Path(__file__).with_name("advertise_client.py")
    command = [sys.executable, str(program), nodes[1].grpc.advertise]
    with subprocess.Popen(
        network.machines["client"].command(*command),
        env=clean_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as client:
        try:
            assert client.stdout is not None
            first = client.stdout.readline()
            assert first, client.communicate()[1]
            leader = json.loads(first)["leader"]
            processes[f"node{leader}"].kill()
            processes[f"node{leader}"].wait()
            output, errors = client.communicate("\n", timeout=240)
            assert client.returncode == 0, errors
        finally:
            client.kill()
    found = json.loads(output)
    assert found["nodes"] == [
        [node.grpc.advertise, node.data.advertise, node.http.advertise] for node in nodes
    ]
    assert found["nats"] == ["nats://nats:4222"]
    # Followers fetched, too: over the leader's advertised data plane.
    assert sorted(found["isr_before"]) == [0, 1, 2]
    assert found["leader_after"] != leader
    assert sorted(set(found["read"])) == list(range(100))
