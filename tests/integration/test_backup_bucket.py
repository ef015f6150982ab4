"""Backups in a bucket: the same as in a folder, and nothing of them on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

obstore = pytest.importorskip("obstore")

from obstore.store import MemoryStore  # noqa: E402

from jetstream_client import Client  # noqa: E402
from jetstream_client.migration import bucket as buckets  # noqa: E402
from jetstream_client.migration.backup import MANIFEST, FolderBackup  # noqa: E402
from jetstream_client.migration.bucket import Bucket, back_up  # noqa: E402
from jetstream_client.migration.restore import restore  # noqa: E402
from jetstream_protocol.errors import (  # noqa: E402
    CorruptBatchError,
    InvalidRequestError,
    PreconditionFailedError,
    StreamNotFoundError,
    UnavailableError,
)
from tests.support.command import jetstream  # noqa: E402
from tests.support.s3 import SECRET, s3_server  # noqa: E402
from tests.support.server import ServerProcess  # noqa: E402
from tests.support.stages import server_stage  # noqa: E402

server = server_stage()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.grpc, timeout=60) as client:
        yield client


@pytest.fixture(autouse=True)
def objects_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "OBJECT_BYTES", 1)  # One for each batch.


class Store(Bucket):
    """In memory. puts_left: before it is away."""

    def __init__(self, store: Any = None) -> None:
        self.store = store or MemoryStore()
        super().__init__("s3://backups/orders", self.store)
        self.puts: list[str] = []
        self.puts_left = 1000

    def put(self, name: str, data: bytes, *, is_new: bool) -> None:
        if not self.puts_left:
            raise UnavailableError("the store is away")
        self.puts_left -= 1
        super().put(name, data, is_new=is_new)
        self.puts.append(name)


def fill(client: Client, name: str, count: int = 6) -> None:
    for number in range(count):
        client.publish(name, b"%d" % number, headers={"n": str(number)})


def records(client: Client, name: str) -> list[tuple[object, ...]]:
    with client.consume(name, stop="latest", patience=60) as found:
        return [(each.offset, each.timestamp_us, each.value, each.header_block) for each in found]


def taken(client: Client, name: str, bucket: Bucket) -> Any:
    return back_up(client, name, bucket, lambda _: None)


@contextmanager
def no_bar(total: int | None, what: str = "") -> Iterator[Any]:
    yield lambda _: None


def test_a_backup_goes_on_later_and_is_the_same_as_in_a_folder(
    client: Client, tmp_path: Path
) -> None:
    client.create_stream("same", "same")
    fill(client, "same")
    bucket = Store()
    first = taken(client, "same", bucket)
    assert (first.records, len(first.files)) == (6, 6)
    bucket.puts.clear()
    fill(client, "same", 2)
    second = taken(client, "same", bucket)
    assert bucket.puts == [*(each.name for each in second.files[6:]), MANIFEST]
    for name in (*bucket.names(), MANIFEST):
        (tmp_path / name).write_bytes(bucket.get(name) or b"")
    folder = FolderBackup(tmp_path)
    assert folder.read_manifest() == second == bucket.read_manifest()
    folder.check_files(second, lambda _: None)
    _, digest = restore(client, bucket, "same-copy", no_bar, subject="copy.same")
    assert digest.hexdigest() == second.digest
    assert records(client, "same-copy") == records(client, "same")


def test_an_interrupted_backup_goes_on_where_it_stopped(client: Client) -> None:
    client.create_stream("cut", "cut")
    fill(client, "cut")
    bucket = Store()
    bucket.puts_left = 4  # The first is the manifest.
    with pytest.raises(UnavailableError):
        taken(client, "cut", bucket)
    assert len(bucket.names()) == 3
    with pytest.raises(PreconditionFailedError, match="has ended yet"):
        restore(client, bucket, "cut-copy", no_bar)
    bucket.puts.clear()
    bucket.puts_left = 1000
    found = taken(client, "cut", bucket)
    assert len(bucket.puts) == 4, "three objects, and the manifest"
    assert found.records == 6
    bucket.puts_left = 1
    fill(client, "cut", 3)
    with pytest.raises(UnavailableError):
        taken(client, "cut", bucket)
    assert bucket.was_interrupted(found)
    _, digest = restore(client, bucket, "cut-copy", no_bar, subject="copy.cut")
    assert digest.hexdigest() == found.digest, "the backup before"


def test_a_damaged_backup_makes_no_stream(client: Client) -> None:
    client.create_stream("bad", "bad")
    fill(client, "bad")
    bucket = Store()
    name = taken(client, "bad", bucket).files[2].name
    whole = bucket.get(name)
    assert whole is not None
    for damage in (whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1]), None):
        if damage is None:
            obstore.delete(bucket.store, f"orders/{name}")
        else:
            bucket.put(name, damage, is_new=False)
        with pytest.raises(CorruptBatchError, match=name):
            restore(client, bucket, "bad-copy", no_bar)
        with pytest.raises(CorruptBatchError, match=name):
            taken(client, "bad", bucket)
    with pytest.raises(StreamNotFoundError):
        client.describe_stream("bad-copy")


class Overtaken(Store):
    """While it is looked through, another run ends."""

    def __init__(self, store: Any, client: Client) -> None:
        super().__init__(store)
        self.client = client

    def names(self) -> list[str]:
        found = super().names()
        taken(self.client, "one", Store(self.store))
        return found


def test_two_runs_and_other_streams_are_refused(client: Client) -> None:
    client.create_stream("one", "one")
    client.create_stream("two", "two")
    fill(client, "one", 2)
    bucket = Store()
    taken(client, "one", bucket)
    fill(client, "one", 2)
    with pytest.raises(PreconditionFailedError, match="another backup"):
        taken(client, "one", Overtaken(bucket.store, client))
    assert bucket.read_manifest().records == 4
    with pytest.raises(InvalidRequestError, match="another stream"):
        taken(client, "two", bucket)
    with pytest.raises(InvalidRequestError, match="holds no backup"):
        restore(client, Store(), None, no_bar)


def test_the_commands_take_a_bucket(
    server: ServerProcess, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream("told", "told")
    fill(client, "told")
    with s3_server("backups") as address:
        for name, value in (
            ("AWS_ENDPOINT_URL", address), ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1"),
        ):  # fmt: skip
            monkeypatch.setenv(name, value)
        at = ("--server", server.grpc)
        ended = jetstream("stream", "backup", "told", "s3://backups/daily/told", "--json", *at)
        assert not ended.returncode, ended.stderr
        assert json.loads(ended.stdout)["records"] == 6
        restoring = ("stream", "restore", "s3://backups/daily/told", "told-copy")
        ended = jetstream(*restoring, "--subject", "copy.told", *at)
        assert not ended.returncode, ended.stderr
        assert records(client, "told-copy") == records(client, "told")
        missing = jetstream("stream", "restore", "s3://none/x", *at)
        assert missing.returncode
        assert SECRET not in missing.stderr


@pytest.mark.parametrize(
    "to",
    ["s3:/b/x", "S3://b/x", "gs://b/x", "file://b/x", "file:///b?x", "s3://[b/x", "s3://b/x"],
)
def test_an_address_that_is_no_place_becomes_no_folder_here(
    server: ServerProcess, to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A typing error would leave the backup on the disk that it is to replace."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_CHECKSUM_ALGORITHM", "none")  # The last one is right otherwise.
    for command in (("backup", "any", to), ("restore", to)):
        ended = jetstream("stream", *command, "--server", server.grpc)
        assert (ended.returncode, ended.stderr.count("\n")) == (2, 1), ended.stderr
    assert not list(tmp_path.iterdir())
