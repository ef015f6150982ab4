"""A real Prometheus scrapes a real cluster, and evaluates the rules of ops/alerts.yml."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from jetstream_client import Client
from tests.support.cluster import TestCluster
from tests.support.server import free_port_base

TREE = Path(__file__).resolve().parents[2]
PROMETHEUS = shutil.which("prometheus")
PATIENCE_SECONDS = 60.0
STREAM, CURSOR = "orders", "billing"


@pytest.fixture(scope="module")
def cursor_is_behind(cluster: TestCluster) -> None:
    """By three records, whichever nodes lead the stream and the cursors."""
    with Client(cluster.servers, timeout=60) as client:
        client.create_stream(STREAM, "orders.>")
        for number in range(5):
            client.publish("orders.eu", b"%d" % number, msg_id=f"m{number}")
        client.commit_cursor(CURSOR, STREAM, 2)


def http_of(cluster: TestCluster) -> list[str]:
    """Host and port of each node."""
    nodes = yaml.safe_load((cluster.cluster.directory / "cluster.yaml").read_text())["nodes"]
    return [node["http"] for node in nodes]


def eventually(look: Callable[[], Any]) -> Any:
    """What it finds, once it finds something."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if found := look():
                return found
        except OSError:
            pass  # Nobody listens yet.
        assert time.monotonic() < deadline, "never"
        time.sleep(0.2)


@pytest.mark.usefixtures("cursor_is_behind")
@pytest.mark.parametrize("leader", [0, 1, 2])
def test_a_cursor_s_lag_is_known_whichever_nodes_lead_it_and_its_stream(
    cluster: TestCluster, leader: int
) -> None:
    """One node leads the cursors and gives the series, also where another leads the stream."""
    addresses = http_of(cluster)
    cluster.wait_for_isr(STREAM, [0, 1, 2])
    with Client(cluster.servers, timeout=60) as client:
        if client.describe_stream(STREAM).leader != leader:
            client.transfer_leader(STREAM, leader)

    def told(name: str) -> list[str]:
        lines: list[str] = []
        for address in addresses:
            with urllib.request.urlopen(f"http://{address}/metrics?streams={STREAM}") as answer:
                lines += answer.read().decode().splitlines()
        return [line for line in lines if line.startswith(f"{name}{{")]

    def is_waiting() -> bool:
        seconds = told("jetstream_cursor_lag_seconds")
        return len(seconds) == 1 and float(seconds[0].rpartition(" ")[2]) > 0

    label = f'cursor="{CURSOR}",stream="{STREAM}",subject="orders.>"'
    wanted = [f"jetstream_cursor_lag_records{{{label}}} 3.0"]
    # Leaderships may move between two answers.
    assert eventually(lambda: told("jetstream_cursor_lag_records") == wanted)
    assert eventually(is_waiting)


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def ask(self, path: str, **query: str) -> Any:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        return [float(each["value"][1]) for each in self.ask("query", query=query)["result"]]

    def alerts(self) -> set[tuple[str, str]]:
        """Name and instance of those that are pending or fire."""
        found = self.ask("alerts")["alerts"]
        return {(each["labels"]["alertname"], each["labels"].get("instance", "")) for each in found}


@contextmanager
def running_prometheus(folder: Path, targets: list[str]) -> Iterator[Prometheus]:
    """With the scrape jobs of docs/operations/alerts.md, once a second, and our rules."""
    assert PROMETHEUS is not None
    block = (
        (TREE / "docs" / "operations" / "alerts.md")
        .read_text()
        .partition("```yaml\n")[2]
        .partition("```")[0]
    )
    config = yaml.safe_load(block)
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(TREE / "ops" / "alerts.yml")]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": targets}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port_base(1)
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            "--log.level=error",
        ],
        cwd=folder,
    )
    try:
        yield Prometheus(port)
    finally:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("cursor_is_behind")
@pytest.mark.skipif(PROMETHEUS is None, reason="Prometheus is not installed (Debian: prometheus)")
def test_prometheus_scrapes_a_cluster_and_alerts_on_what_is_wrong(
    cluster: TestCluster, tmp_path: Path
) -> None:
    addresses = http_of(cluster)
    with running_prometheus(tmp_path, addresses) as prometheus:
        eventually(lambda: prometheus.values("count(up == 1)") == [6.0])
        high_watermark = f'max(jetstream_stream_high_watermark{{stream="{STREAM}"}})'
        eventually(lambda: prometheus.values(high_watermark) == [5.0])
        eventually(lambda: prometheus.values("max(jetstream_cursor_lag_records)") == [3.0])
        left_out = '{__name__=~"jetstream_(streams|cursors)_left_out"}'
        eventually(lambda: prometheus.values(f"count({left_out})") == [6.0])
        eventually(lambda: _all_are_evaluated(prometheus))
        wanted = [rule["name"] for rule in _rules(prometheus)]
        told = yaml.safe_load((TREE / "ops" / "alerts.yml").read_text())["groups"][0]["rules"]
        assert wanted == [rule["alert"] for rule in told]
        node = cluster.nodes[-1]
        cluster.kill(node)
        down = {("JetstreamNodeDown", addresses[node]), ("JetstreamStreamsUnderReplicated", "")}
        eventually(lambda: down <= prometheus.alerts())


def _rules(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"]]


def _all_are_evaluated(prometheus: Prometheus) -> bool:
    rules = _rules(prometheus)
    assert not [rule for rule in rules if rule["health"] == "err"]
    return bool(rules) and all(rule["health"] == "ok" for rule in rules)
