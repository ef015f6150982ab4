"""A backup as one Parquet file: the columns of `jetstream export`, and the manifest as metadata.
Files of other systems are read, too.

Needs pyarrow. The file gets its name when it is complete. **safety** It replaces only a backup that
has nothing more than itself: one of the same stream, which has lost none of the records since.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date, time
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from jetstream_client.clients.blocking_client import Client
from jetstream_client.migration.backup import (
    Advance,
    Bar,
    Note,
    check_stream,
    describe_with_end,
    overtaken,
)
from jetstream_client.migration.file_records import (
    Defaults,
    RecordsOfFile,
    checked_block,
    header_block_of,
    timestamp_of,
)
from jetstream_client.migration.manifest import Manifest, schema_of, settings_of
from jetstream_client.migration.one_view import OneView
from jetstream_client.migration.records import RecordDigest, Records
from jetstream_client.migration.restore import finish, made_of, names_what_is_left
from jetstream_client.migration.restore_writer import RestoreWriter, check_records
from jetstream_client.migration.whole_file import is_file_or_free, whole_file
from jetstream_client.reading.scan import Scan
from jetstream_client.values.types import Stream, StreamDescription, StreamLike
from jetstream_protocol.batch import decode_header
from jetstream_protocol.errors import (
    CorruptBatchError,
    DivergedError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PreconditionFailedError,
    UnavailableError,
)
from jetstream_protocol.extras import needed_by

if TYPE_CHECKING:
    import pyarrow

_METADATA = b"jetstream.backup"
_ROWS = 16_384
_HAVE_TEXT = (str, date, time, Decimal, UUID)
ROW_GROUP_BYTES = 64 * 1024 * 1024


def back_up(
    client: Client, stream: StreamLike, path: Path, advance: Advance,
    note: Note = lambda text: None,
) -> Manifest:  # fmt: skip
    """As `backup.back_up`, to one file, which is written anew each time.

    Raises InvalidRequestError if the file exists and is no backup of this stream,
    PreconditionFailedError if it has records that the stream has no more, MessageTooLargeError for
    a record that cannot be restored.
    """
    copied = 0

    def counted(offsets: int) -> None:
        nonlocal copied
        copied += offsets
        advance(offsets)

    while True:
        try:
            return _back_up(client, stream, path, counted, note)
        except OffsetOutOfRangeError as error:
            if copied:
                raise PreconditionFailedError(
                    "retention has removed records before they were copied, and the stream begins "
                    f"at offset {error.log_start_offset} now: run the same again"
                ) from error


def _back_up(
    client: Client, stream: StreamLike, path: Path, advance: Advance, note: Note
) -> Manifest:
    """Raises OffsetOutOfRangeError if retention was faster."""
    parquet, arrow = _pyarrow()
    described = describe_with_end(client, stream)
    assert described.log_start_offset is not None
    assert described.high_watermark is not None
    cluster_id = client.describe_cluster().cluster_id
    if not is_file_or_free(path):
        raise InvalidRequestError(f"{path} is no file: a backup must be one, to be restored")
    if path.exists():
        _check_replaced(client, path, cluster_id, described)
    digest = RecordDigest()
    pieces = list[_Piece]()
    with (
        whole_file(path, private=True) as file,
        parquet.ParquetWriter(file, _schema(), compression="zstd") as writer,
    ):
        group: list[Any] = []
        for piece in _pieces(client, described, note):
            pieces.append(piece)
            for batch in piece.scan:
                records = _records(batch)
                check_records(records)
                digest.add(records)
                group.append(batch)
                if sum(each.nbytes for each in group) >= ROW_GROUP_BYTES:
                    writer.write_table(arrow.Table.from_batches(group))
                    group.clear()
                advance(len(batch))
        if group:
            writer.write_table(arrow.Table.from_batches(group))
        manifest = Manifest(
            cluster_id=cluster_id,
            stream_id=described.id,
            name=described.name,
            subject=described.subject,
            replicas=described.replication_factor,
            settings=settings_of(described),
            start_offset=pieces[0].scan.start,
            end_offset=pieces[-1].scan.stop,
            last_epoch=pieces[-1].last_epoch,
            records=digest.count,
            digest=digest.hexdigest(),
            is_complete=True,
            schema=schema_of(client, described),
        )
        writer.add_key_value_metadata({_METADATA: manifest.to_json()})
    return manifest


class _Piece(NamedTuple):
    """last_epoch: the leader epoch of the last record."""

    scan: Scan
    last_epoch: int


def _pieces(client: Client, stream: StreamDescription, note: Note) -> Iterator[_Piece]:
    """What is to be copied: the next one is what has to be copied, too, after the one before."""
    start_offset, end_offset = stream.log_start_offset, stream.high_watermark
    assert start_offset is not None
    assert end_offset is not None
    view = OneView(client, stream, start_offset, None)
    before = -1
    while True:
        # Of before the scan: if the records are replaced meanwhile, the next backup is rather
        # refused.
        last_epoch = _last_epoch(client, stream, start_offset, end_offset)
        yield _Piece(client.scan(stream, start_offset, end_offset, last_epoch=before), last_epoch)
        start_offset, before = end_offset, last_epoch
        end_offset = view.end(end_offset)
        if end_offset == start_offset:
            return
        note(overtaken(start_offset, end_offset))


def _last_epoch(client: Client, stream: StreamDescription, start: int, end: int) -> int:
    """The leader epoch of the last record of [start, end); -1: there is none."""
    if start == end:
        return -1
    last = client.fetch_batches(stream, end - 1, max_bytes=1, encrypted=True)
    if not last.data:
        raise UnavailableError(f"no records at offset {end - 1} came: try again")
    return decode_header(last.data).leader_epoch


def _check_replaced(client: Client, path: Path, cluster_id: str, stream: StreamDescription) -> None:
    """Refuse to replace a file that holds more than a backup of `stream` would."""
    manifest = manifest_of(path)
    if manifest is None:
        raise InvalidRequestError(f"{path} exists and is no backup: say another file")
    check_stream(manifest, cluster_id, stream, f"{path} holds", "file")
    start_offset, end_offset = stream.log_start_offset, stream.high_watermark
    assert start_offset is not None
    assert end_offset is not None
    if manifest.start_offset < start_offset or manifest.end_offset > end_offset:
        raise PreconditionFailedError(
            f"{path} begins at offset {manifest.start_offset} and ends before "
            f"{manifest.end_offset}, and the stream begins at {start_offset} and ends before "
            f"{end_offset} now: a new backup in its place would lose records; say another file"
        )
    try:
        client.fetch_batches(
            stream, manifest.end_offset, max_bytes=1, last_epoch=manifest.last_epoch, encrypted=True
        )
    except DivergedError as error:
        raise PreconditionFailedError(
            f"{path} holds records from offset {error.end_offset} on that the stream has no more, "
            "because a leader without them was elected: a new backup in its place would lose "
            "records; say another file"
        ) from error


def restore(
    client: Client,
    path: Path,
    name: str | None,
    bar: Bar,
    **changed: Any,
) -> tuple[Stream, RecordDigest]:
    """Restore a Parquet file; otherwise like `restore.restore`."""
    manifest = manifest_of(path)
    if manifest is None:
        raise InvalidRequestError(
            f"{path} is not what `stream backup` writes: its records can be imported "
            "(jetstream import NAME --from FILE)"
        )

    def fill(stream: Stream) -> RecordDigest:
        writer = RestoreWriter(client, stream)
        with bar(manifest.records, "copying") as advance, names_what_is_left(stream):
            for records in read(path, Defaults(manifest.subject, 0)):
                writer.put(records)
                advance(len(records))
            writer.cover(manifest.end_offset)
            writer.flush()
        with bar(manifest.length, "comparing") as advance:
            return finish(client, stream, manifest.bounds, advance)

    return made_of(client, manifest, name or manifest.name, bar, fill, changed)


def manifest_of(path: Path) -> Manifest | None:
    """The manifest in a Parquet file; None: it is not a backup."""
    metadata = _open(path).metadata.metadata or {}
    text = metadata.get(_METADATA)
    return None if text is None else Manifest.from_json(text, str(path))


def read(path: Path, defaults: Defaults) -> Iterator[Records]:
    """The records of a file with the columns of `jetstream export`, of which only `value` has to be
    there. Raises InvalidRequestError, which names the column, and the row if it is one row's, and
    CorruptBatchError."""
    file = _open(path)
    if "value" not in file.schema_arrow.names:
        raise InvalidRequestError(f'{path} has no column "value"')
    columns = _Columns(RecordsOfFile(path, "row", defaults))
    for batch in _batches(file, path):
        if len(batch):
            yield columns.records(batch)


def _batches(file: Any, path: Path) -> Iterator[pyarrow.RecordBatch]:
    try:
        yield from file.iter_batches(_ROWS)
    except (OSError, _pyarrow()[1].ArrowException) as error:
        raise CorruptBatchError(f"{path} is damaged: {error}") from error


class _Columns:
    """Takes the records out of Arrow batches, which come in order."""

    def __init__(self, file_records: RecordsOfFile) -> None:
        self._file_records = file_records
        self._rows = 0

    def records(self, batch: pyarrow.RecordBatch) -> Records:
        numbers = range(self._rows + 1, self._rows + 1 + len(batch))
        records = self._file_records.complete(
            numbers,
            self._column(batch, "offset", self._offsets),
            self._column(batch, "timestamp", self._timestamps),
            self._column(batch, "subject", self._subjects),
            self._column(batch, "key", self._bytes),
            self._column(batch, "value", self._bytes),
            self._column(batch, "headers", self._header_blocks),
        )
        self._rows += len(batch)
        return records

    def _column(
        self, batch: pyarrow.RecordBatch, name: str, take: Callable[[Any], list[Any]]
    ) -> list[Any]:
        """What `take` makes of a column. If it cannot, the error names the first row of which it
        cannot."""
        arrow = _pyarrow()[1]
        if name not in batch.schema.names:
            return [None] * len(batch)
        column = batch.column(batch.schema.names.index(name))
        if arrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        kind = column.type
        if isinstance(kind, arrow.BaseExtensionType) and _is_text(kind.storage_type):
            column = column.storage  # JSON, as DuckDB writes it.
        if arrow.types.is_null(column.type):
            return [None] * len(batch)
        try:
            return take(column)
        except (arrow.ArrowException, ValueError, TypeError):
            for row in range(len(column)):
                try:
                    take(column.slice(row, 1))
                except (arrow.ArrowException, ValueError, TypeError) as error:
                    raise self._file_records.row_error(
                        self._rows + row + 1, f"column {name!r}: {error}"
                    ) from error
            raise

    def _offsets(self, column: Any) -> list[Any]:
        arrow = _pyarrow()[1]
        if not arrow.types.is_integer(column.type) and not arrow.types.is_floating(column.type):
            raise TypeError(f"an offset is a whole number, not {column.type}")
        found: list[Any] = column.cast(arrow.int64()).to_pylist()
        return found

    def _timestamps(self, column: Any) -> list[Any]:
        """Times without a zone are UTC. What is finer than microseconds is cut off."""
        arrow = _pyarrow()[1]
        if _is_text(column.type):
            texts = column.cast(arrow.string()).to_pylist()
            return [None if text is None else timestamp_of(text) for text in texts]
        if not arrow.types.is_timestamp(column.type):
            raise TypeError(f"a timestamp is a time, not {column.type}")
        times = column.cast(arrow.timestamp("us", "UTC"), safe=column.type.unit != "ns")
        found: list[Any] = times.cast(arrow.int64()).to_pylist()
        return found

    def _subjects(self, column: Any) -> list[Any]:
        if not _is_text(column.type) and not _is_binary(column.type):
            raise TypeError(f"a subject is text, not {column.type}")
        return self._bytes(column)

    def _bytes(self, column: Any) -> list[Any]:
        """Texts and bytes as they are, times, decimals and UUIDs as text, anything else as JSON
        text."""
        arrow = _pyarrow()[1]
        if _is_text(column.type) or _is_binary(column.type):
            found: list[Any] = column.cast(arrow.binary()).to_pylist()
            return found
        return [None if each is None else _bytes_of(each) for each in column.to_pylist()]

    def _header_blocks(self, column: Any) -> list[Any]:
        """Header blocks, as bytes as they are; or headers by their names, in a map or a struct."""
        arrow = _pyarrow()[1]
        if _is_binary(column.type):
            return self._bytes(column)
        if _is_text(column.type):
            return [checked_block(block) for block in self._bytes(column)]
        if not arrow.types.is_map(column.type) and not arrow.types.is_struct(column.type):
            raise TypeError(
                f"headers are a NATS header block, a map or a struct, not {column.type}"
            )
        return [
            None
            if each is None
            else header_block_of(
                {name: text for name, text in dict(each).items() if text is not None}
            )
            for each in column.to_pylist()
        ]


def _is_text(kind: Any) -> bool:
    types = _pyarrow()[1].types
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_binary(kind: Any) -> bool:
    types = _pyarrow()[1].types
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


def _bytes_of(value: Any) -> bytes:
    """See `_Columns._bytes`. Raises TypeError, ValueError."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, _HAVE_TEXT):
        return _text(value).encode()
    text = json.dumps(
        value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_text
    )
    return text.encode()


def _text(value: object) -> str:
    if not isinstance(value, _HAVE_TEXT):
        raise TypeError(f"{type(value).__name__} has no JSON text")
    return value.isoformat() if isinstance(value, date | time) else str(value)


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


def _schema() -> Any:
    from jetstream_client.reading.arrow import SCHEMA  # It needs pyarrow.

    return SCHEMA


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    """Import both modules, or raise the error that names the extra."""
    with needed_by("Parquet", "arrow"):
        import pyarrow
        from pyarrow import parquet
    return parquet, pyarrow
