"""Backups: the batches of a stream as files, taken while it runs.

    FOLDER/manifest.json                what the last run that ended has copied
    FOLDER/lock                         locked while a run goes on
    FOLDER/00000000000000000000.log     batches as they are stored, about FILE_BYTES in each file

A file is a segment (docs/file_formats.md): `jetstream log verify` and `dump` read it. Every batch
is checked when it is copied and when it is restored.

Batches that are encrypted at rest stay encrypted: restoring needs a server with their keys.

Taking a backup again, whether it was interrupted or is complete, continues it: its batches stay,
and newer ones are added after them.

**safety** Once a run has ended, the manifest describes a state that can be restored, whatever
happens to later runs: they write to files of their own, and replace the manifest at their end. A
run that is refused changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.manifest import BackupFile, Manifest, schema_of, settings_of
from jetstream_client.migration.one_view import OneView
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.migration.restore_writer import check_restorable
from jetstream_client.migration.whole_file import sync_folder
from jetstream_client.values.types import StreamDescription, StreamLike
from jetstream_protocol.batch import Batch, BatchHeader, crc32c, decode_header, extend_crc32c
from jetstream_protocol.columns import Flags
from jetstream_protocol.errors import (
    CorruptBatchError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.logfiles.scan import Tail, walk

MANIFEST = "manifest.json"
_TEMPORARY = "manifest.tmp"
_LOCK = "lock"
_CANNOT_LOCK = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
FILE_BYTES = 256 * 1024 * 1024
MANIFEST_BYTES_MAX = 64 * 1024 * 1024
"""Enough for the names of 400,000 files."""
_FETCH_BYTES = 4 * 1024 * 1024

Advance = Callable[[int], None]
"""Called with the number of offsets done since the last call."""
Bar = Callable[[int | None, str], AbstractContextManager[Advance]]
"""Begins a step: how many offsets it has (None: unknown), and what is done, in a word."""


Note = Callable[[str], None]
"""Called with a sentence that the caller may want to show."""


def back_up(
    client: Client, stream: StreamLike, folder: Path, advance: Advance,
    note: Note = lambda text: None,
) -> Manifest:  # fmt: skip
    """Copy the records that are committed when this begins, and of a compacted stream as many later
    ones as it takes to have what a reader would see. Returns the manifest of what the folder holds
    then.

    Raises InvalidRequestError for a folder that holds something else, PreconditionFailedError if
    the stream does not continue what the folder holds, or while another run writes to the folder,
    MessageTooLargeError for a record that cannot be restored.
    """
    described = describe_with_end(client, stream)
    cluster_id = client.describe_cluster().cluster_id
    _begin(cluster_id, described, folder)  # May refuse the folder: then it stays as it is.
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _only_run(folder):
        return copied(
            client,
            described,
            lambda described: _Files(folder, _begin(cluster_id, described, folder)),
            advance,
            note,
        )


def copied(
    client: Client,
    described: StreamDescription,
    begin: Callable[[StreamDescription], BackupRun],
    advance: Advance,
    note: Note,
) -> Manifest:
    """Copy to what `begin` begins, and again if retention was faster. Raises as `back_up`."""
    while True:
        run = begin(described)
        try:
            return _copy(client, described, run, advance, note)
        except OffsetOutOfRangeError as error:
            if error.log_start_offset <= run.next_offset:
                raise
            if run.next_offset > run.manifest.start_offset:
                raise _gone_error(run, error.log_start_offset) from error
        finally:
            run.close()
        described = describe_with_end(client, described)  # Retention was faster: begin after it.


def describe_with_end(client: Client, stream: StreamLike) -> StreamDescription:
    """The description, with the end of what is committed as high watermark. It is asked for
    `latest`: a new leader of an older release describes an end below that, and a newer one none.
    Raises UnavailableError."""
    described = client.describe_stream(stream)
    if described.log_start_offset is None:
        raise UnavailableError(f"stream {described.name!r} has no leader that answers: try again")
    return replace(described, high_watermark=client.offset_at(described, "latest"))


def _copy(
    client: Client, described: StreamDescription, files: BackupRun, advance: Advance, note: Note
) -> Manifest:
    log_start_offset, end_offset = described.log_start_offset, described.high_watermark
    assert log_start_offset is not None
    assert end_offset is not None
    files.find()
    if files.next_offset < log_start_offset:
        if not files.is_empty:
            raise _gone_error(files, log_start_offset)
        files.begin_at(log_start_offset)
    view = OneView(client, described, files.next_offset, files.gone_below)
    files.go_on(view.gone_below)
    advance(files.next_offset - files.manifest.start_offset)
    while True:
        _copy_to(client, described, end_offset, files, advance)
        end_offset = view.end(files.next_offset)
        if end_offset == files.next_offset:
            return files.finish(schema_of(client, described))
        note(overtaken(files.next_offset, end_offset))


def _gone_error(files: BackupRun, log_start_offset: int) -> PreconditionFailedError:
    return PreconditionFailedError(
        f"the backup ends at offset {files.next_offset}, and the stream begins at "
        f"{log_start_offset} now: what is between is gone; begin another backup in another "
        f"place. {files.place} stays as it is"
    )


def overtaken(copied_to: int, end_offset: int) -> str:
    """Why a copy of a compacted stream goes on to a later end."""
    return (
        f"compaction was faster, and went beyond offset {copied_to}: the records up to offset "
        f"{end_offset - 1} are copied, too, so that no key is missing"
    )


def _copy_to(
    client: Client,
    described: StreamDescription,
    end_offset: int,
    files: BackupRun,
    advance: Advance,
) -> None:
    while files.next_offset < end_offset:
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


@contextmanager
def _only_run(folder: Path) -> Iterator[None]:
    """Two runs would write to the same files. On a file system that has no locks the caller has to
    see to it."""
    import fcntl  # Not where the module begins: only Unix has it, and every command imports this.

    with open(folder / _LOCK, "ab", opener=_private) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreconditionFailedError(
                f"another backup into {folder} is under way: wait until it has ended"
            ) from None
        except OSError as error:
            if error.errno not in _CANNOT_LOCK:
                raise
        yield


def _begin(cluster_id: str, stream: StreamDescription, folder: Path) -> Manifest:
    """The manifest of the folder, or a new one, which is not written yet."""
    known = FolderBackup(folder).read_manifest() if (folder / MANIFEST).exists() else None
    is_used = folder.exists() and {each.name for each in folder.iterdir()} - {_LOCK, _TEMPORARY}
    if known is None and is_used:
        raise InvalidRequestError(f"{folder} is not empty and holds no backup: say another folder")
    return begun(known, cluster_id, stream, str(folder), "folder")


def begun(
    known: Manifest | None, cluster_id: str, stream: StreamDescription, where: str, what: str
) -> Manifest:
    """The manifest that is there already, or a new one. Raises InvalidRequestError if it is of
    another stream. what: of which the caller is to name another."""
    if known is not None:
        check_stream(known, cluster_id, stream, f"{where} holds", what)
        return known
    assert stream.log_start_offset is not None
    return Manifest(
        cluster_id=cluster_id,
        stream_id=stream.id,
        name=stream.name,
        subject=stream.subject,
        replicas=stream.replication_factor,
        settings=settings_of(stream),
        start_offset=stream.log_start_offset,
        end_offset=stream.log_start_offset,
    )


def check_stream(
    manifest: Manifest, cluster_id: str, stream: StreamDescription, where: str, what: str
) -> None:
    """Raises InvalidRequestError if the backup is of another stream. where: "X holds"; what: of
    which the caller is to name another."""
    if (manifest.cluster_id, manifest.stream_id) == (cluster_id, stream.id):
        return
    if manifest.cluster_id != cluster_id:
        found = f"a backup of a stream of another cluster, {manifest.name}@{manifest.subject}"
    elif manifest.name == stream.name:
        found = (
            f"a backup of an earlier stream of this name (id {manifest.stream_id}, now {stream.id})"
        )
    else:
        found = f"a backup of another stream, {manifest.name}@{manifest.subject}"
    raise InvalidRequestError(f"{where} {found}: say another {what}")


class BackupRun(ABC):
    """A backup that is being taken: `find` what there is, `go_on` after it, `append`, `finish`, and
    `close`. Each run writes to files of its own."""

    def __init__(self, place: object, manifest: Manifest) -> None:
        """place: as errors name it."""
        self.place = place
        self.manifest = manifest
        self._digest = RecordDigest()
        self._counted = 0
        self._has_encrypted = False
        self._done: list[BackupFile] = []
        self.next_offset = manifest.start_offset
        self.last_epoch = -1
        self.gone_below: int | None = None
        """Below that offset no tombstone is missing after what there is; None: there is nothing,
        or it is not known. See `OneView`."""

    @abstractmethod
    def find(self) -> None:
        """Read what there is: of the last complete state, and what an interrupted run has left
        behind it, up to its last whole batch. Changes nothing. Raises CorruptBatchError if the
        state is damaged, MessageTooLargeError if it cannot be restored."""

    @abstractmethod
    def _append(self, header: BatchHeader, batch: bytes) -> None:
        """Write one batch."""

    @abstractmethod
    def close(self) -> None:
        """What a failed run has written stays for the next run."""

    @abstractmethod
    def _close_file(self) -> None:
        """End the file, if one was begun."""

    @abstractmethod
    def _write(self, manifest: Manifest) -> None:
        """Replace the manifest, once what it lists is there."""

    @property
    def is_empty(self) -> bool:
        """After `find`: no run has ended, and none has left a whole batch."""
        return not self._done and not self.manifest.is_restorable

    def go_on(self, gone_below: int) -> None:
        """Make room after what was found, and note below which offset tombstones were gone before
        anything was copied."""
        if self.is_empty:
            self._write(replace(self.manifest, tombstones_gone_below=gone_below))

    def append(self, data: bytes) -> None:
        """Whole batches, whose CRCs were checked."""
        position = 0
        while position < len(data):
            header = decode_header(data, position)
            check_restorable(data, position)
            batch = data[position : position + header.length]
            self._append(header, batch)
            self._note(header, batch)
            position += header.length

    def begin_at(self, offset: int) -> None:
        """Set the first offset of an empty backup; `go_on` writes it to the manifest."""
        self.manifest = replace(self.manifest, start_offset=offset, end_offset=offset)
        self.next_offset = offset

    def finish(self, schema: str) -> Manifest:
        self._close_file()
        manifest = replace(
            self.manifest,
            end_offset=self.next_offset,
            last_epoch=self.last_epoch,
            records=self._counted if self._has_encrypted else self._digest.count,
            digest="" if self._has_encrypted else self._digest.hexdigest(),
            files=tuple(self._done),
            is_complete=True,
            tombstones_gone_below=0,
            schema=schema,
        )
        self._write(manifest)
        return manifest

    def _know_gone(self) -> None:
        """After the state was read."""
        if self._done:
            # Not of what an interrupted run has left: what was removed meanwhile is not known.
            known = self.manifest
            self.gone_below = max(known.end_offset, known.tombstones_gone_below)

    def _note(self, header: BatchHeader, data: bytes) -> None:
        self._counted += header.record_count
        if header.flags & Flags.ENCRYPTED:
            self._has_encrypted = True
        else:
            records = Records.of_batch(Batch.decode(data))
            self._digest.add(kept(records, self.manifest.start_offset))
        self.next_offset, self.last_epoch = header.next_offset, header.leader_epoch

    def _note_left(
        self, begins: int, batches: Iterable[tuple[BatchHeader, bytes]], where: object
    ) -> int:
        """Note what a file holds that an interrupted run has left. begins: by its name, perhaps
        before the first record. Returns how long its whole batches are. Raises InvalidRequestError
        unless it goes on after what was read."""
        if self._done and begins < self.next_offset:
            raise _discontinuity_error(where)
        end = 0
        for header, batch in batches:
            if not end and begins > self.next_offset and not Tail(self.next_offset).is_gap(header):
                raise _discontinuity_error(where)
            check_restorable(batch, 0)
            self._note(header, batch)
            end += len(batch)
        return end


class _Files(BackupRun):
    """The files of a backup in a folder."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        super().__init__(folder, manifest)
        self.folder = folder
        self._stored = FolderBackup(folder)
        self._file: BinaryIO | None = None
        self._left: list[tuple[Path, int]] = []

    def find(self) -> None:
        self._stored.check_files(self.manifest)
        for each in self.manifest.files:
            for header, batch in self._stored.batches(each):
                check_restorable(batch, 0)
                self._note(header, batch)
            self._done.append(each)
        for path in map(self.folder.joinpath, self._stored.unlisted(self.manifest)):
            batches = _batches(path, path.stat().st_size, end_quietly=True)
            end = self._note_left(int(path.stem), batches, path)
            self._left.append((path, end))
            if end:
                self._add(path, end)
        self._know_gone()

    def go_on(self, gone_below: int) -> None:
        """Also cut off what an interrupted run has not written to its end."""
        for path, end in self._left:
            if not end:
                path.unlink()  # It was interrupted before its first batch was whole.
                continue
            with open(path, "r+b", opener=_private) as file:
                file.truncate(end)
                os.fsync(file.fileno())
        if not (self.folder / MANIFEST).exists():
            sync_folder(self.folder.parent)
        super().go_on(gone_below)

    def _append(self, header: BatchHeader, batch: bytes) -> None:
        if self._file is None or self._file.tell() + header.length > FILE_BYTES:
            self._close_file()
            path = self.folder / f"{header.base_offset:020}.log"
            self._file = open(path, "xb", opener=_private)  # noqa: SIM115  _close_file does
        self._file.write(batch)

    def _close_file(self) -> None:
        if self._file is None:
            return
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        path = Path(self._file.name)
        self._add(path, path.stat().st_size)
        self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _add(self, path: Path, length: int) -> None:
        """A file, as far as it was written; `next_offset` is where it ends."""
        crc = crc_of(path, length)
        self._done.append(BackupFile(path.name, int(path.stem), self.next_offset, length, crc))

    def _write(self, manifest: Manifest) -> None:
        _write(self.folder, manifest)


def kept(records: Records, start_offset: int) -> Records:
    """The records from `start_offset` on: the first batch of a log may begin before its first
    record."""
    start = sum(1 for offset in records.offsets if offset < start_offset)
    return records.rows(start, len(records)) if start else records


class StoredBackup(ABC):
    """A backup that can be restored (restore.py), wherever it is."""

    @abstractmethod
    def read_manifest(self) -> Manifest:
        """Raises InvalidRequestError if there is no backup."""

    @abstractmethod
    def names(self) -> list[str]:
        """What holds batches, by their offsets."""

    @abstractmethod
    def check(self, file: BackupFile) -> None:
        """Raises CorruptBatchError if it is missing or is not as it was written."""

    @abstractmethod
    def batches(self, file: BackupFile) -> Iterator[tuple[BatchHeader, bytes]]:
        """Its batches, both of their CRCs checked. Raises CorruptBatchError."""

    def check_files(self, manifest: Manifest, advance: Advance = lambda offsets: None) -> None:
        """Raises CorruptBatchError if one is missing or is not as it was written."""
        for each in manifest.files:
            self.check(each)
            advance(each.next_offset - max(each.base_offset, manifest.start_offset))

    def stored_batches(self, manifest: Manifest) -> Iterator[tuple[BatchHeader, bytes]]:
        """Every batch of the last complete state. Raises CorruptBatchError; `check_files` finds
        what is missing or cut."""
        for each in manifest.files:
            for header, batch in self.batches(each):
                if header.next_offset > each.next_offset:
                    raise CorruptBatchError(
                        f"{each.name} has a batch at offset {header.base_offset}, and should end "
                        f"before {each.next_offset}"
                    )
                yield header, batch

    def unlisted(self, manifest: Manifest) -> list[str]:
        """What an interrupted run has left."""
        listed = {each.name for each in manifest.files}
        return [name for name in self.names() if name not in listed]

    def was_interrupted(self, manifest: Manifest) -> bool:
        """Whether a run after the last complete one has left something that is not restored."""
        return not manifest.is_complete or bool(self.unlisted(manifest))


class FolderBackup(StoredBackup):
    """See the module."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read_manifest(self) -> Manifest:
        path = self._folder / MANIFEST
        if not path.exists():
            raise InvalidRequestError(f"{self._folder} holds no backup: it has no {MANIFEST}")
        _check_regular(path)
        if path.stat().st_size > MANIFEST_BYTES_MAX:
            raise InvalidRequestError(f"{path} is too large: it is not the manifest of a backup")
        return Manifest.from_json(path.read_bytes(), str(path))

    def names(self) -> list[str]:
        """Raises InvalidRequestError for what no run has written there."""
        found = sorted(self._folder.glob("[0-9]" * 20 + ".log"))
        for path in found:
            _check_regular(path)
        return [path.name for path in found]

    def check(self, file: BackupFile) -> None:
        path = self._folder / file.name
        if not path.exists():
            raise CorruptBatchError(f"the backup lacks its file {path}")
        _check_regular(path)
        if path.stat().st_size != file.length or crc_of(path, file.length) != file.crc32c:
            raise CorruptBatchError(f"{path} is not as it was written: it fails its CRC")

    def batches(self, file: BackupFile) -> Iterator[tuple[BatchHeader, bytes]]:
        return _batches(self._folder / file.name, file.length)


def _discontinuity_error(where: object) -> InvalidRequestError:
    return InvalidRequestError(f"{where} does not continue the file before it")


def _batches(
    path: Path, size: int, *, end_quietly: bool = False
) -> Iterator[tuple[BatchHeader, bytes]]:
    with path.open("rb") as file:

        def read(position: int, length: int) -> bytes:
            file.seek(position)
            return file.read(length)

        try:
            for position, header in walk(read, 0, size, bodies=True):
                yield header, read(position, header.length)
        except CorruptBatchError:
            if not end_quietly:
                raise


def _check_regular(path: Path) -> None:
    """A backup may come from somebody else: nothing in its folder leads out of it, or blocks."""
    if not stat.S_ISREG(path.lstat().st_mode):
        raise InvalidRequestError(f"{path} is not a regular file: no backup has such a file")


def _private(path: str, flags: int) -> int:
    """Opens what only its owner may read, no symlink, and no pipe, which would block."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o600)


def crc_of(path: Path, length: int) -> str:
    """The CRC32C of the first `length` bytes, in hexadecimal."""
    crc = crc32c(b"")
    with path.open("rb") as file:
        while chunk := file.read(min(1 << 20, length)):
            crc = extend_crc32c(crc, chunk)
            length -= len(chunk)
    return f"{crc:08x}"


def _write(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest atomically and durably. Call it after syncing the files it lists."""
    temporary = folder / _TEMPORARY
    with open(temporary, "w", opener=_private) as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    sync_folder(folder)
    temporary.replace(folder / MANIFEST)
    sync_folder(folder)
