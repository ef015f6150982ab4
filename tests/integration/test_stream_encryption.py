"""Encryption as a setting of a stream, with real servers: only its own batches are encrypted, and
only nodes with a key keep it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from jetstream_client import Client, PreconditionFailedError, StorageError
from jetstream_client.cli.progress import progress_bar
from jetstream_client.migration.backup import back_up
from jetstream_client.migration.restore import restore
from jetstream_protocol.batch import decode_header
from jetstream_protocol.columns import Flags
from tests.integration.test_encryption import (
    KEY,
    KEY_ID,
    files_with_the_secret,
    publish,
    said,
    values,
    write_keys,
)
from tests.support import command
from tests.support.hasty_server import HastyCluster
from tests.support.server import ServerProcess, running_server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Its node encrypts only streams that ask for it."""
    write_keys(tmp_path / "keys", KEY)
    environment = {
        "JETSTREAM_ENCRYPTION__KEY_FILE": str(tmp_path / "keys"),
        "JETSTREAM_ENCRYPTION__ENABLED": "false",
    }
    with running_server(tmp_path / "data", environment=environment) as server:
        yield server


def jetstream(server: ServerProcess, *arguments: str) -> str:
    done = command.jetstream("--server", server.grpc, *arguments)
    assert done.returncode == 0, done
    return done.stdout


def encrypted(client: Client, name: str) -> list[bool]:
    """Whether each batch is encrypted on disk, from the first to the last."""
    found: list[bool] = []
    offset, end = 0, client.offset_at(name, "latest")
    while offset < end:
        fetched = client.fetch_batches(name, offset, encrypted=True)
        position = 0
        while position < len(fetched.data):
            header = decode_header(fetched.data, position)
            found.append(bool(header.flags & Flags.ENCRYPTED))
            position += header.length
        offset = fetched.next_offset
    return found


def test_only_the_streams_that_ask_for_it_are_encrypted(
    server: ServerProcess, tmp_path: Path
) -> None:
    encryption = ("--encryption", "aes-256-gcm")
    jetstream(server, "stream", "create", "sealed", "--subject", "sealed.>", *encryption)
    with Client(server.grpc, timeout=60) as client:
        ids = {"sealed": client.describe_stream("sealed").id}
        ids["plain"] = client.create_stream("plain", "plain.>").id
        for name in ids:
            publish(client, name, range(30))
            assert values(client, name) == said(range(30))
        assert all(encrypted(client, "sealed"))
        assert not any(encrypted(client, "plain"))
        back_up(client, "sealed", tmp_path / "backup", lambda offsets: None)
        restored, _ = restore(client, tmp_path / "backup", "again", progress_bar, subject="again.>")
        assert values(client, "again") == said(range(30))
        assert restored.encryption == "aes-256-gcm"
        ids["again"] = restored.id

    listed = {
        row["name"]: row["encryption"]
        for row in map(json.loads, jetstream(server, "stream", "list", "--json").splitlines())
    }
    assert listed == {"sealed": "aes-256-gcm", "plain": "node", "again": "aes-256-gcm"}
    table = jetstream(server, "stream", "list").splitlines()
    assert ["encrypted" in line for line in table if line.startswith(("plain", "sealed"))] == [
        False,
        True,
    ]
    assert "aes-256-gcm" in jetstream(server, "stream", "describe", "sealed", "--all")

    server.stop()
    folders = {name: server.data / "streams" / str(ids[name]) for name in ids}
    assert files_with_the_secret(folders["sealed"], folders["again"], tmp_path / "backup") == []
    assert files_with_the_secret(folders["plain"])
    server.start()
    with Client(server.grpc, timeout=60) as client:
        publish(client, "sealed", range(30, 40))
        assert values(client, "sealed") == said(range(40))
        assert all(encrypted(client, "sealed"))


def test_what_is_stored_after_an_alteration_is_encrypted_and_what_was_before_stays(
    server: ServerProcess,
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("altered", "altered.>")
        publish(client, "altered", range(10))
        before = encrypted(client, "altered")
        assert before
        assert not any(before)
        assert client.alter_stream("altered", encryption="aes-256-gcm").encryption == "aes-256-gcm"
        publish(client, "altered", range(10, 20))
        after = encrypted(client, "altered")
        assert after[: len(before)] == before
        assert all(after[len(before) :])
        assert len(after) > len(before)
        client.alter_stream("altered", encryption="node")
        publish(client, "altered", range(20, 30))
        assert not encrypted(client, "altered")[-1]
        assert values(client, "altered") == said(range(30))


def test_a_node_without_keys_makes_no_such_stream(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data")
    server.start()
    try:
        with Client(server.grpc, timeout=60) as client:
            client.create_stream("plain", "plain.>")
            complaint = r"needs keys, and node 0 has none.*encryption\.key_file"
            with pytest.raises(PreconditionFailedError, match=complaint):
                client.create_stream("sealed", "sealed.>", encryption="aes-256-gcm")
            with pytest.raises(PreconditionFailedError, match=complaint):
                client.alter_stream("plain", encryption="aes-256-gcm")
            assert [each.name for each in client.list_streams()] == ["plain"]
            publish(client, "plain", range(10))
    finally:
        server.kill()


def test_a_node_that_has_lost_its_keys_refuses_the_stream_and_serves_the_others(
    server: ServerProcess,
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("sealed", "sealed.>", encryption="aes-256-gcm")
        client.create_stream("plain", "plain.>")
    server.stop()
    kept = server.environment.pop("JETSTREAM_ENCRYPTION__KEY_FILE")
    server.environment["JETSTREAM_ENCRYPTION__RETIRED_KEY_IDS"] = json.dumps([KEY_ID])
    server.start()
    with Client(server.grpc, timeout=60) as client:
        publish(client, "plain", range(10))
        assert values(client, "plain") == said(range(10))
        with pytest.raises(StorageError, match="takes no appends; its description says why"):
            client.publish("sealed.x", "no")
        state = client.describe_stream("sealed").state
        assert state.startswith("offline: the stream is to be encrypted, and this node has no key")
    server.stop()
    server.environment["JETSTREAM_ENCRYPTION__KEY_FILE"] = kept
    del server.environment["JETSTREAM_ENCRYPTION__RETIRED_KEY_IDS"]
    server.start()
    with Client(server.grpc, timeout=60) as client:
        publish(client, "sealed", range(10))
        assert values(client, "sealed") == said(range(10))


def test_a_node_of_a_cluster_without_keys_keeps_no_such_stream(tmp_path: Path) -> None:
    cluster = HastyCluster(tmp_path / "cluster")
    write_keys(tmp_path / "keys", KEY)
    first, second, without = cluster.nodes
    without_keys = cluster.cluster.config
    with_keys = {
        **without_keys,
        "encryption": {"key_file": str(tmp_path / "keys"), "enabled": False},
    }

    def use(config: dict[str, object]) -> None:
        cluster.cluster.config_file.write_text(yaml.safe_dump(config))

    names = [f"sealed-{number}" for number in range(3)]

    def nobody_without_a_key_leads() -> bool:
        return all(cluster.settled(name).stream.leader != without for name in names)

    try:
        cluster.cluster.start_nats()
        for node in cluster.nodes:
            use(without_keys if node == without else with_keys)
            cluster.cluster.start_node(node)
            if node != without:
                cluster.wait_for(
                    "it has read its keys", lambda node=node: KEY_ID in cluster.log(node)
                )
        cluster.cluster.wait_for_nodes(*cluster.nodes)
        # Until then calls are refused, and tried again at other nodes.
        cluster.wait_for(
            "the newest level",
            lambda: any("feature_level_raised" in cluster.log(node) for node in cluster.nodes),
        )
        with Client(cluster.cluster.grpc_addresses[first], timeout=60) as client:
            # Leaderships are shared out: the node without a key gives one away at once.
            for name in names:
                client.create_stream(name, f"{name}.>", replicas=3, encryption="aes-256-gcm")
            client.create_stream("plain", "plain.>", replicas=3)
            cluster.wait_for("leaders with a key", nobody_without_a_key_leads)
            # All at once: each stream waits until the node without a key has left its ISR.
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda name: publish(client, name, range(10)), (*names, "plain")))
            for name in (*names, "plain"):
                assert values(client, name) == said(range(10))
            cluster.wait_for(
                "the node without a key is not in sync",
                lambda: sorted(cluster.settled(names[0]).stream.isr) == [first, second],
            )
            cluster.wait_for_isr("plain", cluster.nodes)
            log = cluster.log(without)
            assert "cannot_decrypt" in log
            assert "the stream is to be encrypted, and this node has no key" in log

            cluster.stop(without)
            use(with_keys)
            cluster.restart(without)
            for name in names:
                cluster.wait_for_isr(name, cluster.nodes)
            client.transfer_leader(names[0], without)
            publish(client, names[0], range(10, 20))
            assert values(client, names[0]) == said(range(20))
    finally:
        cluster.close()
    streams = [cluster.cluster.directory / f"node-{node}" / "streams" for node in cluster.nodes]
    ids = {path.name for folder in streams for path in folder.iterdir()}
    assert ids
    leaking = {path.parent.name for path in files_with_the_secret(*streams)}
    assert len(leaking) == 1, "only the plain stream's folders show records"
