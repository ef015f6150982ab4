"""The Iceberg table of one stream: which objects it has, for engines and for our own readers.

The table is a chain of files in the store, each written once. Which one counts is not decided here:
`append` makes the next one and gives it to `commit`, which compares and swaps the pointer to it.
**safety** What is refused is not tried again: nobody but the caller knows whether it still holds.

Blocking: for a thread or a worker, never for the event loop.
"""

from __future__ import annotations

import io
import struct
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSchemaUpdate,
    RemoveSchemasUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    update_table_metadata,
)
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, LongType, NestedField, StringType, TimestamptzType

from jetstream_protocol.schema import Field
from jetstream_server.lake.parquet_object import ObjectFacts
from jetstream_server.lake.stores import Store
from jetstream_server.lake.typed_columns import numbered

SNAPSHOTS_MAX: Final = 20
"""Each takes 0.8 kB of every metadata file, which is written anew at each commit."""
DAY_US: Final = 86_400_000_000
_SUBJECT_LENGTH_MAX: Final = 16
"""Of the bounds in manifests, in characters, as Iceberg's own `truncate(16)`."""

COMMITTED: Final = "committed"
ADOPTED: Final = "adopted"
"""In a stream's folder: a table elsewhere needs its objects."""
_EPOCH: Final = "jetstream.leader-epoch"
_START: Final = "jetstream.start-offset"
_END: Final = "jetstream.end-offset"

SCHEMA: Final = Schema(
    NestedField(1, "offset", LongType(), required=True),
    NestedField(2, "timestamp", TimestamptzType(), required=True),
    NestedField(3, "append_timestamp", TimestamptzType(), required=True),
    NestedField(4, "leader_epoch", LongType(), required=True),
    NestedField(5, "subject", StringType(), required=True),
    NestedField(6, "key", BinaryType(), required=False),
    NestedField(7, "value", BinaryType(), required=False),
    NestedField(8, "headers", BinaryType(), required=False),
)
SPEC: Final = PartitionSpec(PartitionField(3, 1000, DayTransform(), "append_day"))
_SETTINGS: Final = {
    # The library's own retries would let a deposed leader's commit follow its successor's.
    "commit.retry.num-retries": "0",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.default": "none",
}


class StoredObject(NamedTuple):
    """An object of the table. splits: where its row groups begin."""

    name: str
    length: int
    facts: ObjectFacts
    splits: tuple[int, ...] = ()


class ListedObject(NamedTuple):
    """What the table knows of an object. [begin, end): bounds of its records' offsets. newest_us:
    when the last of them was appended."""

    name: str
    begin: int
    end: int
    length: int
    newest_us: int


def count_leaving(
    objects: Sequence[ListedObject], start: int, oldest_us: int, bytes_max: int
) -> int:
    """How many objects, the oldest ones, are to leave a table: see `StreamTable.trim`.

    objects: all of the table, by their offsets.
    """
    left = sum(each.length for each in objects)
    for number, each in enumerate(objects):
        left -= each.length
        is_old = each.end <= start or each.newest_us < oldest_us
        if not is_old and not 0 < bytes_max <= left:
            return number
    return len(objects)


class Adopted(NamedTuple):
    """A table that was taken over: where the next version is, and what it holds."""

    location: str
    start: int
    end: int
    last_epoch: int


Commit = Callable[[str, int, int, int, str], None]
"""Swap the pointer: expected location, begin, end, last leader epoch, new location. Raises if
anything else than what is expected stands there."""


@dataclass(frozen=True, slots=True)
class StreamTable:
    """The table of one stream.

    url: of the store, to which `folder` is relative. properties: of the table, such as the ids of
    cluster and stream. For one thread at a time.
    """

    store: Store
    url: str
    folder: str
    properties: Mapping[str, str]
    _last: dict[str, TableMetadata] = field(default_factory=dict, repr=False, compare=False)
    """The version that was read last, by its location: versions never change."""

    def append(
        self,
        location: str,
        added: StoredObject,
        commit: Commit,
        start: int = 0,
        fields: Sequence[Field] = (),
    ) -> str:
        """Add an object to the table at `location` ("": there is none yet), and commit that.

        start: objects whose records are all before it leave the table. fields: of the schema by
        which its columns were made (`columns`); none: it has no such columns, and the table keeps
        those that it has. Returns the new location.
        Raises ValueError for an object of two UTC days or one that does not continue the table,
        OSError, and what `commit` raises.
        """
        facts = added.facts
        day = facts.first_us // DAY_US
        if facts.last_us // DAY_US != day:
            raise ValueError("an object holds records of one UTC day")

        def swap(expected: str, name: str) -> None:
            commit(expected, facts.begin, facts.end, facts.last_epoch, name)

        catalog = _Catalog(self, facts.end, swap)
        table = self._load(location, catalog, fields)
        end = int(table.properties.get(_END, facts.begin))
        if start < end != facts.begin:
            raise ValueError(f"the table ends at {end}, not at {facts.begin}")
        noted = {_END: str(facts.end), _EPOCH: str(facts.last_epoch)}
        with table.transaction() as transaction:
            transaction.set_properties({**self.properties, **noted, _START: str(start)})
            gone = self._before(table, start)
            if gone:
                catalog.snapshots_max = 1
            update = transaction.update_snapshot(snapshot_properties=noted)
            with update.overwrite() if gone else update.merge_append() as snapshot:
                for each in gone:
                    snapshot.delete_data_file(each)
                snapshot.append_data_file(self._data_file(added, day))
        return catalog.committed

    def columns(self, location: str, fields: Sequence[Field]) -> tuple[NestedField, ...]:
        """The columns of a schema in the version of the table after `location`. Raises OSError."""
        return _typed(self._load(location, None, fields).schema())

    def trim(
        self, location: str, start: int, oldest_us: int = 0, bytes_max: int = 0
    ) -> tuple[str, int]:
        """Take out the oldest objects: those whose records are all before `start`, or were appended
        before `oldest_us`, and those without which the others still have `bytes_max` bytes (0: any
        number). Returns the new location, the same if there are none, and where the table begins
        then; the pointer is to be swapped. Raises OSError.
        """
        table = self._load(location, None)
        files = sorted(_files_of(table), key=_range_of)
        listed = [self._listed(each) for each in files]
        gone = files[: count_leaving(listed, start, oldest_us, bytes_max)]
        if not gone:
            return location, start
        start = max(start, _range_of(gone[-1])[1])
        catalog = _Catalog(self, int(table.properties[_END]), lambda *_: None)
        # Earlier snapshots would keep what was purged. Who reads one has the grace time.
        catalog.snapshots_max = 1
        table = self._load(location, catalog)
        with table.transaction() as transaction:
            transaction.set_properties({_START: str(start)})
            with transaction.update_snapshot().overwrite() as snapshot:
                for each in gone:
                    snapshot.delete_data_file(each)
        return catalog.committed, start

    def _before(self, table: Table, start: int) -> list[DataFile]:
        """The objects of a table with records before `start` only, if `start` has risen."""
        if start <= int(table.properties.get(_START, "0")):
            return []
        return [each for each in _files_of(table) if _range_of(each)[1] <= start]

    def objects(
        self,
        location: str,
        known: MutableMapping[str, tuple[ListedObject, ...]] | None = None,
    ) -> list[ListedObject]:
        """The objects of the table at `location`, by their offsets. Raises OSError.

        known: what manifests hold, which never change; afterwards, those of this table.
        """
        table = self._load(location, None)
        snapshot = table.current_snapshot()
        known = {} if known is None else known
        before = dict(known)
        known.clear()
        for manifest in snapshot.manifests(table.io) if snapshot else ():
            path = manifest.manifest_path
            known[path] = before.get(path) or tuple(
                self._listed(entry.data_file) for entry in manifest.fetch_manifest_entry(table.io)
            )
        return sorted(chain(*known.values()), key=lambda each: each.begin)

    def _listed(self, file: DataFile) -> ListedObject:
        begin, end = _range_of(file)
        return ListedObject(
            self.name_of(file.file_path), begin, end, file.file_size_in_bytes, _newest_us(file)
        )

    def check_is_ours(self, location: str) -> None:
        """Raise ValueError unless the table at `location` has our properties."""
        found = self._load(location, None).properties
        for name, value in self.properties.items():
            if found.get(name) != value:
                raise ValueError(
                    f"the table at {location} is of another cluster or stream: its {name} is "
                    f"{found.get(name)}, not {value}"
                )

    def reached(self, location: str) -> set[str]:
        """The names of all that the table at `location` needs: its metadata, and for each kept
        snapshot manifest lists, manifests and objects. **safety** Nothing else may be swept."""
        return set(self._reached(location)) if location else set()

    def _reached(self, location: str) -> Iterator[str]:
        table = self._load(location, None)
        yield location
        for log in table.metadata.metadata_log:
            yield self.name_of(log.metadata_file)
        seen = set()
        for snapshot in table.metadata.snapshots:
            yield self.name_of(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                yield self.name_of(manifest.manifest_path)
                # Not what a snapshot has taken out: earlier ones, if kept, name it themselves.
                for entry in manifest.fetch_manifest_entry(table.io):
                    yield self.name_of(entry.data_file.file_path)

    def start(self, location: str) -> int:
        """Where the table at `location` begins: objects with earlier records only have left it."""
        return int(self._load(location, None).properties.get(_START, "0"))

    # Which versions were committed (sweep.py).

    def marker_of(self, location: str) -> str:
        """The name of the object that says that this version of the table was committed."""
        return f"{self.folder}/{COMMITTED}/{location.rpartition('/')[2]}"

    def mark(self, location: str, before: str = "") -> None:
        """Note that the version at `location` was committed, in place of the one at `before`.
        Raises OSError."""
        try:
            self.store.put(self.marker_of(location), b"")
        except FileExistsError:
            pass  # An earlier attempt has noted it.
        if before:
            self.store.delete(self.marker_of(before))

    def marked(self, listed: Collection[str]) -> set[str]:
        """The versions that were noted as committed, among the objects of the stream's folder."""
        markers = (each for each in listed if each.startswith(f"{self.folder}/{COMMITTED}/"))
        versions = {f"{self.folder}/metadata/{each.rpartition('/')[2]}" for each in markers}
        return versions & set(listed)

    # Taking over.

    def adopt(self, url: str) -> Adopted:
        """Make the next version of the table at `url` ours: of a version's metadata, or of the
        folder of its stream, whose last committed version counts. The objects stay where they are,
        and their folder is noted as needed (sweep.py).

        Raises OSError, and ValueError for what is no table of a stream in this store.
        """
        location = self._found(self.name_of(url.rstrip("/")))
        table = self._load(location, None)
        names = {each: table.properties.get(each, "") for each in (_START, _END, _EPOCH)}
        objects = self.objects(location)
        if not objects or not all(each.isdecimal() for each in names.values()):
            raise ValueError(f"{location} is not the table of a stream with records")
        start, end, last_epoch = (int(each) for each in names.values())
        ends = [each.end for each in objects]
        if ends[-1] != end or [each.begin for each in objects[1:]] != ends[:-1]:
            raise ValueError(f"the objects of {location} do not follow one another")
        note = self._note_needed(location)
        try:
            return self._taken_over(table, location, max(start, objects[0].begin), end, last_epoch)
        except Exception:
            with suppress(OSError):  # Or nothing of that folder would be swept any more.
                self.store.delete(note)
            raise

    def _taken_over(
        self, table: Table, location: str, start: int, end: int, last_epoch: int
    ) -> Adopted:
        self._check_is_there(location)
        metadata = table.metadata.model_copy(
            update={
                "location": self.url_of(self.folder),
                "properties": {**table.metadata.properties, **self.properties},
            }
        )
        name = f"{self.folder}/metadata/{end:020}-{uuid.uuid4().hex}.metadata.json"
        ToOutputFile.table_metadata(metadata, _Files(self).new_output(self.url_of(name)))
        return Adopted(name, start, end, last_epoch)

    def _note_needed(self, location: str) -> str:
        """Note that the folder of the table at `location` is needed, and return the note's name."""
        note = f"{_folder_in(location)}/{ADOPTED}/{uuid.uuid4().hex}"
        self.store.put(note, self.folder.encode())
        return note

    def _check_is_there(self, location: str) -> None:
        """Raise ValueError if the folder of the table at `location` is being deleted.

        **safety** Whoever deletes a folder first removes what says that a version was committed,
        and then looks for notes (`FolderSweeper`). So one of the two notices the other.
        """
        folder = _folder_in(location)
        there = StreamTable(self.store, self.url, folder, {})
        listed = {each.name for each in self.store.list(f"{folder}/")}
        if not there.marked(listed) or not self._is_whole(location, folder, listed):
            raise ValueError(f"{folder} is being deleted: its stream was deleted")

    def _is_whole(self, location: str, folder: str, listed: set[str]) -> bool:
        return {each for each in self.reached(location) if each.startswith(f"{folder}/")} <= listed

    def _found(self, name: str) -> str:
        if name.endswith(".metadata.json"):
            return name
        parts = (f"{name}/{COMMITTED}/", f"{name}/metadata/")  # And not a million objects.
        listed = {each.name for part in parts for each in self.store.list(part)}
        there = StreamTable(self.store, self.url, name, {})
        versions = there.marked(listed)
        if not versions:
            raise ValueError(f"{name} is no folder of a stream whose table was committed")
        # Of two that end alike, as where the note of the one before could not be removed, the later
        # one has lost what was purged.
        end = max(_end_in(each) for each in versions)
        last = [each for each in versions if _end_in(each) == end]
        return max(last, key=lambda each: self._load(each, None).metadata.last_sequence_number)

    def url_of(self, name: str) -> str:
        return f"{self.url.rstrip('/')}/{name}"

    def name_of(self, url: str) -> str:
        """Raises ValueError for what is not of this store: a table that was moved, or that somebody
        has made to have other files read."""
        prefix = self.url_of("")
        # A name that begins with a slash would be a path outside of a folder.
        if not url.startswith(prefix) or {"", ".."} & set(url[len(prefix) :].split("/")):
            raise ValueError(f"{url} is not in the store {self.url}")
        return url[len(prefix) :]

    def _load(self, location: str, catalog: _Catalog | None, fields: Sequence[Field] = ()) -> Table:
        files = _Files(self)
        if location:
            metadata = self._last.get(location)
            if metadata is None:
                metadata = FromInputFile.table_metadata(files.new_input(self.url_of(location)))
                self._last.clear()
                self._last[location] = metadata
        else:
            metadata = new_table_metadata(
                SCHEMA, SPEC, UNSORTED_SORT_ORDER, self.url_of(self.folder), {**_SETTINGS}
            )
        if fields:
            metadata = _with_columns(metadata, fields)
        at = self.url_of(location) if location else ""
        return Table(("jetstream", self.folder), metadata, at, files, catalog or NoopCatalog(""))

    def _data_file(self, added: StoredObject, day: int) -> DataFile:
        facts = added.facts
        lower, upper = _bounds(facts)
        return DataFile.from_args(
            _table_format_version=2,
            content=DataFileContent.DATA,
            file_path=self.url_of(added.name),
            file_format=FileFormat.PARQUET,
            partition=Record(day),
            record_count=facts.rows,
            file_size_in_bytes=added.length,
            lower_bounds=lower,
            upper_bounds=upper,
            column_sizes=None,
            value_counts=None,
            null_value_counts={1: 0, 3: 0, 4: 0, 5: 0},
            nan_value_counts=None,
            split_offsets=list(added.splits) or None,
            sort_order_id=None,
            spec_id=0,
            equality_ids=None,
            key_metadata=None,
        )


def _folder_in(location: str) -> str:
    """The folder of the stream whose table is there."""
    return location.partition("/metadata/")[0]


def _end_in(location: str) -> int:
    """Where the table ends whose version is there."""
    return int(location.rpartition("/")[2].partition("-")[0])


def _typed(schema: Schema) -> tuple[NestedField, ...]:
    """The columns beside those of every stream."""
    return tuple(schema.fields[len(SCHEMA.fields) :])


def _with_columns(metadata: TableMetadata, fields: Sequence[Field]) -> TableMetadata:
    before = _typed(metadata.schema())
    columns = numbered(before, metadata.last_column_id, fields)
    if columns == before:
        return metadata
    number = 1 + max(each.schema_id for each in metadata.schemas)
    schema = Schema(*SCHEMA.fields, *columns, schema_id=number)
    updates = AddSchemaUpdate(schema=schema), SetCurrentSchemaUpdate(schema_id=number)
    changed = update_table_metadata(metadata, updates)
    # It is no version of its own: this is the time of the one that was loaded.
    return changed.model_copy(update={"last_updated_ms": metadata.last_updated_ms})


def _files_of(table: Table) -> Iterator[DataFile]:
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file


def _newest_us(file: DataFile) -> int:
    """When its last record was appended."""
    (newest,) = struct.unpack("<q", file.upper_bounds[3])
    return int(newest)


def _range_of(file: DataFile) -> tuple[int, int]:
    """The offsets of an object: [begin, end)."""
    (begin,) = struct.unpack("<q", file.lower_bounds[1])
    (last,) = struct.unpack("<q", file.upper_bounds[1])
    return begin, last + 1


def _bounds(facts: ObjectFacts) -> tuple[dict[int, bytes], dict[int, bytes]]:
    """The least and the greatest of columns, as Iceberg writes them.

    A subject that is too long is cut for the lower bound, and has no upper one.
    """
    pack = struct.Struct("<q").pack
    lower = {1: pack(facts.begin), 3: pack(facts.first_us), 4: pack(facts.first_epoch)}
    upper = {1: pack(facts.end - 1), 3: pack(facts.last_us), 4: pack(facts.last_epoch)}
    lower[5] = facts.subject_min[:_SUBJECT_LENGTH_MAX].encode()
    if len(facts.subject_max) <= _SUBJECT_LENGTH_MAX:
        upper[5] = facts.subject_max.encode()
    return lower, upper


class _Catalog(NoopCatalog):  # type: ignore[misc]  # The extra may be missing.
    """Writes the next metadata file, and has the pointer swapped to it."""

    def __init__(self, table: StreamTable, end: int, swap: Callable[[str, str], None]) -> None:
        super().__init__("jetstream")
        self._table, self._end, self._swap = table, end, swap
        self.snapshots_max = SNAPSHOTS_MAX
        self.committed = ""

    def commit_table(
        self, table: Table, requirements: tuple[Any, ...], updates: tuple[Any, ...]
    ) -> CommitTableResponse:
        for requirement in requirements:
            requirement.validate(table.metadata)
        expected = self._table.name_of(table.metadata_location) if table.metadata_location else ""
        at = table.metadata_location or None
        metadata = update_table_metadata(table.metadata, updates, False, at)
        metadata = _without_what_is_old(metadata, self.snapshots_max)
        # Random: the file of a refused commit stays, and must not be in the way of its successor.
        attempt = uuid.uuid4().hex
        name = f"{self._table.folder}/metadata/{self._end:020}-{attempt}.metadata.json"
        url = self._table.url_of(name)
        ToOutputFile.table_metadata(metadata, table.io.new_output(url))
        self._swap(expected, name)
        self.committed = name
        return CommitTableResponse(metadata=metadata, metadata_location=url)


def _without_what_is_old(metadata: TableMetadata, most: int) -> TableMetadata:
    # Their ids are random: only the sequence numbers tell their order.
    by_age = sorted(metadata.snapshots, key=lambda each: each.sequence_number or 0)
    old = [each.snapshot_id for each in by_age[:-most]]
    if old:
        metadata = update_table_metadata(metadata, (RemoveSnapshotsUpdate(snapshot_ids=old),))
    needed = {metadata.current_schema_id, *(each.schema_id for each in metadata.snapshots)}
    gone = [each.schema_id for each in metadata.schemas if each.schema_id not in needed]
    if gone:
        metadata = update_table_metadata(metadata, (RemoveSchemasUpdate(schema_ids=gone),))
    return metadata


class _Files(FileIO):  # type: ignore[misc]  # The extra may be missing.
    """Iceberg's files in our store: written once, read whole."""

    def __init__(self, table: StreamTable) -> None:
        super().__init__()
        self._table = table

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self._table)

    def new_output(self, location: str) -> OutputFile:
        return _Output(location, self._table)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Nothing: what a refused commit leaves is swept once nobody can need it."""


class _Input(InputFile):  # type: ignore[misc]  # The extra may be missing.
    def __init__(self, location: str, table: StreamTable) -> None:
        super().__init__(location)
        self._table = table

    def __len__(self) -> int:
        return len(self._read())

    def exists(self) -> bool:
        try:
            self._read()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(self._read())

    def _read(self) -> bytes:
        return self._table.store.get(self._table.name_of(self.location))


class _Output(OutputFile):  # type: ignore[misc]  # The extra may be missing.
    def __init__(self, location: str, table: StreamTable) -> None:
        super().__init__(location)
        self._table = table

    def __len__(self) -> int:
        return len(_Input(self.location, self._table))

    def exists(self) -> bool:
        return _Input(self.location, self._table).exists()

    def to_input_file(self) -> InputFile:
        return _Input(self.location, self._table)

    def create(self, overwrite: bool = False) -> Any:
        return _Written(self._table.store, self._table.name_of(self.location))


class _Written(io.BytesIO):
    """Stored once it is closed."""

    def __init__(self, store: Store, name: str) -> None:
        super().__init__()
        self._store, self._name = store, name

    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._store.put(self._name, data)
