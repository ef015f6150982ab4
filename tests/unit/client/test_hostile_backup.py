"""A backup that somebody else has made: nothing in it leads out of its folder."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jetstream_client.migration import backup
from jetstream_client.migration import bucket as buckets
from jetstream_client.migration.group_folder import backups_in
from jetstream_client.migration.manifest import BackupFile, Manifest
from jetstream_protocol.batch import encode
from jetstream_protocol.errors import CorruptBatchError, InvalidRequestError
from jetstream_protocol.types import WallUs

NAME = f"{0:020}.log"
SETTINGS: dict[str, Any] = {"group": "", "compact": False}


def manifest(*files: BackupFile, settings: dict[str, Any] = SETTINGS) -> Manifest:
    return Manifest("c", 7, "orders", "orders.>", 1, settings, 0, 1, files=files, is_complete=True)


def file_of(path: Path, name: str = NAME) -> BackupFile:
    return BackupFile(name, 0, 1, path.stat().st_size, backup.crc_of(path, path.stat().st_size))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(b"not for a stream")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "backup"
    path.mkdir()
    return path


@pytest.mark.parametrize(
    "name", ["../secret", "{}/secret", "secret", "", f"../{NAME}", f"./{NAME}"]
)
def test_a_manifest_names_files_of_its_folder_only(folder: Path, secret: Path, name: str) -> None:
    named = manifest(file_of(secret, name.format(secret.parent)))
    (folder / backup.MANIFEST).write_text(named.to_json())
    with pytest.raises(InvalidRequestError, match="is not the name of a file of a backup"):
        backup.FolderBackup(folder).read_manifest()


@pytest.mark.parametrize("wrong", [{"length": -1}, {"base_offset": -1}, {"length": "9"}])
def test_a_manifest_has_possible_numbers(folder: Path, secret: Path, wrong: dict[str, Any]) -> None:
    named = manifest(replace(file_of(secret), **wrong))
    (folder / backup.MANIFEST).write_text(named.to_json())
    with pytest.raises(InvalidRequestError, match="is not the manifest of a backup"):
        backup.FolderBackup(folder).read_manifest()


@pytest.mark.parametrize("number", [2**62, -1])
def test_a_group_of_impossibly_many_streams_is_not_looked_for(folder: Path, number: int) -> None:
    settings = {"group": "orders", "compact": False, "partition": 0, "partitions": number}
    (folder / "orders-0").mkdir()
    (folder / "orders-0" / backup.MANIFEST).write_text(manifest(settings=settings).to_json())
    with pytest.raises(InvalidRequestError, match=f"the setting partitions is {number}"):
        backups_in(folder)


@pytest.mark.parametrize("unknown", ["restoring", "allow_same_name", "name", "x"])
def test_a_manifest_has_the_settings_of_a_stream_and_no_others(folder: Path, unknown: str) -> None:
    named = manifest(settings={**SETTINGS, unknown: True})
    (folder / backup.MANIFEST).write_text(named.to_json())
    with pytest.raises(InvalidRequestError, match=f"no setting '{unknown}'"):
        backup.FolderBackup(folder).read_manifest()


def test_a_file_that_leads_elsewhere_is_not_read(folder: Path, secret: Path) -> None:
    (folder / NAME).symlink_to(secret)
    with pytest.raises(InvalidRequestError, match="not a regular file"):
        backup.FolderBackup(folder).check_files(manifest(file_of(secret)))
    with pytest.raises(InvalidRequestError, match="not a regular file"):
        backup.FolderBackup(folder).names()


def test_a_pipe_is_not_waited_for(folder: Path, secret: Path) -> None:
    os.mkfifo(folder / NAME)
    with pytest.raises(InvalidRequestError, match="not a regular file"):
        backup.FolderBackup(folder).check_files(manifest(file_of(secret)))


def test_a_manifest_that_leads_elsewhere_is_not_read(folder: Path, secret: Path) -> None:
    (folder / backup.MANIFEST).symlink_to(secret)
    with pytest.raises(InvalidRequestError, match="not a regular file"):
        backup.FolderBackup(folder).read_manifest()


@pytest.mark.parametrize("name", [backup._LOCK, backup._TEMPORARY])
def test_a_pipe_is_not_written_to(folder: Path, name: str) -> None:
    os.mkfifo(folder / name)
    with pytest.raises(OSError, match=name):
        open(folder / name, "ab", opener=backup._private).close()


def test_a_manifest_of_gigabytes_is_not_read(folder: Path) -> None:
    with (folder / backup.MANIFEST).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidRequestError, match="too large"):
        backup.FolderBackup(folder).read_manifest()


def test_an_object_that_is_larger_than_it_should_be_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")
    from obstore.store import MemoryStore

    store = MemoryStore()
    bucket = buckets.Bucket("s3://backups", store)
    (folder / NAME).write_bytes(b"x")
    store.put(NAME, b"x" * 100)
    with pytest.raises(CorruptBatchError, match="too large"):
        bucket.check_files(manifest(file_of(folder / NAME)))
    monkeypatch.setattr(buckets, "MANIFEST_BYTES_MAX", 10)
    store.put(backup.MANIFEST, manifest().to_json().encode())
    with pytest.raises(CorruptBatchError, match="too large"):
        bucket.read_manifest()


def test_a_batch_far_after_the_others_is_not_restored(folder: Path) -> None:
    """All offsets before it would be covered by batches without records."""
    path = folder / NAME
    far = encode([b"x"], b"orders.x")
    far.stamp(2**60, 0, WallUs(0))
    path.write_bytes(far.to_bytes())
    with pytest.raises(CorruptBatchError, match="should end before 1"):
        list(backup.FolderBackup(folder).stored_batches(manifest(file_of(path))))
