"""Examines the files of a data folder beside its streams: its identity, the metadata, the runs.

    meta.json, metadata/group.json   the server compares them, and does not start if they differ
    metadata/journal, snapshot       records (metadata_records.py); damage other than a torn tail
                                     prevents the start
    metadata/synced                  how much of the journal must be readable (synced_length.py)
    runs                             a state file (checkpoint_file.py); if it is damaged, no log is
                                     trusted

As in `verify`, everything is read, even after damage, and nothing is changed.
"""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from jetstream_protocol import bounded_json
from jetstream_protocol.errors import CorruptBatchError
from jetstream_protocol.logfiles import checkpoint_file, identity_file
from jetstream_protocol.logfiles.files import IDENTITY_NAME
from jetstream_protocol.logfiles.findings import Finding, Kind
from jetstream_protocol.logfiles.metadata_records import (
    BEGINNING,
    ENTRY,
    FIRST_INDEX,
    HEADER_BYTES,
    JOURNAL_HEADER,
    SNAPSHOT_HEADER,
    STANDING,
    STATE,
    TRUNCATE,
    VOTE,
    VOTERS,
    Damage,
    Record,
    walk,
)
from jetstream_protocol.logfiles.names import TEMPORARY_SUFFIX
from jetstream_protocol.logfiles.synced_length import SYNCED_NAME, SyncedLength, decode

METADATA_NAME = "metadata"
RUNS_NAME = "runs"
_RUNS_KIND = "runs"
_JOURNAL, _SNAPSHOT, _GROUP = "journal", "snapshot", "group.json"
_RESERVE = "reserve"
"""Takes room on the disk; its content means nothing."""
_META_FIELDS = ("format_version", "cluster", "cluster_id", "node_id")
_GROUP_FIELDS = ("format", "node_id", "voters", "cluster_id", "recoveries")
_COMMANDS, _NOTHING, _VOTERS = b"\x00", b"\x01", b"\x04"
"""The first byte of an entry: what it is."""
_DECODING_ERRORS = (ValueError, KeyError, TypeError, zlib.error)


@dataclass(frozen=True, slots=True)
class _Identity:
    node_id: int
    cluster_id: str


def verify_beside_streams(folder: Path) -> Iterator[Finding]:
    """Everything wrong with a data folder, except in its streams."""
    file = folder / IDENTITY_NAME
    try:
        meta = identity_file.decode(file.read_bytes(), _META_FIELDS)
        int(meta["format_version"]), str(meta["cluster"])
        identity = _Identity(int(meta["node_id"]), str(meta["cluster_id"]))
    except (OSError, *_DECODING_ERRORS) as error:
        message = f"does not say whose folder this is: {error}"
        yield Finding(str(file), 0, Kind.BAD_IDENTITY, message)
        identity = None
    yield from _verify_runs(folder / RUNS_NAME, identity)
    if (folder / METADATA_NAME).is_dir():
        yield from _verify_metadata(folder / METADATA_NAME, identity)


def _verify_runs(file: Path, identity: _Identity | None) -> Iterator[Finding]:
    if identity is None or not file.exists():
        return  # Without the record no log is trusted, which is safe.
    try:
        owner = f"{identity.cluster_id}/{identity.node_id}"
        checkpoint_file.decode(file.read_bytes(), _RUNS_KIND, owner)
    except CorruptBatchError as error:
        message = f"{error.reason}; no log will be trusted to be complete until it has caught up"
        yield Finding(str(file), max(error.position, 0), Kind.BAD_RUNS, message)
    except OSError as error:
        yield Finding(str(file), 0, Kind.UNREADABLE, str(error))


def _verify_metadata(folder: Path, identity: _Identity | None) -> Iterator[Finding]:
    for entry in sorted(folder.iterdir()):
        if entry.name.endswith(TEMPORARY_SUFFIX):
            message = "an atomic write that never took place; nothing reads it"
            yield Finding(str(entry), 0, Kind.LEFTOVER_FILE, message)
        elif entry.name not in (_JOURNAL, _SNAPSHOT, _GROUP, SYNCED_NAME, _RESERVE):
            message = "not a file of the metadata; nothing reads it"
            yield Finding(str(entry), 0, Kind.UNKNOWN_FILE, message)
    try:
        yield from _verify_group(folder / _GROUP, identity)
        yield from _verify_log(folder, identity)
    except OSError as error:
        yield Finding(str(error.filename or folder), 0, Kind.UNREADABLE, str(error))


def _verify_group(file: Path, identity: _Identity | None) -> Iterator[Finding]:
    if not file.exists():
        if (file.parent / _JOURNAL).exists():
            message = "missing: nothing says which group the metadata belongs to"
            yield Finding(str(file), 0, Kind.BAD_IDENTITY, message)
        return
    try:
        group = identity_file.decode(file.read_bytes(), _GROUP_FIELDS)
        int(group["format"]), [int(voter) for voter in group["voters"]]
        found = _Identity(int(group["node_id"]), str(group["cluster_id"]))
    except _DECODING_ERRORS as error:
        yield Finding(str(file), 0, Kind.BAD_IDENTITY, f"does not say which group this is: {error}")
        return
    if identity is None:
        return
    if found.node_id != identity.node_id:
        message = f"of node {found.node_id} in the folder of node {identity.node_id}"
        yield Finding(str(file), 0, Kind.BAD_IDENTITY, message)
    # The group agrees on the id first; the folder records it at the end of the first start.
    if identity.cluster_id not in ("", found.cluster_id):
        message = f"of cluster {found.cluster_id!r} in a folder of {identity.cluster_id!r}"
        yield Finding(str(file), 0, Kind.BAD_IDENTITY, message)


def _verify_log(folder: Path, identity: _Identity | None) -> Iterator[Finding]:
    """Examine the journal, the snapshot, and whether they fit together."""
    journal, snapshot = folder / _JOURNAL, folder / _SNAPSHOT
    snapshot_end: int | None = 0
    if snapshot.exists():
        state = _SnapshotVerifier(str(snapshot), snapshot.read_bytes())
        yield from state.findings()
        snapshot_end = state.end
    if not journal.exists():
        if snapshot.exists() or (identity is not None and identity.cluster_id):
            message = "missing: this node's vote and what it has acknowledged are lost"
            yield Finding(str(journal), 0, Kind.MISSING_METADATA, message)
        return
    synced = folder / SYNCED_NAME
    slot = decode(synced.read_bytes()) if synced.exists() else None
    entries = _JournalVerifier(str(journal), journal.read_bytes(), slot)
    yield from entries.findings()
    if slot is None and entries.generation:
        message = "missing or damaged: a voter votes again when the others have restored its vote"
        yield Finding(str(synced), 0, Kind.BAD_SYNCED, message)
    if entries.first is None or snapshot_end is None:
        return  # Whether entries are missing between the two is unknown.
    if entries.first > max(FIRST_INDEX, snapshot_end + 1):
        message = f"begins with entry {entries.first}, and the snapshot ends with {snapshot_end}"
        yield Finding(str(journal), HEADER_BYTES, Kind.MISSING_METADATA, message)


class _RecordsVerifier(ABC):
    """What the verifiers of journal and snapshot have in common."""

    header: bytes

    def __init__(self, file: str, data: bytes) -> None:
        self._file = file
        self._data = data

    def findings(self) -> Iterator[Finding]:
        if self._data[:HEADER_BYTES] != self.header:
            yield self._bad(0, "not a file of this kind, or of another version")
            return
        position = HEADER_BYTES
        for found in walk(self._data):
            if isinstance(found, Damage):
                yield from self._damage(found)
                position = position if found.resumes_at is None else found.resumes_at
            else:
                yield from self._record(position, found)
                position = found.end

    def _damage(self, damage: Damage) -> Iterator[Finding]:
        end = "the end" if damage.resumes_at is None else f"byte {damage.resumes_at}"
        yield self._bad(damage.position, f"no valid record from here to {end}")

    @abstractmethod
    def _record(self, position: int, record: Record) -> Iterator[Finding]:
        """Everything wrong with an intact record."""

    def _entry(self, position: int, record: Record) -> Iterator[Finding]:
        """Check an entry: lines of JSON after a byte that marks them as commands."""
        kind, lines = record.payload[:1], record.payload[1:].split(b"\n")
        try:
            if kind == _COMMANDS:
                for line in lines:
                    bounded_json.loads(line)
            elif kind == _VOTERS:
                _check_voters(record.payload[1:])
            elif kind != _NOTHING:
                yield self._bad(position, f"an entry of unknown kind {kind.hex() or 'none'}")
        except _DECODING_ERRORS as error:
            yield self._bad(position, f"an entry whose commands cannot be read: {error}")

    def _bad(self, position: int, message: str) -> Finding:
        return Finding(self._file, position, Kind.BAD_METADATA, message)


class _SnapshotVerifier(_RecordsVerifier):
    """end: index of the last entry that the state includes; None if the snapshot is damaged."""

    header = SNAPSHOT_HEADER

    def __init__(self, file: str, data: bytes) -> None:
        super().__init__(file, data)
        self.end: int | None = None
        self._is_after_state = False

    def findings(self) -> Iterator[Finding]:
        found = list(super().findings())
        yield from found
        if self.end is None and not found:
            yield self._bad(HEADER_BYTES, "holds no state")
        if found:
            self.end = None

    def _record(self, position: int, record: Record) -> Iterator[Finding]:
        if record.kind == VOTERS and self._is_after_state:
            self._is_after_state = False
            try:
                _check_voters(record.payload)
            except _DECODING_ERRORS as error:
                yield self._bad(position, f"the voters in it cannot be read: {error}")
            return
        self._is_after_state = record.kind == STATE
        if record.kind != (STATE if position == HEADER_BYTES else ENTRY):
            yield self._bad(position, f"a record of kind {record.kind} does not belong here")
        elif record.kind == ENTRY:
            yield from self._entry(position, record)
        else:
            self.end = record.index
            try:
                for line in zlib.decompress(record.payload).split(b"\n"):
                    bounded_json.loads(line)
            except _DECODING_ERRORS as error:
                yield self._bad(position, f"the state in it cannot be read: {error}")


class _JournalVerifier(_RecordsVerifier):
    """first: index of the first entry; None: there is none, or it is unknown. generation: of the
    file; 0: its beginning does not say. slot: the content of the file `synced`."""

    header = JOURNAL_HEADER

    def __init__(self, file: str, data: bytes, slot: SyncedLength | None) -> None:
        super().__init__(file, data)
        self.first: int | None = None
        self.generation = 0
        self._slot = slot
        self._last: int | None = None

    def findings(self) -> Iterator[Finding]:
        found = list(super().findings())
        yield from found
        missing = (self._synced() or 0) - len(self._data)
        if not found and missing > 0:
            yield self._bad(len(self._data), f"{missing} bytes that had been synced are missing")

    def _synced(self) -> int | None:
        """Bytes that must be readable, as the server sees it; None: nothing says so."""
        slot = self._slot
        if slot is None or not slot.generation:
            return None
        if self.generation in (0, slot.generation):
            return slot.length
        return len(self._data) if slot.generation == self.generation - 1 else None

    def _damage(self, damage: Damage) -> Iterator[Finding]:
        self._last = None  # The journal may continue at any index.
        synced = self._synced()
        torn = damage.resumes_at is None if synced is None else damage.position >= synced
        if torn:
            message = f"torn record; {len(self._data) - damage.position} bytes will be cut off"
            yield Finding(self._file, damage.position, Kind.TORN_TAIL, message)
            return
        yield from super()._damage(damage)

    def _record(self, position: int, record: Record) -> Iterator[Finding]:
        if record.kind == ENTRY:
            if self._last is not None and record.index != self._last + 1:
                message = f"entry {record.index} where {self._last + 1} is next"
                yield self._bad(position, message)
            self.first = record.index if self.first is None else self.first
            self._last = record.index
            yield from self._entry(position, record)
        elif record.kind == TRUNCATE:
            if self.first is not None and record.index <= self.first:
                self.first = self._last = None
            elif self._last is not None:
                self._last = min(self._last, record.index - 1)
        elif record.kind == BEGINNING:
            self.generation = record.index
        elif record.kind not in (VOTE, STANDING):
            yield self._bad(position, f"unknown record kind {record.kind}")


def _check_voters(data: bytes) -> None:
    """Raises one of _DECODING_ERRORS for what is no set of voters."""
    voters = bounded_json.loads(data)["voters"]
    if not [int(voter) for voter in voters]:
        raise ValueError("a set of voters without any")
