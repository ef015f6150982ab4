"""A cluster is updated node by node while it is published to and read: software of an earlier
release and of today work together, as processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.cluster.local import LocalCluster
from jetstream_client import Client, PermissionDeniedError, PreconditionFailedError
from jetstream_client.cli.exits import Exit
from tests.support import command
from tests.support.cluster import TestCluster
from tests.support.load import Load
from tests.vectors.releases import unpacked

from .test_access_cluster import administrator, switch_on

RELEASE = "0.2.0-level-4"
NEW = LocalCluster.server
LIMIT = 50 * 1024 * 1024


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """The command that starts the release."""
    return unpacked(RELEASE, tmp_path_factory.mktemp("software"))


@contextmanager
def old_cluster(folder: Path, old: tuple[str, ...]) -> Iterator[TestCluster]:
    """Three nodes of the release."""
    cluster = TestCluster(folder)
    cluster.cluster.server = old  # It is not forked as today's is, for it begins with `env`.
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def is_healthy(cluster: TestCluster) -> bool:
    done = command.jetstream("--server", cluster.servers, "cluster", "health")
    return done.returncode == Exit.OK


def change(cluster: TestCluster, node: int, software: tuple[str, ...]) -> None:
    """Stop a node, and start it with that software, as the page of updates says."""
    cluster.wait_for("the cluster is healthy", lambda: is_healthy(cluster))
    cluster.stop(node)
    cluster.cluster.server = software
    cluster.restart(node)


def check_serves(cluster: TestCluster, node: int) -> None:
    """Whatever leads: the node takes commits of cursors, leads, and is read from."""
    with Client(cluster.cluster.grpc_addresses[node], timeout=60) as client:
        client.commit_cursor("reader", "orders", node)
        assert client.describe_cursor("reader", "orders").offset == node
        cluster.wait_for(
            "the node leads",
            lambda: client.transfer_leader("orders", node).leader == node,
        )
        assert client.fetch("orders", start=0, max_messages=1).values() == [b"0"]


def test_software_of_the_release_before_and_of_today_work_together(
    tmp_path: Path, old: tuple[str, ...]
) -> None:
    with old_cluster(tmp_path, old) as cluster, Client(cluster.servers, timeout=60) as client:
        client.create_stream("orders", "orders", replicas=3, min_insync_replicas=2)
        load = Load(cluster.nats, "orders").start()
        try:
            load.wait_for_acks(200)
            # Back and forth, as long as one node is old.
            for node, software in ((0, NEW), (0, old), (0, NEW), (1, NEW)):
                change(cluster, node, software)
                for each in cluster.nodes:
                    check_serves(cluster, each)
                load.wait_for_acks(200)
            with (
                Client(cluster.cluster.grpc_addresses[1], timeout=60) as newest,
                pytest.raises(PreconditionFailedError, match=r"level 5.*at 4: nodes \[2\] run old"),
            ):
                newest.alter_cluster(copy_bytes_per_second=LIMIT)
            change(cluster, 2, NEW)
            load.wait_for_acks(200)
            cluster.wait_for("the level is raised", lambda: limited(client) == LIMIT)
        finally:
            books = load.stop()
        cluster.check_everywhere("orders", books)
        assert len(books.acked) > 1000

        cluster.stop(2)
        cluster.cluster.server = old
        cluster.cluster.start_node(2)
        cluster.wait_for("it ends", lambda: cluster.cluster.processes.pid("node-2") is None)
        assert "feature level 6, and this software understands 4" in cluster.log(2)
        cluster.cluster.server = NEW
        cluster.restart(2)
        cluster.wait_for("the cluster is healthy", lambda: is_healthy(cluster))


def test_whoever_moved_cursors_by_the_right_to_read_goes_on_after_the_update(
    tmp_path: Path, old: tuple[str, ...]
) -> None:
    with old_cluster(tmp_path, old) as cluster:
        switch_on(cluster)
        for node in cluster.nodes:
            cluster.stop(node)
            cluster.restart(node)
        with Client(cluster.servers, token=administrator(cluster), timeout=60) as admin:
            admin.create_stream("orders", "orders", replicas=3)
            admin.publish("orders", b"0", msg_id="0")
            rule = admin.add_acl("user:app", "read", stream="orders", subject="orders")
            app = admin.create_token("user:app").text
            for node in cluster.nodes:
                change_of(cluster, admin, node)
                for address in cluster.cluster.grpc_addresses:
                    with Client(address, token=app, timeout=60) as client:
                        client.commit_cursor("app", "orders", node)
                        client.consume_group("orders", "group", session_timeout=1.0).close()
            cluster.wait_for(
                "the level is raised",
                lambda: rules_of(admin)[rule.id] == ("read", "commit"),
            )
            with Client(cluster.servers, token=app, timeout=60) as client:
                client.commit_cursor("app", "orders", 7)
            admin.add_acl("user:late", "read", stream="orders", subject="orders")
            late = admin.create_token("user:late").text
            with (
                Client(cluster.servers, token=late, timeout=60) as client,
                pytest.raises(PermissionDeniedError, match="`commit`"),
            ):
                client.commit_cursor("app", "orders", 0)


def change_of(cluster: TestCluster, admin: Client, node: int) -> None:
    """`change` to the new software, of a cluster with security on."""
    cluster.wait_for("all are in sync", lambda: in_sync(admin) == cluster.nodes)
    cluster.stop(node)
    cluster.cluster.server = NEW
    cluster.restart(node)


def in_sync(admin: Client) -> list[int]:
    return sorted(admin.describe_stream("orders").isr)


def rules_of(admin: Client) -> dict[int, tuple[str, ...]]:
    return {rule.id: rule.operations for rule in admin.list_acls()}


def limited(client: Client) -> int:
    client.alter_cluster(copy_bytes_per_second=LIMIT)
    return client.describe_cluster().copy_bytes_per_second
