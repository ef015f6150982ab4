"""Restoring a stream from a backup folder, and checking the result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import (
    Advance,
    Bar,
    FolderBackup,
    kept,
)
from jetstream_client.migration.bucket import Bucket
from jetstream_client.migration.manifest import Manifest
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_client.values.types import Stream
from jetstream_protocol.batch import BatchHeader, iterate
from jetstream_protocol.errors import (
    CorruptBatchError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    StreamExistsError,
)
from jetstream_protocol.settings import STREAM_SETTINGS

_FETCH_BYTES = 4 * 1024 * 1024
OTHERS_WERE_FASTER = (StreamExistsError, PreconditionFailedError, CorruptBatchError)
"""How a restore or import may fail after another run of it, or an earlier one, has completed the
stream: it exists, takes no more batches, or holds records that came to its subject since."""
_LIMITS = tuple(each.name for each in STREAM_SETTINGS if each.set_last)


def restore(
    client: Client,
    place: Path | Bucket,
    name: str | None,
    bar: Bar,
    **changed: Any,
) -> tuple[Stream, RecordDigest]:
    """Make the stream anew under `name` (by default its own), with the same offsets and times, from
    the last backup into the folder, or the bucket, that has ended.

    changed: settings that differ from those of the backup. If a restore was interrupted, the same
    call goes on where it stopped, or only compares if it had done all. Raises CorruptBatchError for
    a damaged backup, of which no stream is made, and StreamExistsError for another stream of that
    name.
    """
    backup = FolderBackup(place) if isinstance(place, Path) else place
    manifest = backup.read_manifest()
    if not manifest.is_restorable:
        raise PreconditionFailedError(
            f"no backup into {place} has ended yet: run the same `stream backup` again"
        )
    with bar(manifest.length, "checking") as advance:
        backup.check_files(manifest, advance)

    def fill(stream: Stream) -> RecordDigest:
        writer = RestoreWriter(client, stream)
        whole = _WholeBatches(manifest)
        with bar(manifest.length, "copying") as advance, names_what_is_left(stream):
            for header, batch in backup.stored_batches(manifest):
                writer.put_batches(batch)
                whole.add(header)
                advance(header.next_offset - max(header.base_offset, manifest.start_offset))
            writer.cover(manifest.end_offset)
            writer.flush()
        with bar(manifest.length, "comparing") as advance:
            digest = finish(client, stream, manifest.bounds, advance, whole.note)
        if not manifest.digest and whole.found != whole.records:
            raise difference_error(stream.name, whole.records, whole.found)
        return digest

    return made_of(client, manifest, name or manifest.name, bar, fill, changed)


def made_of(
    client: Client,
    manifest: Manifest,
    name: str,
    bar: Bar,
    fill: Callable[[Stream], RecordDigest],
    changed: dict[str, Any],
) -> tuple[Stream, RecordDigest]:
    """The stream of a backup, and its digest. fill: copies what the stream lacks, and reads it
    back. changed: see `restore`."""
    settings = {"replicas": manifest.replicas, **manifest.settings, **changed}
    subject = settings.pop("subject", None) or manifest.subject
    try:
        stream, limits = begin_restoring(client, name, subject, settings, manifest.schema)
        digest = fill(stream)
        if manifest.digest and (digest.count, digest.hexdigest()) != (
            manifest.records,
            manifest.digest,
        ):
            raise difference_error(stream.name, manifest.records, digest.count)
        return listen(client, stream, limits), digest
    except OTHERS_WERE_FASTER:
        done = restored_before(client, manifest, name, subject, bar)
        if done is None:
            raise
        return done


def restored_before(
    client: Client, manifest: Manifest, name: str, subject: str, bar: Bar
) -> tuple[Stream, RecordDigest] | None:
    """The stream of that name and subject, if it was made of this backup: a restore was interrupted
    after its last step, or is repeated. None: it may be another one."""
    found = listening(client, name, subject)
    if found is None or not manifest.digest:
        return None
    is_source = found.id == manifest.stream_id
    if is_source and client.describe_cluster().cluster_id == manifest.cluster_id:
        return None
    with bar(manifest.length, "comparing") as advance:
        digest = held_between(client, found, manifest.bounds, advance)
    if digest is None or (digest.count, digest.hexdigest()) != (manifest.records, manifest.digest):
        return None
    return found, digest


def listening(client: Client, name: str, subject: str) -> Stream | None:
    """The stream of that name and subject that is not being restored."""
    wanted = name, subject, False
    streams = client.list_streams()
    return next((e for e in streams if (e.name, e.subject, e.restoring) == wanted), None)


def held_between(
    client: Client, stream: Stream, bounds: tuple[int, int], advance: Advance
) -> RecordDigest | None:
    """The digest of what a stream that listens holds between two offsets; None: it does not begin
    with the first."""
    start_offset, end_offset = bounds
    if client.describe_stream(stream).log_start_offset != start_offset:
        return None
    digest, held = RecordDigest(), records_of(client, stream, start_offset)
    for records in followed(held, bounds, advance):
        if records and records.offsets[0] >= end_offset:
            break  # It listens to its subject since then.
        digest.add(records.where(lambda offset: start_offset <= offset < end_offset))
    return digest


class _WholeBatches:
    """Counts the records of the batches that lie in the backup from their first offset on: that is
    what can be compared of encrypted ones. What the server appended of them was authenticated."""

    def __init__(self, manifest: Manifest) -> None:
        self._start_offset = manifest.start_offset
        self._begin_at = manifest.end_offset
        self.records = self.found = 0

    def add(self, header: BatchHeader) -> None:
        if header.base_offset >= self._start_offset:
            self._begin_at = min(self._begin_at, header.base_offset)
            self.records += header.record_count

    def note(self, records: Records) -> None:
        """These were read back."""
        self.found += len(kept(records, self._begin_at))


def begin_restoring(
    client: Client, name: str, subject: str, settings: dict[str, Any], schema: str = ""
) -> tuple[Stream, dict[str, Any]]:
    """The new stream, or the one of a restore that was interrupted; and the settings that it gets
    in the end: nothing is to be removed before everything was compared. schema: of its values; ""
    for none. A cluster whose feature level knows no schemas refuses it now, not after hours of
    copying. Raises StreamExistsError."""
    limits = {each: settings.pop(each) for each in _LIMITS if settings.get(each)}
    settings = {each: value for each, value in settings.items() if each not in _LIMITS}
    try:
        stream = client.create_stream(name, subject, restoring=True, **settings)
    except StreamExistsError as error:
        raise _stream_exists_error(client, name, subject, error) from error
    if schema:
        client.set_schema(stream, schema)
    return stream, limits


def _stream_exists_error(
    client: Client, name: str, subject: str, error: StreamExistsError
) -> StreamExistsError:
    """What the caller can do about it."""
    found = [each for each in client.list_streams() if each.name == name]
    if not found:
        return error  # The caller may not see it, or it was deleted just now.
    if any(each.restoring and each.subject == subject for each in found):
        return StreamExistsError(
            f"{error}. It is being restored or imported: go on with the same settings, or delete it"
        )
    if all(each.leader < 0 for each in found):
        return StreamExistsError(
            f"stream {found[0].full_name} exists, and has no leader (jetstream cluster health says "
            "why): if its records are lost, delete it first"
        )
    return StreamExistsError(
        f"stream {found[0].full_name} exists already: if it was restored or imported before, that "
        "is complete; otherwise give the new stream another NAME"
    )


@contextmanager
def names_what_is_left(stream: Stream) -> Iterator[None]:
    """What cannot be copied leaves a stream that never becomes complete."""
    try:
        yield
    except (CorruptBatchError, MessageTooLargeError) as error:
        raise type(error)(
            f"{error}. The new stream is not complete, and does not listen to its subject: "
            f"jetstream stream delete '{stream.full_name}' --yes"
        ) from error


def finish(
    client: Client,
    stream: Stream,
    bounds: tuple[int, int],
    advance: Advance,
    each: Callable[[Records], None] = lambda records: None,
) -> RecordDigest:
    """Remove what only covers the offsets before the first record, and read back what the stream
    holds.

    bounds: the first offset of the backup, and the one after its last. each: called
    with all records that are read.
    """
    start_offset, _ = bounds
    if start_offset:
        client.purge_stream(stream, start_offset)
    digest = RecordDigest()
    for records in followed(records_of(client, stream), bounds, advance):
        digest.add(kept(records, start_offset))
        each(records)
    return digest


def followed(
    source: Iterable[Records], bounds: tuple[int, int], advance: Advance
) -> Iterator[Records]:
    """The records, while `advance` is called with the progress between two offsets."""
    offset, end_offset = bounds
    for records in source:
        yield records
        if records and records.offsets[-1] >= offset:
            advance(records.offsets[-1] + 1 - offset)
            offset = records.offsets[-1] + 1
    if end_offset > offset:
        advance(end_offset - offset)


def records_of(
    client: Client, stream: Stream, start_offset: int | None = None
) -> Iterator[Records]:
    """All committed records of a stream, or those from an offset on."""
    offset, last_epoch = start_offset, -1
    if offset is None:
        offset = client.offset_at(stream, "earliest")
    while True:
        try:
            fetched = client.fetch_batches(
                stream, offset, max_bytes=_FETCH_BYTES, last_epoch=last_epoch
            )
        except OffsetOutOfRangeError as error:
            if start_offset is not None or error.log_start_offset <= offset:
                raise
            offset = error.log_start_offset  # Whoever was asked had not heard of a purge.
            continue
        if not fetched.data:
            return
        for batch in iterate(fetched.data):
            yield Records.of_batch(batch)
        offset, last_epoch = fetched.next_offset, fetched.last_epoch


def listen(client: Client, stream: Stream, limits: dict[str, Any]) -> Stream:
    """End the restore: the stream has its limits, and listens to its subject when this returns."""
    client.alter_stream(stream, restoring=False, **limits)
    return client.create_stream(
        stream.name,
        stream.subject,
        allow_same_name=True,
        group=stream.group,
        partition=stream.partition,
        partitions=stream.partitions,
    )


def difference_error(name: str, wanted: int, found: int) -> CorruptBatchError:
    return CorruptBatchError(
        f"stream {name!r} does not hold what it should: {found} records, and it should hold "
        f"{wanted}, or others; it does not listen to its subject yet: delete it and begin anew"
    )
