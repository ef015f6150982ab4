"""Security switched on in a running cluster, node by node; then nodes still work together."""

from __future__ import annotations

import json
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from jetstream_client import (
    Client,
    JetstreamError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UnknownOutcomeError,
)
from jetstream_client.cli.exits import Exit
from jetstream_server.node.bootstrap import bootstrap
from jetstream_server.node.config import load
from tests.support import command
from tests.support.cluster import TestCluster, running_cluster
from tests.support.patient_server import PatientCluster


def switch_on(cluster: TestCluster) -> None:
    """In the file that all nodes share."""
    path = cluster.cluster.config_file
    config = {**yaml.safe_load(path.read_text()), "security": {"enabled": True}}
    path.write_text(yaml.safe_dump(config, sort_keys=False))


def administrator(cluster: TestCluster) -> str:
    config = load(cluster.cluster.config_file, environment={})
    return bootstrap(config, config.nodes[1], "user:admin", 3600 * 1_000_000)


class Reader(threading.Thread):
    """Publishes and reads with its token, as long as it lasts. `failures` are what went wrong; that
    a second node stands still while one is restarted is nothing of security's."""

    def __init__(self, client: Client) -> None:
        super().__init__()
        self.client = client
        self.ended = threading.Event()
        self.failures: list[JetstreamError] = []
        self.rounds = 0

    def run(self) -> None:
        while not self.ended.is_set():
            try:
                self.client.publish("orders.eu", b"x", timeout=60, msg_id=secrets.token_hex(8))
                assert self.client.fetch("orders", "earliest", max_messages=1)
                self.rounds += 1
            except (UnavailableError, UnknownOutcomeError):
                pass
            except JetstreamError as error:
                self.failures.append(error)
            time.sleep(0.05)


def test_security_is_switched_on_by_a_rolling_restart_without_a_client_noticing(
    tmp_path: Path,
) -> None:
    with running_cluster(tmp_path, kind=PatientCluster) as cluster:
        token = administrator(cluster)
        with Client(cluster.servers, token=token, timeout=60) as admin:
            admin.create_stream("orders", "orders.>", replicas=3)
            admin.add_acl("user:app", "read", stream="orders", subject="orders.>")
            app = admin.create_token("user:app").text
            with Client(cluster.servers, token=app, timeout=60) as client:
                reader = Reader(client)
                reader.start()
                try:
                    switch_on(cluster)
                    for node in cluster.nodes:
                        cluster.stop(node)
                        cluster.restart(node)
                        cluster.wait_for(
                            "all are in sync",
                            lambda: sorted(admin.describe_stream("orders").isr) == cluster.nodes,
                        )
                finally:
                    reader.ended.set()
                    reader.join()
                assert reader.failures == []
                assert reader.rounds > 10
                with pytest.raises(PermissionDeniedError):
                    client.delete_stream("orders")
            with (
                Client(cluster.servers, token="", timeout=60) as nobody,
                pytest.raises(UnauthenticatedError),
            ):
                nobody.list_streams()
            _activity_names_who_asked(cluster, admin, token)
            _nodes_still_work_together(cluster, admin)


def test_a_node_with_a_stream_that_its_operator_may_not_see_is_not_said_to_be_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = TestCluster(tmp_path / "nodes")
    switch_on(cluster)
    try:
        cluster.start()
        with Client(cluster.servers, token=administrator(cluster), timeout=60) as admin:
            (node,) = admin.create_stream("hidden", "hidden.>", replicas=1).replicas
            admin.add_acl("user:operator", "cluster_alter")
            monkeypatch.setenv("JETSTREAM_TOKEN", admin.create_token("user:operator").text)
            refused = command.jetstream(
                *("--server", cluster.servers, "node", "decommission", str(node), "--yes")
            )
            assert refused.returncode == Exit.FAILED, refused
            error = f"error: node {node} is not empty: you may not describe hidden@hidden.>\n"
            assert refused.stderr.endswith(error)
            assert admin.describe_stream("hidden").replicas == (node,)
    finally:
        cluster.close()


def test_a_node_that_was_frozen_while_a_token_was_made_knows_it_when_it_wakes(
    tmp_path: Path,
) -> None:
    cluster = TestCluster(tmp_path / "nodes")
    switch_on(cluster)
    try:
        cluster.start()
        addresses, administers = cluster.cluster.grpc_addresses, administrator(cluster)
        with Client(cluster.servers, token=administers, timeout=60) as admin:
            controller = admin.describe_cluster().controller
        late = next(node for node in cluster.nodes if node != controller)
        cluster.freeze(late)
        with Client(addresses[controller], token=administers, timeout=60) as admin:
            token = admin.create_token("user:app").text
        with (
            Client(addresses[late], token=token, timeout=60) as client,
            ThreadPoolExecutor() as pool,
        ):
            asked = pool.submit(client.list_streams)
            time.sleep(0.5)  # The request waits in its socket.
            cluster.thaw(late)
            assert asked.result() == []
    finally:
        cluster.close()


def _activity_names_who_asked(cluster: TestCluster, admin: Client, token: str) -> None:
    """Whichever node is asked: it forwards to the leader of the cursors."""
    admin.record_activity()
    for node in cluster.nodes:
        with Client(cluster.cluster.grpc_addresses[node], token=token, timeout=60) as client:
            client.commit_cursor(f"by-{node}", "orders", 0)
            client.delete_cursor(f"by-{node}", "orders")

    def told() -> list[tuple[str, str]]:
        events = (json.loads(each.value or b"") for each in admin.fetch("__activity", start=0))
        return [(e["cursor"], e["principal"]) for e in events if "cursor" in e]

    expected = [(f"by-{node}", "user:admin") for node in cluster.nodes for _ in range(2)]
    cluster.wait_for("who has changed cursors is recorded", lambda: told() == expected)


def _nodes_still_work_together(cluster: TestCluster, admin: Client) -> None:
    """Creation is forwarded, leaderships are handed over, readiness is asked for all around."""
    for number in range(6):
        admin.create_stream(f"more{number}", f"more{number}.>", replicas=3)
    cluster.wait_for(
        "all are in sync",
        lambda: sorted(admin.describe_stream("orders").isr) == cluster.nodes,
    )
    leader = admin.describe_stream("orders").leader
    target = next(node for node in cluster.nodes if node != leader)
    assert admin.transfer_leader("orders", target).leader == target
    admin.publish("orders.eu", b"after the hand-over", msg_id="after the hand-over")
    cluster.wait_for(
        "all are ready",
        lambda: all(not node.not_ready for node in admin.describe_cluster().nodes),
    )
    log = "".join(map(cluster.log, cluster.nodes))
    late = [line for line in log.splitlines() if '"not_handed_over"' in line]
    refusals = ("token", "proof", "right", "may not")
    assert not [line for line in late if any(word in line for word in refusals)]
    assert "the node's proof is not valid" not in log
    cluster.kill(target)
    admin.publish("orders.eu", b"after a failover", msg_id="after a failover", timeout=60)
