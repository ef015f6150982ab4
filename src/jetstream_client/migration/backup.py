"""Backups: the batches of a stream as files, taken while it runs.

    FOLDER/manifest.json                what the backup holds; says last that it is complete
    FOLDER/00000000000000000000.log     batches as they are stored, about FILE_BYTES in each file

A file is a segment (docs/file_formats.md): `jetstream log verify` and `dump` read it. Every batch
is checked when it is copied and when it is restored.

Batches that are encrypted at rest stay encrypted: restoring needs a server with their keys.

Taking a backup again, whether it was interrupted or is complete, continues it: its batches stay,
and newer ones are added behind them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.manifest import BackupFile, Manifest, settings_of
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.values.types import StreamDescription, StreamLike
from jetstream_protocol.batch import Batch, BatchHeader, crc32c, decode_header, extend_crc32c
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.logfiles.scan import walk

MANIFEST = "manifest.json"
FILE_BYTES = 256 * 1024 * 1024
_FETCH_BYTES = 4 * 1024 * 1024

Advance = Callable[[int], None]
"""Told how many offsets further it is."""
Bar = Callable[[int | None, str], AbstractContextManager[Advance]]
"""Begins a step: how many offsets it has (None: unknown), and what is done, in a word."""


def back_up(client: Client, stream: StreamLike, folder: Path, advance: Advance) -> Manifest:
    """Copy the records that are committed when this begins. Returns the manifest of what the folder
    holds then.

    Raises InvalidRequestError for a folder that holds something else, PreconditionFailedError if
    the stream does not continue what the folder holds.
    """
    described = client.describe_stream(stream)
    if described.log_start_offset is None or described.high_watermark is None:
        raise UnavailableError(f"stream {described.name!r} has no leader that answers: try again")
    manifest, is_new = _begin(client, described, folder)
    files = _Files(folder, manifest)
    if not is_new:
        files.keep_what_is_whole()
        advance(files.next_offset - manifest.start_offset)
    if files.next_offset < described.log_start_offset:
        raise PreconditionFailedError(
            f"the backup ends at offset {files.next_offset}, and the stream begins at "
            f"{described.log_start_offset} now: what is between is gone; begin another backup"
        )
    while files.next_offset < described.high_watermark:
        fetched = client.fetch_batches(
            described,
            files.next_offset,
            max_bytes=_FETCH_BYTES,
            last_epoch=files.last_epoch,
            encrypted=True,
        )
        if not fetched.data:
            raise UnavailableError(f"no records at offset {files.next_offset} came: try again")
        before = files.next_offset
        files.append(fetched.data)
        advance(files.next_offset - before)
    return files.finish()


def _begin(client: Client, stream: StreamDescription, folder: Path) -> tuple[Manifest, bool]:
    cluster_id = client.describe_cluster().cluster_id
    path = folder / MANIFEST
    if path.exists():
        manifest = read_manifest(folder)
        if (manifest.cluster_id, manifest.stream_id) != (cluster_id, stream.id):
            raise InvalidRequestError(
                f"{folder} holds a backup of another stream, {manifest.name}@{manifest.subject}: "
                "say another folder"
            )
        manifest = replace(manifest, is_complete=False)
        _write(path, manifest.to_json())
        return manifest, False
    if folder.exists() and any(folder.iterdir()):
        raise InvalidRequestError(f"{folder} is not empty and holds no backup: say another folder")
    folder.mkdir(parents=True, exist_ok=True)
    assert stream.log_start_offset is not None
    manifest = Manifest(
        cluster_id=cluster_id,
        stream_id=stream.id,
        name=stream.name,
        subject=stream.subject,
        replicas=stream.replication_factor,
        settings=settings_of(stream),
        start_offset=stream.log_start_offset,
        end_offset=stream.log_start_offset,
    )
    _write(path, manifest.to_json())
    return manifest, True


class _Files:
    """The files of a backup that is being taken. Files are written to their end, one by one."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._file: BinaryIO | None = None
        self._digest = RecordDigest()
        self._counted = 0
        self._has_encrypted = False
        self._done: list[BackupFile] = []
        self.next_offset = manifest.start_offset
        self.last_epoch = -1

    def keep_what_is_whole(self) -> None:
        """Go on behind the last whole batch that follows those before it."""
        for path in batch_files(self._folder):
            begins = int(path.stem)  # The first one perhaps before the first record.
            if begins > self.next_offset or (self._done and begins != self.next_offset):
                raise InvalidRequestError(f"{path} does not continue the file before it")
            self._keep(path)

    def _keep(self, path: Path) -> None:
        end = 0
        with path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            for position, header, batch in _batches(file, size, end_quietly=True):
                self._note(header, batch)
                end = position + len(batch)
            file.truncate(end)
        if not end:
            path.unlink()  # It was interrupted before its first batch was whole.
            return
        self._file = path.open("ab")
        self._close_file()

    def append(self, data: bytes) -> None:
        """Whole batches, whose CRCs were checked."""
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            if self._file is None or self._file.tell() + header.length > FILE_BYTES:
                self._close_file()
                self._file = (self._folder / f"{header.base_offset:020}.log").open("xb")
            self._file.write(data[position : position + header.length])
            self._note(header, data[position : position + header.length])
            position += header.length

    def _note(self, header: BatchHeader, data: bytes) -> None:
        self._counted += header.record_count
        if header.flags & Flags.ENCRYPTED:
            self._has_encrypted = True
        else:
            records = Records.of_batch(Batch.decode(data))
            self._digest.add(kept(records, self._manifest.start_offset))
        self.next_offset, self.last_epoch = header.next_offset, header.leader_epoch

    def _close_file(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = Path(self._file.name)
        self._done.append(
            BackupFile(
                path.name, int(path.stem), self.next_offset, path.stat().st_size, crc_of(path)
            )
        )
        self._file = None

    def finish(self) -> Manifest:
        self._close_file()
        manifest = replace(
            self._manifest,
            end_offset=self.next_offset,
            last_epoch=self.last_epoch,
            records=self._counted if self._has_encrypted else self._digest.count,
            digest="" if self._has_encrypted else self._digest.hexdigest(),
            files=tuple(self._done),
            is_complete=True,
        )
        _write(self._folder / MANIFEST, manifest.to_json())
        return manifest


def kept(records: Records, start_offset: int) -> Records:
    """The records from `start_offset` on: the first batch of a log may begin before its first
    record."""
    start = sum(1 for offset in records.offsets if offset < start_offset)
    return records.rows(start, len(records)) if start else records


def read_manifest(folder: Path) -> Manifest:
    """Raises InvalidRequestError if the folder holds no backup."""
    path = folder / MANIFEST
    if not path.exists():
        raise InvalidRequestError(f"{folder} holds no backup: it has no {MANIFEST}")
    return Manifest.from_json(path.read_bytes(), str(path))


def stored_batches(folder: Path, manifest: Manifest) -> Iterator[tuple[BatchHeader, bytes]]:
    """Every batch of a complete backup, all of it checked. Raises CorruptBatchError."""
    for each in manifest.files:
        path = folder / each.name
        if not path.exists():
            raise CorruptBatchError(f"the backup lacks its file {path}")
        if path.stat().st_size != each.length or crc_of(path) != each.crc32c:
            raise CorruptBatchError(f"{path} is not as it was written: it fails its CRC")
        with path.open("rb") as file:
            for _, header, batch in _batches(file, each.length, end_quietly=False):
                yield header, batch


def _batches(
    file: BinaryIO, size: int, *, end_quietly: bool
) -> Iterator[tuple[int, BatchHeader, bytes]]:
    def read(position: int, length: int) -> bytes:
        file.seek(position)
        return file.read(length)

    try:
        for position, header in walk(read, 0, size, bodies=True):
            yield position, header, read(position, header.length)
    except CorruptBatchError:
        if not end_quietly:
            raise


def batch_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]" * 20 + ".log"))


def crc_of(path: Path) -> str:
    crc = crc32c(b"")
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            crc = extend_crc32c(crc, chunk)
    return f"{crc:08x}"


def _write(path: Path, text: str) -> None:
    """All of it or nothing, also through a power failure."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
