"""Encryption at rest with real servers: nothing of a record is on a disk or in a backup, and keys
come, go and are missed without a loss."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from jetstream_client import Client, StorageError
from jetstream_client.cli.progress import progress_bar
from jetstream_client.migration.backup import back_up
from jetstream_client.migration.restore import restore
from jetstream_server.log.encryption import key_id_of
from tests.support import command
from tests.support.api import Api
from tests.support.digests import check_digests_while_compacting
from tests.support.hasty_server import HastyCluster
from tests.support.server import ServerProcess, running_server

KEY, NEW = "ab" * 32, "cd" * 32
KEY_ID, NEW_ID = (key_id_of(bytes.fromhex(each)) for each in (KEY, NEW))
SECRET = "pl4nted"


def write_keys(path: Path, *keys: str) -> None:
    path.touch(mode=0o600)
    path.write_text("# The first one encrypts.\n" + "\n".join(keys) + "\n")


def files_with_the_secret(*folders: Path) -> list[Path]:
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if SECRET.encode() in path.read_bytes()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("encryption")
    write_keys(folder / "keys", KEY)
    environment = {"JETSTREAM_ENCRYPTION__KEY_FILE": str(folder / "keys")}
    with running_server(folder / "data", environment=environment) as server:
        yield server


def key_file(server: ServerProcess) -> Path:
    return Path(server.environment["JETSTREAM_ENCRYPTION__KEY_FILE"])


def publish(client: Client, name: str, numbers: range) -> None:
    """Records with the planted word wherever one can have it: single ones, and a batch."""
    for number in numbers[:5]:
        client.publish(
            f"{name}.{SECRET}.one",
            f"{SECRET} {number}",
            key=f"{SECRET}-{number}",
            headers={"X-Planted": SECRET},
            msg_id=f"{SECRET}-{name}-{number}",
        )
    with client.publisher(f"{name}.{SECRET}.two", compression="zstd") as publisher:
        publisher.publish_many([f"{SECRET} {number}" for number in numbers[5:]])


def values(client: Client, name: str, start: int | str = "earliest") -> list[str]:
    found = client.consume(name, start=start, stop="latest", patience=60)
    return [(each.value or b"").decode() for each in found]


def said(numbers: range) -> list[str]:
    return [f"{SECRET} {number}" for number in numbers]


def _log_without_audit(server: ServerProcess) -> str:
    """The audit log names a cursor that was moved by hand, as it names streams."""
    lines = server.log_text.splitlines()
    return "\n".join(line for line in lines if '"event": "audit"' not in line)


def test_readers_notice_nothing_and_the_disk_shows_nothing(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("orders", "orders.>")
        publish(client, "orders", range(50))
        assert values(client, "orders") == said(range(50))
        one = client.consume("orders", stop="latest", filter="orders.*.one", patience=60)
        assert [each.key for each in one] == [f"{SECRET}-{n}".encode() for n in range(5)]
        client.commit_cursor(f"{SECRET}-cursor", "orders", 7)
        assert client.describe_cursor(f"{SECRET}-cursor", "orders").offset == 7
        raw = client.fetch_batches("orders", 0, encrypted=True)
        assert SECRET.encode() not in raw.data
        assert SECRET.encode() in client.fetch_batches("orders", 0).data
    api = Api(server.grpc)
    assert [(each or b"").decode() for each in api.values("orders")] == said(range(50))
    api.close()
    with urllib.request.urlopen(f"{server.http}/v1/streams/orders/records") as answer:
        assert SECRET in answer.read().decode()

    for ending in (server.stop, server.kill):
        ending()
        assert files_with_the_secret(server.data) == []
        found = command.jetstream("log", "verify", str(server.data))
        if ending == server.stop:
            assert (found.returncode, found.stdout) == (0, f"{server.data}: sound\n")
        server.start()
        with Client(server.grpc, timeout=60) as client:
            assert values(client, "orders") == said(range(50))
            assert client.describe_cursor(f"{SECRET}-cursor", "orders").offset == 7
            again = client.publish(f"orders.{SECRET}.one", "twice", msg_id=f"{SECRET}-orders-3")
            assert (again.duplicate, again.offset) == (True, 3)
    assert SECRET not in _log_without_audit(server)
    assert KEY not in server.log_text
    assert f'"{KEY_ID}"' in server.log_text


def test_offline_tools_show_batches_and_keys_but_no_records(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        stream = client.create_stream("offline", "offline.>")
        publish(client, "offline", range(6))
    folder = server.data / "streams" / str(stream.id)
    for option in ("--json", "--records"):
        done = command.jetstream("log", "dump", str(folder), option)
        assert done.returncode == 0, done
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        assert {row["key"] for row in rows} == {KEY_ID}
        assert sum(row["records"] for row in rows) == 6
        assert SECRET not in done.stdout


def test_a_backup_stays_encrypted_and_is_restored_by_a_server_with_the_key(
    server: ServerProcess, tmp_path: Path
) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("kept", "kept.>")
        publish(client, "kept", range(20))
        before = [(each.offset, each.timestamp_us, each.key, each.value) for each in
                  client.consume("kept", stop="latest", patience=60)]  # fmt: skip
        manifest = back_up(client, "kept", tmp_path / "backup", lambda offsets: None)
        assert (manifest.records, manifest.digest, manifest.is_complete) == (20, "", True)
        publish(client, "kept", range(20, 30))
        manifest = back_up(client, "kept", tmp_path / "backup", lambda offsets: None)
        assert manifest.records == 30
        assert files_with_the_secret(tmp_path / "backup") == []
        _, digest = restore(client, tmp_path / "backup", "again", progress_bar, subject="again.>")
        assert digest.count == 30
        after = [(each.offset, each.timestamp_us, each.key, each.value) for each in
                 client.consume("again", stop="latest", patience=60)]  # fmt: skip
        assert after[:20] == before
        assert len(after) == 30
    assert files_with_the_secret(server.data / "streams") == []


def test_keys_are_rotated_missed_and_retired(server: ServerProcess) -> None:
    with Client(server.grpc, timeout=60) as client:
        client.create_stream("turned", "turned.>")
        publish(client, "turned", range(10))
    server.stop()
    write_keys(key_file(server), NEW, KEY)
    server.start()
    with Client(server.grpc, timeout=60) as client:
        publish(client, "turned", range(10, 20))
        assert values(client, "turned") == said(range(20))
    server.stop()

    write_keys(key_file(server), NEW)
    with pytest.raises(AssertionError, match=f"was used with key {KEY_ID}, which is not among"):
        server.start()
    assert files_with_the_secret(server.data) == []

    server.environment["JETSTREAM_ENCRYPTION__RETIRED_KEY_IDS"] = json.dumps([KEY_ID])
    server.start()
    with Client(server.grpc, timeout=60) as client:
        assert values(client, "turned", 10) == said(range(10, 20))
        complaint = f"node 0 cannot decrypt stream 'turned' from offset 0 on: .* key {KEY_ID}"
        with pytest.raises(StorageError, match=complaint):
            values(client, "turned")
        publish(client, "turned", range(20, 30))
        assert values(client, "turned", 10) == said(range(10, 30))
    server.stop()

    del server.environment["JETSTREAM_ENCRYPTION__RETIRED_KEY_IDS"]
    write_keys(key_file(server), NEW, KEY)
    server.start()
    with Client(server.grpc, timeout=60) as client:
        assert values(client, "turned") == said(range(30))


def test_a_cluster_loses_nothing_through_failover_and_a_node_without_the_new_key(
    tmp_path: Path,
) -> None:
    cluster = HastyCluster(tmp_path / "cluster")
    keys = tmp_path / "keys"
    write_keys(keys, KEY)
    first, second, behind = cluster.nodes
    behind_keys = tmp_path / "keys-behind"
    write_keys(behind_keys, KEY)
    config = cluster.cluster.config

    def start(node: int) -> None:
        """Each node reads the file when it starts; one has a key file of its own."""
        config["encryption"] = {"key_file": str(behind_keys if node == behind else keys)}
        cluster.cluster.config_file.write_text(yaml.safe_dump(config))
        cluster.cluster.start_node(node)
        cluster.wait_for("it has read its keys", lambda: KEY_ID in cluster.log(node))

    folders = [cluster.cluster.directory / f"node-{node}" for node in cluster.nodes]
    try:
        cluster.cluster.start_nats()
        for node in cluster.nodes:
            start(node)
        cluster.cluster.wait_for_nodes(*cluster.nodes)
        with Client(cluster.servers, timeout=60) as client:
            stream = client.create_stream("orders", "orders.>", replicas=3)
            publish(client, "orders", range(20))
            cluster.wait_for_isr("orders", cluster.nodes)
            client.transfer_leader("orders", first)
            cluster.kill(first)  # Another takes over.
            publish(client, "orders", range(20, 40))
            start(first)
            cluster.cluster.wait_for_nodes(first)
            cluster.wait_for_isr("orders", cluster.nodes)
            # Two nodes get the new key, which encrypts from now on, and one does not.
            write_keys(keys, NEW, KEY)
            for node in (first, second):
                log = partial(cluster.log, node)
                cluster.wait_for("the new key is in use", lambda log=log: "keys_reloaded" in log())
            end = 40

            def is_left_behind() -> bool:
                """Leaderships move by themselves, too."""
                nonlocal end
                if cluster.settled("orders").stream.leader == behind:
                    client.transfer_leader("orders", first)
                publish(client, "orders", range(end, end + 5))
                end += 5
                return sorted(cluster.settled("orders").stream.isr) == [first, second]

            cluster.wait_for("the node without the key is not in sync", is_left_behind)
            cluster.wait_for("it says why", lambda: NEW_ID in cluster.log(behind))
            assert f"node-{behind}" in cluster.cluster.pids()
            assert values(client, "orders") == said(range(end))

            write_keys(behind_keys, NEW, KEY)  # Without a restart.
            cluster.wait_for_isr("orders", cluster.nodes)
            publish(client, "orders", range(end, end + 10))
            assert values(client, "orders") == said(range(end + 10))

            def is_alike() -> bool:
                held = [cluster.segments(node, stream.id) for node in cluster.nodes]
                return bool(held[0]) and held[0] == held[1] == held[2]

            cluster.wait_for("all replicas hold the same bytes", is_alike)
            # Each replica encrypts anew what it compacts: only what is inside can be compared.
            check_digests_while_compacting(cluster, client, "compacted")
    finally:
        cluster.close()
    assert files_with_the_secret(*folders) == []
