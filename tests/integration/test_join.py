"""A node joins a running cluster by an address alone: no other file changes, nobody restarts."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from examples.cluster.local import LocalCluster, node_name
from jetstream_client import Client
from jetstream_client.transport import control
from jetstream_protocol.errors import (
    PreconditionFailedError,
    UnauthenticatedError,
    UnavailableError,
)
from jetstream_protocol.types import NodeId
from jetstream_server.metadata.raft import joining
from jetstream_server.metadata.raft.handshake import Identity
from jetstream_server.metadata.state.commands import SetCluster
from tests.support.cluster import TestCluster
from tests.support.load import Load

from .metadata_group import SECRET, agreed, persist, running

JOINS = 3


class _Files(LocalCluster):
    """Three nodes have a file that lists them; the fourth one's lists itself, and `join`."""

    keeps_join = True

    def start_node(self, node: int) -> None:
        config = self.config
        joins = node == JOINS
        if joins and self.keeps_join:
            config["join"] = config["nodes"][1]["raft"]
        config["nodes"] = [each for each in config["nodes"] if (each["id"] == JOINS) == joins]
        file = self.directory / f"{'joins' if joins else 'begins'}.yaml"
        text = yaml.safe_dump(config)
        if not file.exists() or file.read_text() != text:  # Another node may be reading it.
            file.write_text(text)
        arguments = ["--config", str(file), "--node-id", str(node), "--data", str(self.data(node))]
        self._start(node_name(node), [*self.server, *arguments])


class _Cluster(TestCluster):
    kind = _Files


@pytest.fixture
def growing(tmp_path: Path) -> Iterator[_Cluster]:
    cluster = _Cluster(tmp_path / "nodes", 4)
    try:
        cluster.cluster.start_nats()
        cluster.restart(0, 1, 2)
        yield cluster
    finally:
        cluster.close()


def test_a_node_that_joins_takes_replicas_and_votes(
    growing: _Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "LEARN_AGAIN_SECONDS", 0.2)
    before = growing.servers.split(",")[:JOINS]
    with Client(growing.servers, timeout=60) as client, Client(before, timeout=60) as idle:
        known = idle._client._control._servers
        assert (len(idle.describe_cluster().nodes), len(known)) == (3, 3)
        client.create_stream("orders", "orders", replicas=2)
        load = Load(growing.nats, "orders").start()
        try:
            load.wait_for_acks(50)
            growing.restart(JOINS)
            growing.wait_for(
                "all know it",
                lambda: [node.id for node in client.describe_cluster().nodes] == [0, 1, 2, JOINS],
            )
            growing.wait_for("a client that asks nothing knows it", lambda: len(known) == 4)
            client.reassign_stream("orders", (1, JOINS))
            growing.wait_for_isr("orders", [1, JOINS])
            growing.jetstream("voters", "replace", "0", str(JOINS), "--yes")
            load.wait_for_acks(50)
        finally:
            books = load.stop()
        # It finds the others again, though the node that it has joined by is down.
        growing.kill(JOINS)
        growing.kill(0)
        growing.restart(JOINS)
        growing.wait_for_isr("orders", [1, JOINS])
        growing.kill(1)
        growing.wait_for("it leads", lambda: client.describe_stream("orders").leader == JOINS)
        growing.restart(0, 1)
        high = client.offset_at("orders", "latest")
        books.check(list(growing.api(JOINS).values_upto("orders", high)))
        # Without `join` it would take itself for a cluster of its own.
        growing.kill(JOINS)
        growing.cluster.keeps_join = False  # type: ignore[attr-defined]
        growing.cluster.start_node(JOINS)
        growing.wait_for("it ends", lambda: node_name(JOINS) not in growing.cluster.pids())
        assert "names no other node: list them, or keep the key `join`" in growing.log(JOINS)


def test_who_joins_is_told_who_votes_and_nobody_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "PAUSE_SECONDS", 0.05)

    def asks(node_id: int, secret: bytes = SECRET) -> Identity:
        return Identity(NodeId(node_id), os.urandom(16), secret)

    async def main() -> None:
        async with running(tmp_path) as (group, logs):
            await agreed(logs)
            addresses = list(group.voters.values())
            with pytest.raises(UnavailableError, match="has not begun yet"):
                await joining.ask(addresses[:1], asks(7), None, seconds=0.2)
            await persist(logs[0], SetCluster(cluster_id="ours"))
            nobody = "127.0.0.1:1"
            found = await joining.ask([nobody, *addresses], asks(7), None)
            assert dict(found.addresses) == group.voters
            assert (found.node_id, found.cluster_id, found.is_named) == (7, "ours", True)
            with pytest.raises(PreconditionFailedError, match="with this node's id, 1"):
                await joining.ask(addresses[:1], asks(1), None)
            with pytest.raises(UnauthenticatedError, match="credential"):
                await joining.ask(addresses, asks(7, b"another"), None)

    asyncio.run(main())


class _Growing(LocalCluster):
    """The first node's file lists it alone. is_open: it names it as the voter, too. The second one
    joins."""

    is_open = False

    def start_node(self, node: int) -> None:
        config = self.config
        if node:
            config["join"] = config["nodes"][0]["raft"]
            config["nodes"] = config["nodes"][1:]
        else:
            config["nodes"] = config["nodes"][:1]
            config |= {"voters": [0]} if self.is_open else {}
        file = self.directory / f"{node_name(node)}.yaml"
        file.write_text(yaml.safe_dump(config))
        arguments = ["--config", str(file), "--node-id", str(node), "--data", str(self.data(node))]
        self._start(node_name(node), [*self.server, *arguments])

    def _missing_majority(self) -> str:
        return ""  # The file of the cluster lists both, long before there are two.


class _GrowingCluster(TestCluster):
    kind = _Growing


@pytest.mark.parametrize("is_open", [True, False])
def test_a_single_node_becomes_a_cluster(tmp_path: Path, is_open: bool) -> None:
    """One that is open to others is not restarted. One that is not says what to do."""
    cluster = _GrowingCluster(tmp_path / "nodes", 2)
    try:
        cluster.cluster.is_open = is_open  # type: ignore[attr-defined]
        cluster.cluster.start_nats()
        cluster.restart(0)
        with Client(cluster.cluster.grpc_addresses[0], timeout=60) as client:
            client.create_stream("orders", "orders")
            client.publish("orders", b"1", msg_id="1")
            client.commit_cursor("mine", "orders", 0)
        if not is_open:
            _refuses_others(cluster)
            cluster.stop(0)
            cluster.cluster.is_open = True  # type: ignore[attr-defined]
            cluster.restart(0)
        cluster.restart(1)
        with Client(cluster.servers, timeout=60) as client:
            client.reassign_stream("orders", (0, 1))
            cluster.wait_for_isr("orders", [0, 1])
            cluster.jetstream("stream", "reassign", "__cursors", "--replicas", "0,1", "--yes")
            cluster.jetstream("stream", "alter", "__cursors", "--min-insync-replicas", "2")
            cluster.jetstream("voters", "add", "1", "--yes")
            cluster.stop(0)
            cluster.restart(0)
            assert client.list_voters().nodes == (0, 1)
            assert [message.value for message in client.fetch("orders")] == [b"1"]
            # And one again, without the first.
            cluster.jetstream("stream", "alter", "__cursors", "--min-insync-replicas", "1")
            cluster.jetstream("stream", "reassign", "__cursors", "--replicas", "1", "--yes")
            client.commit_cursor("mine", "orders", 1)
            cluster.jetstream("voters", "remove", "0", "--yes")
            cluster.kill(0)
            client.reassign_stream("orders", (1,))
            cluster.wait_for("it leads", lambda: client.describe_stream("orders").leader == 1)
    finally:
        cluster.close()


def _refuses_others(cluster: TestCluster) -> None:
    """It listens for nobody, and both nodes say what to do."""
    cluster.cluster.start_node(1)
    cluster.wait_for("node 1 says why", lambda: "cannot_join_yet" in cluster.log(1))
    assert "`voters` in its file has its own id" in cluster.log(1)
    cluster.kill(1)
    said = cluster.jetstream("voters", "add", "1", "--yes", code=1)
    assert "write `voters: [0]` into its file and restart it" in said
