"""The container files agree with each other and with the tree. That they work in containers'
surroundings is shown by tests/integration/test_advertise.py."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from jetstream_server.node import config

TREE = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((TREE / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (TREE / "Dockerfile").read_text()
CONFIG = config.load(TREE / "config" / "compose.yaml", environment={})
NODES = {node.host: node for node in CONFIG.nodes}


def port(address: str) -> int:
    return config.split_address(address)[1]


def test_every_node_of_the_file_is_a_service_under_its_host_name() -> None:
    built = {name for name, service in SERVICES.items() if "build" in service}
    assert built == set(NODES)
    for name in built:
        assert SERVICES[name]["hostname"] == name
        assert config.own_node(CONFIG, NODES[name].id, {}).host == name


@pytest.mark.parametrize("name", NODES)
def test_a_node_advertises_its_service_and_publishes_its_ports(name: str) -> None:
    node = NODES[name]
    for endpoint in (node.grpc, node.data, node.raft, node.http):
        assert endpoint.advertise == f"{name}:{port(endpoint.listen)}"
        assert endpoint.listen.startswith("0.0.0.0:")
    # The metadata group is nobody's business outside.
    reachable = [port(endpoint.listen) for endpoint in (node.grpc, node.data, node.http)]
    assert SERVICES[name]["ports"] == [f"127.0.0.1:{number}:{number}" for number in reachable]


@pytest.mark.parametrize("name", NODES)
def test_a_node_is_told_where_it_is_healthy_and_who_its_peers_are(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert environment["HEALTH_URL"] == f"http://127.0.0.1:{port(NODES[name].http.listen)}/healthz"
    assert environment["JETSTREAM_CREDENTIAL"].startswith("${JETSTREAM_CREDENTIAL:?")
    # Whatever else is set for the server must be a key it knows.
    config.load(TREE / "config" / "compose.yaml", environment={**environment})


@pytest.mark.parametrize("name", NODES)
def test_a_node_keeps_its_data_in_a_volume_of_its_own(name: str) -> None:
    volume, file = SERVICES[name]["volumes"]
    source, target = volume.split(":")
    assert target == str(CONFIG.data)
    assert source in COMPOSE["volumes"]
    sources = [SERVICES[other]["volumes"][0].split(":")[0] for other in NODES]
    assert sources.count(source) == 1
    mounted, inside, mode = file.split(":")
    assert (TREE / mounted).is_file()
    assert mode == "ro"
    assert f'"--config", "{inside}"' in DOCKERFILE


def test_the_nodes_use_the_nats_service() -> None:
    (url,) = CONFIG.nats.servers
    assert url.removeprefix("nats://").partition(":")[0] in SERVICES
    for service in map(SERVICES.get, NODES):
        assert service is not None
        assert service["depends_on"] == ["nats"]


def test_the_command_line_is_given_every_node() -> None:
    servers = SERVICES["cli"]["environment"]["JETSTREAM_SERVERS"].split(",")
    assert servers == [node.grpc.advertise for node in CONFIG.nodes]


def test_monitoring_is_a_profile_that_scrapes_every_node_and_shows_every_dashboard() -> None:
    scraped = yaml.safe_load((TREE / "ops" / "prometheus.yml").read_text())
    nodes = [node.http.advertise for node in CONFIG.nodes]
    for job in scraped["scrape_configs"]:
        assert job["static_configs"] == [{"targets": nodes}]
    prometheus, grafana = SERVICES["prometheus"], SERVICES["grafana"]
    assert prometheus["profiles"] == grafana["profiles"] == ["monitoring"]
    mounted = dict(
        volume.split(":")[:2] for service in (prometheus, grafana) for volume in service["volumes"]
    )
    for source in mounted:
        assert source in COMPOSE["volumes"] or (TREE / source).exists(), source
    (provider,) = _provisioned("dashboards")["providers"]
    shown = {
        inside for inside in mounted.values() if inside.startswith(provider["options"]["path"])
    }
    dashboards = {path.name for path in (TREE / "ops" / "grafana").glob("*.json")}
    assert {Path(inside).name for inside in shown} == dashboards
    (source,) = _provisioned("datasources")["datasources"]
    assert source["url"] == "http://prometheus:9090"


def _provisioned(kind: str) -> dict[str, Any]:
    path = TREE / "ops" / "grafana" / "provisioning" / kind / "jetstream.yml"
    return dict(yaml.safe_load(path.read_text()))


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_understands_its_file() -> None:
    done = subprocess.run(
        ["promtool", "check", "config", str(TREE / "ops" / "prometheus.yml")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_image_is_made_from_what_the_tree_has_and_lets_in() -> None:
    let_in = (TREE / ".dockerignore").read_text().split()
    copies = re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()[:-1]]
    assert sources
    for source in sources:
        assert (TREE / source).exists(), source
        assert f"!{source}" in let_in, source


def test_the_image_does_not_run_as_root_and_exposes_the_default_ports() -> None:
    assert re.search(r"^USER jetstream$", DOCKERFILE, re.MULTILINE)
    exposed = re.search(r"^EXPOSE (.+)$", DOCKERFILE, re.MULTILINE)
    assert exposed is not None
    defaults = [config.PORT_BASE_DEFAULT + at for at in range(len(config.PORTS))]
    assert exposed.group(1).split() == list(map(str, defaults))


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="there is no docker-compose")
def test_compose_accepts_the_file_and_asks_for_the_credential() -> None:
    command = ["docker-compose", "--file", str(TREE / "docker-compose.yml"), "config", "--quiet"]
    environment = {"PATH": "/usr/bin:/bin:/usr/local/bin"}
    with_one = {**environment, "JETSTREAM_CREDENTIAL": "secret"}
    accepted = subprocess.run(command, env=with_one, capture_output=True, text=True)
    assert accepted.returncode == 0, accepted.stderr
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "set it to a secret" in refused.stderr
