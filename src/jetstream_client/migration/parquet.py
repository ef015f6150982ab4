"""A backup as one Parquet file: the columns of `jetstream export`, and the manifest as metadata.

Needs pyarrow. The file gets its name when it is complete.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import Advance, Bar
from jetstream_client.migration.manifest import Manifest, settings_of
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.migration.restore import begin_restoring, differs, finish, listen
from jetstream_client.migration.restore_writer import RestoreWriter
from jetstream_client.values.types import Stream, StreamLike
from jetstream_protocol.errors import InvalidRequestError, UnavailableError

if TYPE_CHECKING:
    import pyarrow

_METADATA = b"jetstream.backup"
_ROWS = 16_384
ROW_GROUP_BYTES = 64 * 1024 * 1024


def back_up(client: Client, stream: StreamLike, path: Path, advance: Advance) -> Manifest:
    """As `backup.back_up`, to one file, which is written anew each time."""
    parquet, arrow = _pyarrow()
    described = client.describe_stream(stream)
    if described.log_start_offset is None or described.high_watermark is None:
        raise UnavailableError(f"stream {described.name!r} has no leader that answers: try again")
    digest = RecordDigest()
    partial = path.with_name(f"{path.name}.partial")
    scan = client.scan(described, described.log_start_offset, described.high_watermark)
    try:
        with parquet.ParquetWriter(partial, scan.schema, compression="zstd") as writer:
            group: list[Any] = []
            for batch in scan:
                digest.add(_records(batch))
                group.append(batch)
                if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                    writer.write_table(arrow.Table.from_batches(group))
                    group.clear()
                advance(len(batch))
            if group:
                writer.write_table(arrow.Table.from_batches(group))
            manifest = Manifest(
                cluster_id=client.describe_cluster().cluster_id,
                stream_id=described.id,
                name=described.name,
                subject=described.subject,
                replicas=described.replication_factor,
                settings=settings_of(described),
                start_offset=described.log_start_offset,
                end_offset=described.high_watermark,
                records=digest.count,
                digest=digest.hexdigest(),
                is_complete=True,
            )
            writer.add_key_value_metadata({_METADATA: manifest.to_json()})
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return manifest


def restore(
    client: Client,
    path: Path,
    name: str | None,
    bar: Bar,
    **changed: Any,
) -> tuple[Stream, RecordDigest]:
    """As `restore.restore`."""
    manifest = manifest_of(path)
    if manifest is None:
        raise InvalidRequestError(
            f"{path} is not what `stream backup` writes: its records can be imported "
            "(jetstream import NAME --from FILE)"
        )
    settings = {"replicas": manifest.replicas, **manifest.settings, **changed}
    subject = settings.pop("subject", None) or manifest.subject
    stream, limits = begin_restoring(client, name or manifest.name, subject, settings)
    writer = RestoreWriter(client, stream)
    with bar(manifest.records, "copying") as advance:
        for records in read(path):
            writer.put(records)
            advance(len(records))
        writer.cover(manifest.end_offset)
        writer.flush()
    with bar(manifest.length, "comparing") as advance:
        digest = finish(client, stream, manifest.bounds, advance)
    if (digest.count, digest.hexdigest()) != (manifest.records, manifest.digest):
        raise differs(stream.name, manifest.records, digest.count)
    return listen(client, stream, limits), digest


def manifest_of(path: Path) -> Manifest | None:
    """None: some other Parquet file."""
    metadata = _open(path).metadata.metadata or {}
    text = metadata.get(_METADATA)
    return None if text is None else Manifest.from_json(text, str(path))


def read(path: Path) -> Iterator[Records]:
    """The records of a file with the columns of `jetstream export`. Raises InvalidRequestError."""
    file = _open(path)
    missing = {"subject", "offset", "timestamp", "value"} - set(file.schema_arrow.names)
    if missing:
        raise InvalidRequestError(f"{path} lacks the columns {', '.join(sorted(missing))}")
    for batch in file.iter_batches(_ROWS):
        yield _records(batch)


def _open(path: Path) -> Any:
    parquet, arrow = _pyarrow()
    try:
        return parquet.ParquetFile(path)
    except arrow.ArrowException as error:
        raise InvalidRequestError(f"{path} is no Parquet file: {error}") from error


def _records(batch: pyarrow.RecordBatch) -> Records:
    arrow = _pyarrow()[1]

    def column(name: str, kind: Any) -> list[Any]:
        if name not in batch.schema.names:
            return [None] * len(batch)
        found: list[Any] = batch.column(name).cast(kind).to_pylist()
        return found

    times = batch.column("timestamp").cast(arrow.timestamp("us", "UTC")).cast(arrow.int64())
    return Records(
        column("offset", arrow.int64()),
        times.to_pylist(),
        [
            (subject or "").encode("utf-8", "surrogateescape")
            for subject in column("subject", arrow.string())
        ],
        column("key", arrow.binary()),
        column("value", arrow.binary()),
        [block or b"" for block in column("headers", arrow.binary())],
    )


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    """pyarrow.parquet and pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InvalidRequestError(
            "Parquet needs pyarrow: pip install 'jetstream-log[arrow]'"
        ) from error
    return parquet, pyarrow
