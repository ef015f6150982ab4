"""Backup and restore on three real nodes: the restored stream is the same to every reader."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import (
    Client,
    InvalidRequestError,
    Message,
    PreconditionFailedError,
    StreamExistsError,
)
from jetstream_client.migration import backup as backups
from jetstream_client.migration.backup import back_up
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_protocol.batch import Batch, decode_header, encode
from tests.support import command
from tests.support.cluster import TestCluster, running_cluster
from tests.support.digests import check_digests_while_compacting
from tests.support.patient_server import PatientCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    folder = tmp_path_factory.mktemp("backup") / "cluster"
    with running_cluster(folder, kind=PatientCluster) as running:
        running.wait_for("level 2", lambda: _takes_restores(running))
        yield running


def _takes_restores(cluster: TestCluster) -> bool:
    with Client(cluster.servers, timeout=60) as client:
        client.delete_stream(client.create_stream("level", "level", restoring=True))
    return True


@pytest.fixture
def client(cluster: TestCluster) -> Iterator[Client]:
    with Client(cluster.servers, timeout=60) as client:
        yield client


def fill(client: Client, name: str, count: int = 40) -> None:
    """Batches, single messages, keys, headers, tombstones, several subjects, compressed bodies."""
    with client.publisher(f"{name}.batch", linger=0, compression="zstd") as publisher:
        values = [b"%d" % each * 50 for each in range(count)]
        publisher.publish_many(values, keys=[b"key-%d" % (each % 7) for each in range(count)])
    for each in range(5):
        headers = {"X-Number": str(each)}
        client.publish(f"{name}.one", b"plain %d" % each, headers=headers, msg_id=f"{name}-{each}")
    client.publish(f"{name}.one", None, key="key-1", msg_id=f"{name}-none")
    client.publish(f"{name}.two", b"", key="key-2", msg_id=f"{name}-id")


def everything(client: Client, name: str) -> list[tuple[object, ...]]:
    return [_fields(each) for each in client.consume(name, stop="latest", patience=60)]


def _fields(message: Message) -> tuple[object, ...]:
    return (
        message.offset, message.timestamp_us, message.subject, message.key, message.value,
        message.header_block,
    )  # fmt: skip


def test_a_restored_stream_has_the_same_records_offsets_and_times(
    cluster: TestCluster, client: Client, tmp_path: Path
) -> None:
    client.create_stream("same", "same.>", max_bytes=1 << 30, group="a-group")
    fill(client, "same")
    client.purge_stream("same", 40)
    before = everything(client, "same")
    assert before[0][0] == 40
    middle = client.fetch("same", 44)[0].timestamp
    at_middle = client.offset_at("same", middle)

    cluster.jetstream("stream", "backup", "same", str(tmp_path / "folder"))
    cluster.jetstream("stream", "backup", "same", str(tmp_path / "file.parquet"))
    for file in (tmp_path / "folder").glob("*.log"):
        cluster.jetstream("log", "verify", str(file))
    client.delete_stream("same")
    said = cluster.jetstream("stream", "restore", str(tmp_path / "folder"), "--json")
    assert json.loads(said)["records"] == len(before)
    assert everything(client, "same") == before
    assert client.offset_at("same", middle) == at_middle
    restored = client.describe_stream("same")
    assert (restored.log_start_offset, restored.max_bytes, restored.restoring) == (
        40, 1 << 30, False,
    )  # fmt: skip
    # It listens again, and goes on where it was; a repeated message is still recognised.
    assert client.publish("same.one", b"next", msg_id="next").offset == before[-1][0] + 1
    assert client.publish("same.two", b"", msg_id="same-id").duplicate

    cluster.jetstream(
        "stream", "restore", str(tmp_path / "file.parquet"), "copy", "--subject", "copy.>"
    )
    assert everything(client, "copy") == before
    assert client.describe_stream("copy").subject == "copy.>"


def test_a_backup_is_taken_while_messages_come_and_goes_on_later(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backups, "FILE_BYTES", 1)  # A file for each batch.
    client.create_stream("live", "live.>")
    fill(client, "live")
    ended = threading.Event()

    def publish() -> None:
        for number in itertools.count():
            if ended.is_set():
                return
            # With an id it is sent again where a leader has lost its lease.
            client.publish("live.more", b"more", msg_id=f"more-{number}")

    thread = threading.Thread(target=publish)
    thread.start()
    try:
        first = back_up(client, "live", tmp_path / "live", lambda _: None)
    finally:
        ended.set()
        thread.join()
    assert len(backups.FolderBackup(tmp_path / "live").names()) > 1
    second = back_up(client, "live", tmp_path / "live", lambda _: None)
    assert second.end_offset == client.offset_at("live", "latest") >= first.end_offset
    assert second.records == second.end_offset
    client.create_stream("other", "other")
    with pytest.raises(InvalidRequestError, match="a backup of another stream"):
        back_up(client, "other", tmp_path / "live", lambda _: None)


def test_a_compacted_stream_keeps_its_gaps(
    cluster: TestCluster, client: Client, tmp_path: Path
) -> None:
    client.create_stream("gaps", "gaps.>", compact=True, segment_bytes=64 * 1024)
    for _ in range(30):
        with client.publisher("gaps.a", linger=0) as publisher:
            publisher.publish_many([b"x" * 4000] * 10, keys=[b"%d" % each for each in range(10)])
    cluster.wait_for(
        "compaction", lambda: (client.describe_stream("gaps").compaction or 0) and
        len(client.fetch("gaps", max_bytes=1 << 26)) < 250, 240
    )  # fmt: skip
    # It must not change between here and there, and a pass that is under way goes on.
    client.alter_stream("gaps", compact=False)
    before: list[tuple[object, ...]] = []
    while before != everything(client, "gaps"):
        before = everything(client, "gaps")
        shutil.rmtree(tmp_path / "gaps", ignore_errors=True)
        cluster.jetstream("stream", "backup", "gaps", str(tmp_path / "gaps"))
    cluster.jetstream(
        "stream", "restore", str(tmp_path / "gaps"), "gaps-again", "--subject", "gaps-again"
    )
    after = everything(client, "gaps-again")
    assert after == before
    assert client.offset_at("gaps-again", "latest") == client.offset_at("gaps", "latest")


def test_a_restore_goes_on_after_its_leader_was_killed(
    cluster: TestCluster, client: Client, tmp_path: Path
) -> None:
    client.create_stream("killed", "killed.>")
    fill(client, "killed", 400)
    manifest = back_up(client, "killed", tmp_path / "killed", lambda _: None)
    stream = client.create_stream("survivor", "survivor", restoring=True)
    batches = [
        batch for _, batch in backups.FolderBackup(tmp_path / "killed").stored_batches(manifest)
    ]
    writer = RestoreWriter(client, stream)
    writer.put_batches(batches[0])
    writer.flush()
    leader = client.describe_stream(stream).leader
    cluster.kill(leader)
    try:
        for batch in batches[1:]:
            writer.put_batches(batch)
        writer.flush()
        again = RestoreWriter(client, stream)
        assert again.next_offset == manifest.end_offset
        again.put_batches(batches[0])  # What is there is passed over.
        again.flush()
    finally:
        cluster.restart(leader)
    assert everything(client, "survivor") == everything(client, "killed")


def test_a_backup_with_records_that_an_election_has_lost_stays_as_it_is(
    cluster: TestCluster, client: Client, tmp_path: Path
) -> None:
    stream = client.create_stream("cut", "cut", replicas=2, min_insync_replicas=1)
    (stale,) = (node for node in stream.replicas if node != stream.leader)
    for each in range(10):
        client.publish("cut", b"both hold %d" % each, msg_id=f"both-{each}")
    cluster.wait_for("both hold it", lambda: len(cluster.api(stale).values_upto("cut", 10)) == 10)
    cluster.kill(stale)
    cluster.wait_for_isr("cut", [stream.leader])
    for each in range(10, 15):
        client.publish("cut", b"one holds %d" % each, msg_id=f"one-{each}")
    file, folder = tmp_path / "cut.parquet", tmp_path / "cut"
    for to in file, file, folder:
        cluster.jetstream("stream", "backup", "cut", str(to))
    before = file.read_bytes()

    cluster.kill(stream.leader)
    cluster.restart(stale)
    cluster.wait_for("nobody leads", lambda: client.describe_stream("cut").leader == -1)
    cluster.jetstream("stream", "elect", "cut", "--unclean", str(stale), "--yes")
    for each in range(10, 30):
        client.publish("cut", b"another %d" % each, msg_id=f"another-{each}")
    said = cluster.jetstream("stream", "backup", "cut", str(file), code=1)
    assert f"{file} holds records from offset 10 on that the stream has no more" in said
    assert file.read_bytes() == before
    cluster.jetstream("stream", "backup", "cut", str(folder), code=1)
    cluster.jetstream("stream", "backup", "cut", str(tmp_path / "new.parquet"))
    cluster.jetstream("stream", "backup", "cut", str(tmp_path / "new.parquet"))
    cluster.restart(stream.leader)
    cluster.wait_for_isr("cut", list(stream.replicas))


def test_only_a_stream_that_is_being_restored_is_written_to(client: Client, tmp_path: Path) -> None:
    client.create_stream("plain", "plain")
    client.publish("plain", b"one", msg_id="one")
    data = client.fetch_batches("plain", 0).data
    with pytest.raises(PreconditionFailedError, match="takes its records from its subject"):
        client.restore_batches("plain", data)
    with pytest.raises(InvalidRequestError, match="only a new stream is restored"):
        client.alter_stream("plain", restoring=True)
    stream = client.create_stream("silent", "plain", restoring=True, allow_same_name=True)
    client.publish("plain", b"two", msg_id="two")  # It does not hear of it.
    assert client.restore_batches(stream, data) == 1
    with pytest.raises(PreconditionFailedError, match="ends at offset 1"):
        client.restore_batches(stream, data)
    with pytest.raises(StreamExistsError):
        client.create_stream("silent", "plain", restoring=False)
    assert [each.value for each in client.fetch("silent")] == [b"one"]


def test_digests_tell_whether_replicas_are_equal(cluster: TestCluster, client: Client) -> None:
    client.create_stream("digest", "digest.>")
    fill(client, "digest", 400)
    cluster.wait_for("followers", lambda: json.loads(_digest(cluster, "digest"))["end"] == 407)
    found: dict[str, Any] = {}

    def is_equal() -> bool:
        found.update(json.loads(_digest(cluster, "digest")))
        return bool(found["equal"])

    cluster.wait_for("the replicas are equal", is_equal)
    assert len({each["digest"] for each in found["replicas"]}) == 1
    assert len(found["replicas"]) == 3
    said = command.jetstream("--server", cluster.servers, "stream", "digest", "digest").stdout
    assert "\noffsets 0 to 406\n" in said

    stream = client.describe_stream("digest")
    follower = next(node for node in stream.replicas if node != stream.leader)
    _forge_first_batch(cluster, follower, stream.id)

    def differing() -> list[int]:
        looked = _differing(cluster, "digest")
        return [node for node, each in looked.items() if each["differs_at"] or each["problem"]]

    # Another that stands still has a problem, too.
    cluster.wait_for("it alone differs", lambda: differing() == [follower])


def test_a_compacted_part_is_compared_by_what_a_reader_ends_with(
    cluster: TestCluster, client: Client
) -> None:
    check_digests_while_compacting(cluster, client, "compacted")
    digest = ("stream", "digest", "compacted")
    said = command.jetstream("--server", cluster.servers, *digest).stdout
    assert " by the last record of each key" in said

    stream = client.describe_stream("compacted")
    follower = next(node for node in stream.replicas if node != stream.leader)
    _forge_first_batch(cluster, follower, stream.id)

    def differing() -> list[int]:
        looked = _differing(cluster, "compacted")
        return [node for node, each in looked.items() if each["by_key"]]

    cluster.wait_for("it alone differs", lambda: differing() == [follower])


def _forge_first_batch(cluster: TestCluster, node: int, stream_id: int) -> None:
    """A disk that lies to one node, in bytes that pass every check."""
    cluster.stop(node)
    folder = cluster.cluster.directory / f"node-{node}" / "streams" / str(stream_id)
    log = folder / f"{0:020}.log"
    data = log.read_bytes()
    header = decode_header(data)
    first = Batch.decode(data)
    forged = encode(
        [b"x" * len(value or b"") for value in first.values()], first.layout.subject,
        keys=first.keys() if first.layout.keys else None,
    )  # fmt: skip
    assert forged.length >= header.length  # Uncompressed; it does not fit in place.
    forged.stamp(header.base_offset, header.leader_epoch, header.append_timestamp)
    log.write_bytes(forged.to_bytes() + data[header.length :])
    for each in (*folder.glob("checkpoint"), *folder.glob("*.index")):
        each.unlink()
    cluster.restart(node)


def _differing(cluster: TestCluster, name: str) -> dict[int, dict[str, Any]]:
    """What is said of each replica."""
    done = command.jetstream("--server", cluster.servers, "stream", "digest", name, "--json")
    assert done.returncode == 6, done
    return {each["node"]: each for each in json.loads(done.stdout)["replicas"]}


def _digest(cluster: TestCluster, name: str) -> str:
    return cluster.jetstream("stream", "digest", name, "--json")
