"""Backups of compacted streams under writes: they hold what a reader would see at one moment."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from jetstream_client import Client
from jetstream_client.migration import parquet
from jetstream_client.migration.backup import MANIFEST, back_up
from jetstream_client.migration.parquet import manifest_of
from tests.support import command
from tests.support.overtaking import (
    COMPACTED_SECONDS,
    create,
    overtake,
    publish,
    view_before,
    wait_until_compacted,
)
from tests.support.server import ServerProcess

pytestmark = pytest.mark.timeout(900)


def jetstream(server: ServerProcess, *arguments: str, code: int = 0) -> str:
    done = command.jetstream("--server", server.grpc, *arguments)
    assert done.returncode == code, done
    return done.stderr + done.stdout


def view(client: Client, name: str) -> dict[bytes | None, bytes | None]:
    found = client.consume(name, stop="latest", patience=60)
    return {each.key: each.value for each in found}


def test_a_backup_that_compaction_overtakes_lacks_no_key(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder, said = tmp_path / "overtaken", list[str]()
    create(client, "overtaken")
    publish(client, "overtaken", 0, 600)
    begun = False

    def advance(offsets: int) -> None:
        nonlocal begun
        if not begun:  # The end is fixed, and nothing is copied yet.
            begun = True
            overtake(client, "overtaken", 600)

    manifest = back_up(client, "overtaken", folder, advance, said.append)
    assert manifest.end_offset > 600
    assert len(said) == 1
    assert "so that no key is missing" in said[0]
    jetstream(server, "stream", "restore", str(folder), "again", "--subject", "again")
    assert view(client, "again") == view_before(manifest.end_offset)

    # The next run has only newer records, and the same is true of it.
    begun = False
    publish(client, "overtaken", 1200, 100)
    also = back_up(client, "overtaken", folder, lambda _: None, said.append)
    assert also.end_offset == 1300
    jetstream(server, "stream", "restore", str(folder), "newer", "--subject", "newer")
    assert view(client, "newer") == view_before(1300)


def test_a_parquet_file_that_compaction_overtakes_lacks_no_key(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    file, said = tmp_path / "overtaken.parquet", list[str]()
    create(client, "columns")
    publish(client, "columns", 0, 600)

    class Overtaken(Client):
        scans = 0

        def scan(self, *arguments: Any, **options: Any) -> Any:
            Overtaken.scans += 1
            if Overtaken.scans == 1:
                overtake(client, "columns", 600)
            return super().scan(*arguments, **options)

    with Overtaken(server.grpc) as overtaken:
        parquet.back_up(overtaken, "columns", file, lambda _: None, said.append)
    manifest = manifest_of(file)
    assert manifest is not None
    assert manifest.end_offset > 600
    assert len(said) == 1
    jetstream(server, "stream", "restore", str(file), "rows", "--subject", "rows")
    assert view(client, "rows") == view_before(manifest.end_offset)
    jetstream(server, "stream", "backup", "columns", str(file))  # It may replace itself.


def test_a_backup_that_may_have_missed_tombstones_is_refused(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "deleted"
    create(client, "deleted", tombstone_grace=1)
    publish(client, "deleted", 0, 200)
    jetstream(server, "stream", "backup", "deleted", str(folder))
    before = {each.name: each.read_bytes() for each in folder.iterdir()}

    client.publish("deleted", None, key=b"7")
    publish(client, "deleted", 201, 6)
    publish(client, "deleted", 208, 32)  # No record with the key 7.
    wait_for_tombstones(client, "deleted", 201)
    said = jetstream(server, "stream", "backup", "deleted", str(folder), code=1)
    assert "would come back; begin another backup in another folder" in said
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == before
    # Another one is complete, although tombstones are gone below where it ends.
    jetstream(server, "stream", "backup", "deleted", str(tmp_path / "another"))
    assert "tombstones_gone_below" not in (tmp_path / "another" / MANIFEST).read_text()
    jetstream(server, "stream", "restore", str(tmp_path / "another"), "a", "--subject", "a")
    assert view(client, "a") == view(client, "deleted")


def wait_for_tombstones(client: Client, name: str, offset: int) -> None:
    """Until compaction has removed the tombstone of the key 7, and says that it did before the
    offset."""
    deadline, number = time.monotonic() + COMPACTED_SECONDS, 0
    while client.fetch_batches(name, 0, max_bytes=1).tombstones_gone_below < offset or b"7" in view(
        client, name
    ):
        assert time.monotonic() < deadline, "no tombstone is removed"
        with client.publisher(name, linger=0.0) as publisher:
            for _ in range(40):  # Of another key: so that there is something to compact.
                number += 1
                publisher.send(b"%d" % number * 1_000, key=b"other")
        time.sleep(0.2)


def test_a_stream_without_tombstones_is_backed_up_as_rarely_as_one_likes(
    server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    folder = tmp_path / "rarely"
    create(client, "rarely", tombstone_grace=0.1)
    publish(client, "rarely", 0, 200)
    jetstream(server, "stream", "backup", "rarely", str(folder))
    for number in range(1, 4):  # Passes long after each other: the grace time is over.
        publish(client, "rarely", 200 * number, 200)
        wait_until_compacted(client, "rarely", 200 * number)
        time.sleep(0.2)
    jetstream(server, "stream", "backup", "rarely", str(folder))
    jetstream(server, "stream", "restore", str(folder), "seldom", "--subject", "seldom")
    assert view(client, "seldom") == view_before(800)
